// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brief prepares the Go runtime for a process that lives for milliseconds:
// weft-cni and weft-planner, of which a node starts several for every pod. What such a
// process costs is mostly the pages that it touches first and the threads that it starts.
//
// It owns two settings of the calling process and knows nothing else of Weft.
//
// Implements: architecture 2 (what weft-cni may cost), docs/performance.md.
package brief

import "runtime"

// stack is what the main goroutine will need at its deepest, in bytes. Growing there in
// steps copies the stack five times and touches twice its pages.
const stack = 24 << 10

// Process is called first in main.
func Process() {
	// The work is one sequence; a second processor would only start threads to look for more.
	runtime.GOMAXPROCS(1)
	grow(1)
}

//go:noinline
func grow(i int) byte {
	var b [stack]byte
	b[i] = 1
	return b[i/2]
}
