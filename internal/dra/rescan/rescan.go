// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rescan is how a device manager looks at the host again and again: soon after something may
// have changed, at the latest after an interval, and with each problem told once.
//
// It owns no device and no configuration. It must not know what is looked at.
//
// Invariants: a kernel that stops telling of changes is followed anew, spaced, for as long as the
// manager runs; a problem is told when it is new, and when it is over.
//
// Implements: architecture 4.5; spec/dra.md decision 3 (devices are scanned again on signals and by
// a slow timer).
package rescan

import (
	"context"
	"time"

	"github.com/weftnet/weft/internal/host/wake"
)

// Pauses between attempts to follow the kernel.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Follow has the kernel raise the signal until ctx ends; lost is told why it stopped doing so.
func Follow(ctx context.Context, s wake.Signal, watch func(context.Context, func()) error, lost func(error)) {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := watch(ctx, s.Raise)
		if ctx.Err() != nil {
			return
		}
		lost(err)
		if !wake.Pause(ctx, pause) {
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
