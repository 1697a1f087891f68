// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package ptrace

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Register sets of the kernel's elf.h.
const (
	general    = 1     // NT_PRSTATUS
	systemCall = 0x404 // NT_ARM_SYSTEM_CALL: the number alone
)

// skip makes the call that a thread is about to enter one that the kernel does not have.
func skip(id int) error {
	none := int32(-1)
	part := unix.Iovec{Base: (*byte)(unsafe.Pointer(&none)), Len: uint64(unsafe.Sizeof(none))}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(id), systemCall, uintptr(unsafe.Pointer(&part)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("write system call: %w", errno)
	}
	return nil
}

// setResult is what a call that has been skipped gives.
func setResult(id int, errno syscall.Errno) error {
	var r unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(id, general, &r); err != nil {
		return fmt.Errorf("read registers: %w", err)
	}
	r.Regs[0] = -uint64(errno)
	if err := unix.PtraceSetRegSetArm64(id, general, &r); err != nil {
		return fmt.Errorf("write registers: %w", err)
	}
	return nil
}
