// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package start is imported for its effect, by the mains of programs that live for
// milliseconds and by nothing else: it prepares the Go runtime before other packages are
// initialised, which is when such a program touches many of its pages.
//
// It owns the number of processors, the main goroutine's stack and the first pages of the heap. Invariants: it imports next
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
	_, _ = populate() // what the processor that is left allocates from
	return struct{}{}
}

const (
	heap = 256 << 10 // bytes of the heap that such a program comes to use
	page = 8 << 10   // of Go's heap, the smallest piece that memory is taken in

	populateWrite = 23 // MADV_POPULATE_WRITE of madvise(2), from Linux 5.14 on
)

// populate has the kernel give the heap its next pages at once: by a fault each they take several times
// as long. Where it cannot, they come by faults. (One huge page is one fault as well, but to clear
// all of it takes an ordinary machine longer than the faults that it saves.)
func populate() (from uintptr, err syscall.Errno) {
	from = address(allocate(page))
	_, _, err = syscall.RawSyscall(syscall.SYS_MADVISE, from, heap, populateWrite)
	return from, err
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
