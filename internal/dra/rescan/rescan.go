// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rescan is how a device manager looks at the host again and again: soon after something may
// have changed, at the latest after an interval, and with each problem told once.
//
// It owns Signal, by which the rest of the wing is woken, too; no device and no configuration. It must
// not know what is looked at.
//
// Invariants: a change that is signalled during a look causes another one; a kernel that stops
// telling of changes is followed anew, spaced, for as long as the manager runs.
//
// Implements: architecture 4.5; spec/dra.md decision 3 (devices are scanned again on signals and by
// a slow timer).
package rescan

import (
	"context"
	"time"
)

// Signal holds at most one wish to look again.
type Signal chan struct{}

// NewSignal makes a Signal that nobody has raised.
func NewSignal() Signal { return make(Signal, 1) }

// Raise has whoever waits look again, soon. It never blocks.
func (s Signal) Raise() {
	select {
	case s <- struct{}{}:
	default: // it is about to look anyway
	}
}

// Await waits for the signal, for the time of interval at most, and then for that of quiet, so that
// changes which come together are answered by one look. It is false when ctx ended.
func (s Signal) Await(ctx context.Context, interval, quiet time.Duration) bool {
	if !wait(ctx, s, interval) || !wait(ctx, nil, quiet) {
		return false
	}
	select {
	case <-s:
	default:
	}
	return true
}

// wait is false when ctx ended.
func wait(ctx context.Context, signal <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-signal:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// Pauses between attempts to follow the kernel.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Follow has the kernel raise the signal until ctx ends; lost is told why it stopped doing so.
func (s Signal) Follow(ctx context.Context, watch func(context.Context, func()) error, lost func(error)) {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := watch(ctx, s.Raise)
		if ctx.Err() != nil {
			return
		}
		lost(err)
		if !wait(ctx, nil, pause) {
			return
		}
		s.Raise() // what happened meanwhile was not told
	}
}

// Problems are what was told, by what it is about. The zero value is ready.
type Problems struct{ told map[string]string }

// Tell tells each problem that is new, and with nil each that is over.
func (p *Problems) Tell(now map[string]error, tell func(about string, err error)) {
	if p.told == nil {
		p.told = map[string]string{}
	}
	for about, err := range now {
		if text := err.Error(); p.told[about] != text {
			p.told[about] = text
			tell(about, err)
		}
	}
	for about := range p.told {
		if _, ok := now[about]; !ok {
			delete(p.told, about)
			tell(about, nil)
		}
	}
}
