// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package ptrace

import (
	"maps"

	"golang.org/x/sys/unix"
)

// call says how a system call counts.
type call struct {
	name string
	path int                  // the argument that is a file's name, -1 = none
	only func([6]uint64) bool // further condition on the arguments, nil = none
}

// counted are the calls that change or wait for something outside the process: files,
// locks, processes, sockets, mounts, namespaces.
//
// Left out is what no kill can be told from a kill at the next call that counts: looking
// only (stat, readlink, getdents, lseek), changing this process alone (pipe, dup, fcntl of
// flags, memory, signals) and the runtime's own waiting (futex, epoll, nanosleep). Threads
// are the runtime's business as well, so a clone counts when it makes a process. Reading
// files of /proc is looking, too, and takes as many calls as the machine has processes.
var counted = all() //nolint:gochecknoglobals // a table; nothing writes to it

func all() map[uint64]call {
	m := map[uint64]call{
		unix.SYS_OPENAT:          {"openat", 1, nil},
		unix.SYS_OPENAT2:         {"openat2", 1, nil},
		unix.SYS_CLOSE:           {"close", -1, nil},
		unix.SYS_READ:            {"read", -1, nil},
		unix.SYS_READV:           {"readv", -1, nil},
		unix.SYS_PREAD64:         {"pread64", -1, nil},
		unix.SYS_WRITE:           {"write", -1, nil},
		unix.SYS_WRITEV:          {"writev", -1, nil},
		unix.SYS_PWRITE64:        {"pwrite64", -1, nil},
		unix.SYS_SENDFILE:        {"sendfile", -1, nil},
		unix.SYS_SPLICE:          {"splice", -1, nil},
		unix.SYS_COPY_FILE_RANGE: {"copy_file_range", -1, nil},
		unix.SYS_FSYNC:           {"fsync", -1, nil},
		unix.SYS_FDATASYNC:       {"fdatasync", -1, nil},
		unix.SYS_FTRUNCATE:       {"ftruncate", -1, nil},
		unix.SYS_TRUNCATE:        {"truncate", 0, nil},
		unix.SYS_FALLOCATE:       {"fallocate", -1, nil},
		unix.SYS_FLOCK:           {"flock", -1, nil},
		unix.SYS_FCNTL:           {"fcntl", -1, isLock},
		unix.SYS_RENAMEAT:        {"renameat", 1, nil},
		unix.SYS_RENAMEAT2:       {"renameat2", 1, nil},
		unix.SYS_LINKAT:          {"linkat", 1, nil},
		unix.SYS_SYMLINKAT:       {"symlinkat", 0, nil},
		unix.SYS_UNLINKAT:        {"unlinkat", 1, nil},
		unix.SYS_MKDIRAT:         {"mkdirat", 1, nil},
		unix.SYS_MKNODAT:         {"mknodat", 1, nil},
		unix.SYS_FCHMOD:          {"fchmod", -1, nil},
		unix.SYS_FCHMODAT:        {"fchmodat", 1, nil},
		unix.SYS_FCHMODAT2:       {"fchmodat2", 1, nil},
		unix.SYS_FCHOWN:          {"fchown", -1, nil},
		unix.SYS_FCHOWNAT:        {"fchownat", 1, nil},
		unix.SYS_UTIMENSAT:       {"utimensat", 1, nil},
		unix.SYS_FSETXATTR:       {"fsetxattr", -1, nil},

		unix.SYS_CLONE:             {"clone", -1, isProcess},
		unix.SYS_CLONE3:            {"clone3", -1, nil},
		unix.SYS_EXECVE:            {"execve", 0, nil},
		unix.SYS_EXECVEAT:          {"execveat", 1, nil},
		unix.SYS_WAIT4:             {"wait4", -1, nil},
		unix.SYS_WAITID:            {"waitid", -1, nil},
		unix.SYS_KILL:              {"kill", -1, nil},
		unix.SYS_PIDFD_OPEN:        {"pidfd_open", -1, nil},
		unix.SYS_PIDFD_SEND_SIGNAL: {"pidfd_send_signal", -1, nil},
		unix.SYS_PIDFD_GETFD:       {"pidfd_getfd", -1, nil},
		unix.SYS_SETPGID:           {"setpgid", -1, nil},
		unix.SYS_EXIT_GROUP:        {"exit_group", -1, nil},

		unix.SYS_SOCKET:     {"socket", -1, nil},
		unix.SYS_SOCKETPAIR: {"socketpair", -1, nil},
		unix.SYS_BIND:       {"bind", -1, nil},
		unix.SYS_LISTEN:     {"listen", -1, nil},
		unix.SYS_ACCEPT4:    {"accept4", -1, nil},
		unix.SYS_CONNECT:    {"connect", -1, nil},
		unix.SYS_SENDTO:     {"sendto", -1, nil},
		unix.SYS_SENDMSG:    {"sendmsg", -1, nil},
		unix.SYS_RECVFROM:   {"recvfrom", -1, nil},
		unix.SYS_RECVMSG:    {"recvmsg", -1, nil},
		unix.SYS_SETSOCKOPT: {"setsockopt", -1, nil},
		unix.SYS_SHUTDOWN:   {"shutdown", -1, nil},

		unix.SYS_SETNS:   {"setns", -1, nil},
		unix.SYS_UNSHARE: {"unshare", -1, nil},
		unix.SYS_MOUNT:   {"mount", 1, nil},
		unix.SYS_UMOUNT2: {"umount2", 0, nil},
	}
	maps.Copy(m, older())
	return m
}

// isLock tells the locking commands of fcntl.
func isLock(args [6]uint64) bool {
	switch args[1] {
	case unix.F_SETLK, unix.F_SETLKW, unix.F_OFD_SETLK, unix.F_OFD_SETLKW:
		return true
	default:
		return false
	}
}

// isProcess tells a clone that makes a process from one that makes a thread. The flags
// come first on both architectures.
func isProcess(args [6]uint64) bool { return args[0]&unix.CLONE_THREAD == 0 }
