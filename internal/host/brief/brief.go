// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brief prepares the Go runtime for a process that lives for milliseconds:
// weft-cni and weft-planner, of which a node starts several for every pod. What such a
// process costs is mostly the pages that it touches first and the threads that it starts.
//
// It owns the settings of the calling process, and ways to open files and to wait that
// leave the runtime's poller out: the first file or timer that needs the poller costs a
// thread, which then takes part in every system call that waits. It knows nothing else of
// Weft.
//
// Implements: architecture 2 (what weft-cni may cost), docs/performance.md.
package brief

import (
	"runtime"
	"syscall"
	"unsafe"
)

// stack is what the main goroutine will need at its deepest, in bytes. Growing there in
// steps copies the stack five times and touches twice its pages.
const stack = 24 << 10

// Process is called first in main.
func Process() {
	// The work is one sequence; a second processor would only start threads to look for more.
	runtime.GOMAXPROCS(1)
	moveHeap() // of the processor that is left
	grow(1)
}

//go:noinline
func grow(i int) byte {
	var b [stack]byte
	b[i] = 1
	return b[i/2]
}

const (
	huge = 2 << 20 // bytes of a huge page
	// filler is the largest piece that comes out of a processor's own cache of pages, as
	// small objects do: what is left there would otherwise be used first.
	filler = 15 << 13
)

// moveHeap has the heap go on in one huge page: one fault instead of a hundred, each of
// which takes a virtual machine some microseconds. The rest of the page before is given
// away untouched, so it costs addresses and no memory. Where there is no huge page to be
// had nothing is lost.
func moveHeap() {
	end := address(allocate(filler)) + filler
	page := (end + huge - 1) &^ (huge - 1)
	for end <= page {
		end = max(end, address(allocate(filler))+filler)
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_MADVISE, page, huge, syscall.MADV_HUGEPAGE)
}

//go:noinline
func allocate(n int) []byte { return make([]byte, n) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
