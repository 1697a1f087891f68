// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brief prepares the Go runtime for a process that lives for milliseconds:
// weft-cni and weft-planner, of which a node starts several for every pod. What such a
// process costs is mostly the pages that it touches first and the threads that it starts
// and wakes.
//
// It owns three settings of the calling process and knows nothing else of Weft.
//
// Implements: architecture 2 (what weft-cni may cost), docs/performance.md.
package brief

import (
	"errors"
	"os"
	"runtime"
)

// stack is what the main goroutine will need at its deepest, in bytes. Growing there in
// steps copies the stack five times and touches twice its pages.
const stack = 24 << 10

// watchSlack is by how much the runtime's watching thread may oversleep, in nanoseconds.
// With one processor it has little to watch over, and looks fifty times, 20 µs apart,
// whenever the program goes on after a wait: two thirds of all that a call wakes up for.
const watchSlack = "2000000"

// Process is called first in main.
func Process() {
	// The work is one sequence; a second processor would only start threads to look for more.
	runtime.GOMAXPROCS(1)
	_ = slackenWatch() // without it all goes on as well
	grow(1)
}

// slackenWatch sets the timer slack of the watching thread, which is the one that the
// runtime starts first: the kernel lists threads in that order. Any other thread sleeps on
// events alone, so that hitting one would do no harm. It needs CAP_SYS_NICE.
func slackenWatch() error {
	threads, err := threads()
	if err != nil {
		return err
	}
	f, err := os.OpenFile("/proc/"+threads[1]+"/timerslack_ns", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(watchSlack)
	return errors.Join(err, f.Close())
}

// threads lists this process' threads, two at least, oldest first.
func threads() ([]string, error) {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err == nil && len(names) < 2 {
		err = errors.New("list threads: the runtime has started none")
	}
	return names, err
}

//go:noinline
func grow(i int) byte {
	var b [stack]byte
	b[i] = 1
	return b[i/2]
}
