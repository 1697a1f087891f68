// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// component is a part of the agent that runs.
type component interface {
	Run(ctx context.Context) error
	String() string
}

// task is a component that is a function.
type task struct {
	name string
	run  func(ctx context.Context) error
}

// Run implements component.
func (t task) Run(ctx context.Context) error { return t.run(ctx) }

func (t task) String() string { return t.name }

// errEnded is why the agent ends when a component does so without being told.
var errEnded = errors.New("ended by itself")

// group runs components of two ranks. Those of the front take work in and end first, so
// that what they have begun can be finished by those of the back. A component that fails
// ends all: the agent is started anew as a whole, which is the one state that is tried
// every day.
type group struct {
	log *slog.Logger

	front, back         sync.WaitGroup
	frontCtx, backCtx   context.Context
	failFront, failBack context.CancelCauseFunc

	mu   sync.Mutex
	errs []error
}

func newGroup(ctx context.Context, log *slog.Logger) *group {
	g := &group{log: log}
	g.frontCtx, g.failFront = context.WithCancelCause(ctx)
	g.backCtx, g.failBack = context.WithCancelCause(context.WithoutCancel(ctx))
	return g
}

func (g *group) goFront(c component) { g.front.Go(func() { g.run(g.frontCtx, c) }) }
func (g *group) goBack(c component)  { g.back.Go(func() { g.run(g.backCtx, c) }) }

func (g *group) run(ctx context.Context, c component) {
	err := c.Run(ctx)
	if err == nil && ctx.Err() == nil {
		err = errEnded
	}
	if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
		g.log.Debug("component has ended", "part", c.String())
		return
	}
	err = fmt.Errorf("%s: %w", c, err)
	g.mu.Lock()
	g.errs = append(g.errs, err)
	g.mu.Unlock()
	g.failFront(err)
}

// reason is what failed first, else that the agent was told to end.
func (g *group) reason() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.errs) > 0 {
		return g.errs[0].Error()
	}
	return "told to"
}

// wait waits until the agent is told to end or a component has failed, calls ending with
// the reason, and lets first the front end and then the back. The error joins what failed.
func (g *group) wait(ending func(reason string)) error {
	<-g.frontCtx.Done()
	ending(g.reason())
	g.front.Wait()
	g.failBack(context.Canceled)
	g.back.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...)
}
