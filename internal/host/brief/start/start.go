// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package start is imported for its effect, by the mains of programs that live for
// milliseconds and by nothing else: it prepares the Go runtime before other packages are
// initialised, which is when such a program touches many of its pages.
//
// It owns the number of processors, the main goroutine's stack and the place of the heap. Invariants: it imports next
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
	grow(-1)
	// The work is one sequence; a second processor would only start threads to look for more.
	runtime.GOMAXPROCS(1)
	moveHeap() // of the processor that is left
	return struct{}{}
}

const (
	huge = 2 << 20 // bytes of a huge page
	// A processor takes small objects out of a cache of pages of its own, and what is left there
	// would be used first. filler is the largest piece that comes out of it, crumb the smallest.
	filler = 15 << 13
	crumb  = 1 << 13
	// most fillers and crumbs are needed from one huge page to the next. Where the collector runs it
	// may give out the addresses of those before, and there would be no end.
	mostFillers = huge/filler + 2
	mostCrumbs  = filler / crumb * 4
)

// moveHeap has the heap go on in one huge page: one fault instead of a hundred, each of
// which takes a virtual machine some microseconds. The rest of the page before is given
// away untouched, so it costs addresses and no memory. Where there is no huge page to be
// had nothing is lost.
func moveHeap() (fillers, crumbs int) {
	end := address(allocate(filler)) + filler
	page := (end + huge - 1) &^ (huge - 1)
	for fillers = 1; end <= page && fillers < mostFillers; fillers++ {
		end = max(end, address(allocate(filler))+filler)
	}
	for address(allocate(crumb)) < page && crumbs < mostCrumbs {
		crumbs++
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_MADVISE, page, huge, syscall.MADV_HUGEPAGE)
	return fillers, crumbs
}

//go:noinline
func allocate(n int) []byte { return make([]byte, n) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// stack is what the main goroutine will need at its deepest, in bytes. Growing there in
// steps copies the stack five times and touches twice its pages.
const stack = 24 << 10

// grow has room for that when it is called, and touches none of it for a negative number.
//
//go:noinline
func grow(i int) byte {
	if i < 0 {
		return 0
	}
	var b [stack]byte
	b[i] = 1
	return b[i/2]
}
