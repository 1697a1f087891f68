// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package start is imported for its effect, by the mains of programs that live for
// milliseconds and by nothing else: it prepares the Go runtime before other packages are
// initialised, which is when such a program touches many of its pages.
//
// It owns the number of processors and the place of the heap. Invariants: it imports next
// to nothing, since a package is initialised after what it imports, and those that are
// ready in the order of their names; a process in which nothing of this succeeds does
// the same work, slower.
//
// It knows nothing of Weft, and must not be imported by a package that a test or a
// long-lived program links.
//
// Implements: architecture 2 (what weft-cni may cost), docs/performance.md.
package start

import (
	"runtime"
	"syscall"
	"unsafe"
)

var _ = prepare()

func prepare() struct{} {
	// The work is one sequence; a second processor would only start threads to look for more.
	runtime.GOMAXPROCS(1)
	moveHeap() // of the processor that is left
	return struct{}{}
}

const (
	huge = 2 << 20 // bytes of a huge page
	// filler is the largest piece that comes out of a processor's own cache of pages, as
	// small objects do: what is left there would otherwise be used first.
	filler = 15 << 13
	// most fillers are needed from one huge page to the next. Where the collector runs it may give
	// out the addresses of those before, and there would be no end.
	most = huge/filler + 2
)

// moveHeap has the heap go on in one huge page: one fault instead of a hundred, each of
// which takes a virtual machine some microseconds. The rest of the page before is given
// away untouched, so it costs addresses and no memory. Where there is no huge page to be
// had nothing is lost.
func moveHeap() (fillers int) {
	end := address(allocate(filler)) + filler
	page := (end + huge - 1) &^ (huge - 1)
	for fillers = 1; end <= page && fillers < most; fillers++ {
		end = max(end, address(allocate(filler))+filler)
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_MADVISE, page, huge, syscall.MADV_HUGEPAGE)
	return fillers
}

//go:noinline
func allocate(n int) []byte { return make([]byte, n) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
