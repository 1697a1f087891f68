// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// Sharing is a Source whose plans are made in one process at once, and share its memory. One
// that is none has one plan at a time.
type Sharing interface {
	Source
	// Size is how large a NAD's configuration is, as far as that is known without asking
	// anybody; 0 when it is not.
	Size(ref plan.NADRef) int
	// Hold waits for room for so many bytes of configurations, of which there are at least
	// plan.MaxConfs. Free gives some of it back.
	Hold(ctx context.Context, bytes int) error
	Free(bytes int)
}

// smallPlan is what a plan may have of configurations without asking for room: as many plans
// as there are connections are no burden then, and none of them waits behind a large one.
const smallPlan = 16 << 10

// expect is room for NADs that are going to be asked for, as far as their size is known.
func (a *answer) expect(ctx context.Context, refs []plan.NADRef) error {
	s, ok := a.src.(Sharing)
	if !ok {
		return nil
	}
	size := a.bytes
	for _, ref := range refs {
		size += s.Size(ref)
	}
	return a.room(ctx, size)
}

// room refuses NADs that no plan can have all of, and waits for room for others. How often each
// is attached is not known yet, so it holds what the largest plan takes: whoever holds some and
// waits for more may wait for another one that does.
func (a *answer) room(ctx context.Context, size int) error {
	if size > plan.MaxConfs {
		return plan.TooLarge(a.in, size)
	}
	if a.held > 0 || size <= smallPlan {
		return nil
	}
	return a.hold(ctx, plan.MaxConfs)
}

// settle has as much room as the plan takes until its answer is written.
func (a *answer) settle(ctx context.Context, p *plan.Plan) error {
	size := min(max(p.ConfBytes(), a.bytes), plan.MaxConfs)
	switch s, _ := a.src.(Sharing); {
	case a.held > 0:
		s.Free(a.held - size)
		a.held = size
	case size > smallPlan:
		return a.hold(ctx, size)
	}
	return nil
}

func (a *answer) hold(ctx context.Context, size int) error {
	s, ok := a.src.(Sharing)
	if !ok {
		return nil
	}
	if err := s.Hold(ctx, size); err != nil {
		object := "planner"
		if a.in.Pod != nil {
			object = a.ref().String()
		}
		return &fault.Fault{
			Code: fault.TryLater, Object: object,
			Text: "there was no room in time for the configurations of its networks, beside those of other pods that are being planned", Err: err,
		}
	}
	a.held = size
	return nil
}

// free gives back all room.
func (a *answer) free() {
	if s, ok := a.src.(Sharing); ok && a.held > 0 {
		s.Free(a.held)
	}
	a.held = 0
}
