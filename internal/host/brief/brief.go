// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brief prepares the Go runtime for a process that lives for milliseconds:
// weft-cni and weft-planner, of which a node starts several for every pod. What such a
// process costs is mostly the pages that it touches first and the threads that it starts.
//
// It owns the collector of the calling process (what must be done before main is in
// internal/host/brief/start), and ways to open files and to wait that
// leave the runtime's poller out: the first file or timer that needs the poller costs a
// thread, which then takes part in every system call that waits. It knows nothing else of
// Weft.
//
// Implements: architecture 2 (what weft-cni may cost), docs/performance.md.
package brief

import (
	"math"
	"runtime/debug"
	"syscall"
)

// Process is called first in main. It has the collector work as by default: GOGC and GOMEMLIMIT in the
// environment are meant for the container runtime, and inherited they would have a process of a few
// megabytes do nothing but collect. Without them nothing is to be done, which costs least.
func Process() {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if _, set := syscall.Getenv(name); set {
			debug.SetGCPercent(100)
			debug.SetMemoryLimit(math.MaxInt64)
			return
		}
	}
}
