// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package ptrace

import "golang.org/x/sys/unix"

// older are the calls that younger architectures are spared.
func older() map[uint64]call {
	return map[uint64]call{
		unix.SYS_OPEN:    {"open", 0, nil},
		unix.SYS_CREAT:   {"creat", 0, nil},
		unix.SYS_RENAME:  {"rename", 0, nil},
		unix.SYS_LINK:    {"link", 0, nil},
		unix.SYS_SYMLINK: {"symlink", 0, nil},
		unix.SYS_UNLINK:  {"unlink", 0, nil},
		unix.SYS_MKDIR:   {"mkdir", 0, nil},
		unix.SYS_RMDIR:   {"rmdir", 0, nil},
		unix.SYS_MKNOD:   {"mknod", 0, nil},
		unix.SYS_CHMOD:   {"chmod", 0, nil},
		unix.SYS_CHOWN:   {"chown", 0, nil},
		unix.SYS_LCHOWN:  {"lchown", 0, nil},
		unix.SYS_UTIMES:  {"utimes", 0, nil},
		unix.SYS_FORK:    {"fork", -1, nil},
		unix.SYS_VFORK:   {"vfork", -1, nil},
		unix.SYS_ACCEPT:  {"accept", -1, nil},
	}
}
