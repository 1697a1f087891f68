// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wake is how what looks again and again is told to look soon.
//
// It owns Signal. It must not know what is looked at, nor why.
//
// Invariants: raising never blocks; any number of times before somebody looks is one look; what is
// raised during a look causes another one.
//
// Implements: architecture 3 (a leaf that all wings stand on).
package wake

import (
	"context"
	"time"
)

// Signal holds at most one wish to look again.
type Signal chan struct{}

// New makes a Signal that nobody has raised.
func New() Signal { return make(Signal, 1) }

// Raise has whoever waits look again, soon. It never blocks.
func (s Signal) Raise() {
	select {
	case s <- struct{}{}:
	default: // it is about to look anyway
	}
}

// Clear forgets what was raised, for who looks now.
func (s Signal) Clear() {
	select {
	case <-s:
	default:
	}
}

// Await waits for the signal, for the time of interval at most, and then for that of quiet, so that
// changes which come together are answered by one look. It is false when ctx ended.
func (s Signal) Await(ctx context.Context, interval, quiet time.Duration) bool {
	if !wait(ctx, s, interval) || !wait(ctx, nil, quiet) {
		return false
	}
	s.Clear()
	return true
}

// Pause waits for a time. It is false when ctx ended.
func Pause(ctx context.Context, d time.Duration) bool { return wait(ctx, nil, d) }

func wait(ctx context.Context, s Signal, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-s:
	case <-timer.C:
	}
	return ctx.Err() == nil
}
