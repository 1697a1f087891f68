// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief

import (
	"context"
	"syscall"
	"time"
)

// WithTimeout is context.WithTimeout without a timer: one alone starts the runtime's poller,
// and a thread that waits in it. So Done does not tell of the end; who waits uses Sleep, or
// looks at Err when the Deadline is there.
func WithTimeout(ctx context.Context, timeout time.Duration) context.Context {
	at := time.Now().Add(timeout)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(at) {
		at = earlier
	}
	return &clock{Context: ctx, at: at}
}

// clock is a context that ends by the clock.
type clock struct {
	context.Context //nolint:containedctx // it is one
	at              time.Time
}

// Deadline is the earlier of its own and the outer one.
func (c *clock) Deadline() (time.Time, bool) { return c.at, true }

// Err looks at the clock.
func (c *clock) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if time.Now().Before(c.at) {
		return nil
	}
	return context.DeadlineExceeded
}

// Sleep waits for d, or until ctx ends; the error is ctx's cause then.
func Sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() == nil {
		if deadline, ok := ctx.Deadline(); ok {
			d = min(d, time.Until(deadline))
		}
		if ctx.Done() == nil {
			pause(d)
		} else {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
	}
	if ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return ctx.Err()
}

// pause is time.Sleep without a timer. A signal that wakes it early does no harm: who
// sleeps looks again at what it waits for.
func pause(d time.Duration) {
	if d > 0 {
		t := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&t, nil)
	}
}
