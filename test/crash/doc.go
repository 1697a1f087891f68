// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crash holds the crash suite: the real weft-cni is killed at every file, process
// and socket call that it makes, and what it leaves must be undone by the next DEL or GC.
//
// It owns the scenes (recording delegates, and standard plugins in namespaces), the walk of
// the kill over a run (test/crash/ptrace) and the list of what may be left: nothing.
//
// What a pass says about one kill point: every ADD of a delegate that began was followed by
// a DEL that came to its end; no file of a delegate's, no record, mark, temporary or quarantined
// file, lock, process, link or address is left; a new ADD of the same sandbox works.
//
// A kill point that fails is run alone by its name, the number of the call at its end:
//
//	go test ./test/crash -run 'TestCrash/ADD_then_DEL/^137$' -v
//
// The number of a call can shift by a few between runs, because threads take turns as the
// kernel likes; the name of the call that was killed is printed.
//
// It must not know how the hands are built: it sees processes, files and links.
//
// Implements: architecture 1 (law 2), 4.3 and 5; spec/cni.md rules 4 and 5.
package crash
