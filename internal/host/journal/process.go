// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/weftnet/weft/internal/host/brief"
)

// BootID names this boot of the machine, "" when the kernel does not say.
func BootID() string {
	b, err := brief.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// Self is the calling process. Its Start is 0 when /proc cannot be read.
func Self() Process {
	_, start, err := processStat(os.Getpid())
	if err != nil {
		return Process{PID: os.Getpid()}
	}
	return Process{PID: os.Getpid(), Start: start}
}

// Alive says whether that very process is up: a later one with its PID is not, and
// a zombie, which holds no descriptors, is not either.
func Alive(p Process) bool {
	state, start, err := processStat(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// processStat reads two fields of /proc/<pid>/stat. The second field, the command in
// parentheses, may hold any bytes, so the others are counted from its end.
func processStat(pid int) (state byte, start uint64, err error) {
	b, err := brief.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	const afterCommand = 3 // fields are counted from 1; this is the first after the command
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= 22-afterCommand {
		return 0, 0, fmt.Errorf("read process %d: its stat has %d fields", pid, len(fields))
	}
	start, err = strconv.ParseUint(string(fields[22-afterCommand]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	return fields[0][0], start, nil
}

// Holder is a process with a descriptor that carries a lock.
type Holder struct {
	Process
	// Inherited tells a delegate, or a child of one, from Weft itself: Weft's own
	// descriptors are closed on exec, those that it hands to delegates are not.
	Inherited bool
}

// Holders gives the processes through whose descriptors lock's file is locked now.
// Those that merely wait for it are none. It walks /proc, which takes milliseconds:
// it is for a lock that does not come free. Processes of other users are not seen
// without privilege.
func Holders(lock *os.File) ([]Holder, error) {
	want, err := lock.Stat()
	if err != nil {
		return nil, fmt.Errorf("find holders: %w", err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("find holders: %w", err)
	}
	// A descriptor from Begin was opened under the temporary name.
	name := strings.TrimSuffix(filepath.Base(lock.Name()), ".tmp")
	var out []Holder
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		holds, inherited := holds(dir, name, want)
		if !holds {
			continue
		}
		if _, start, err := processStat(pid); err == nil {
			out = append(out, Holder{Process: Process{PID: pid, Start: start}, Inherited: inherited})
		}
	}
	return out, nil
}

// holds looks through one process' descriptors. One that went away has none.
func holds(proc, name string, want os.FileInfo) (holds, inherited bool) {
	fds, _ := os.ReadDir(proc + "/fd")
	inherited = true
	for _, fd := range fds {
		// The link's text comes first: it never waits for a file system that hangs.
		link, err := os.Readlink(proc + "/fd/" + fd.Name())
		if err != nil || !strings.HasPrefix(filepath.Base(link), name) {
			continue
		}
		is, err := os.Stat(proc + "/fd/" + fd.Name())
		if err != nil || !os.SameFile(is, want) {
			continue
		}
		info, err := brief.ReadFile(proc + "/fdinfo/" + fd.Name())
		if err != nil || !bytes.Contains(info, []byte("FLOCK")) {
			continue
		}
		holds = true
		if closedOnExec(info) {
			inherited = false
		}
	}
	return holds, inherited && holds
}

// closedOnExec reads the flags line of an fdinfo file, which is octal.
func closedOnExec(info []byte) bool {
	for line := range bytes.Lines(info) {
		if rest, ok := bytes.CutPrefix(line, []byte("flags:")); ok {
			flags, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 8, 64)
			return err == nil && flags&syscall.O_CLOEXEC != 0
		}
	}
	return false
}
