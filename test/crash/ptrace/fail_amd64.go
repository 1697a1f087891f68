// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package ptrace

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// skip makes the call that a thread is about to enter one that the kernel does not have.
func skip(id int) error {
	return change(id, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// setResult is what a call that has been skipped gives.
func setResult(id int, errno syscall.Errno) error {
	return change(id, func(r *unix.PtraceRegs) { r.Rax = -uint64(errno) })
}

func change(id int, edit func(*unix.PtraceRegs)) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(id, &r); err != nil {
		return fmt.Errorf("read registers: %w", err)
	}
	edit(&r)
	if err := unix.PtraceSetRegs(id, &r); err != nil {
		return fmt.Errorf("write registers: %w", err)
	}
	return nil
}
