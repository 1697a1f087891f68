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
	"runtime"
	"syscall"
)

// stack is what the main goroutine will need at its deepest, in bytes. Growing there in
// steps copies the stack five times and touches twice its pages.
const stack = 24 << 10

// watchSlack is by how much the runtime's watching thread may oversleep, in nanoseconds: little
// beside a call, since it is the one that lends the processor on while a system call takes long.
// With one processor it has little to watch over, and looks fifty times, 20 µs apart,
// whenever the program goes on after a wait: half of all that a call wakes up for.
const watchSlack = "300000"

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
	fd, err := syscall.Open("/proc/"+threads[1]+"/timerslack_ns", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = syscall.Write(fd, []byte(watchSlack))
	return errors.Join(err, syscall.Close(fd))
}

// threads lists this process' oldest threads, two at least, oldest first. The os package
// would touch more memory for it than everything else here.
func threads() ([]string, error) {
	fd, err := syscall.Open("/proc/self/task", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var entries [512]byte
	n, err := syscall.ReadDirent(fd, entries[:])
	if err = errors.Join(err, syscall.Close(fd)); err != nil {
		return nil, err
	}
	_, _, names := syscall.ParseDirent(entries[:n], -1, nil)
	if len(names) < 2 {
		return nil, errors.New("list threads: the runtime has started none")
	}
	return names, nil
}

//go:noinline
func grow(i int) byte {
	var b [stack]byte
	b[i] = 1
	return b[i/2]
}
