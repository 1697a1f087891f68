// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proc starts other programs, waits for them and ends them, by system calls alone.
//
// It owns a child from its start until it is reaped. os/exec would do the same with a
// goroutine a pipe and the runtime's poller; in a process that lives for milliseconds those
// cost more than the work (internal/host/brief).
//
// Invariants: a child leads a process group of its own and inherits the descriptors that it
// is given, no other. A group is killed only while its leader has not been reaped, so that
// its number cannot have become another's.
//
// It knows nothing of CNI, plugins and planners.
//
// Implements: spec/cni.md rules 2 and 5; architecture 4.3.
package proc
