// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wake_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/internal/host/wake"
)

// TestSignal: raising never blocks, and any number of times before somebody looks is one look; one
// that is raised during a look is another.
func TestSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := wake.New()
		for range 3 {
			s.Raise()
		}
		start := time.Now()
		if !s.Await(t.Context(), time.Hour, time.Second) || time.Since(start) != time.Second {
			t.Errorf("a raised signal is seen after %s", time.Since(start))
		}
		start = time.Now()
		if !s.Await(t.Context(), time.Minute, 0) || time.Since(start) != time.Minute {
			t.Errorf("without another one the next look is after %s", time.Since(start))
		}
		go func() {
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble's own clock
			s.Raise()
		}()
		start = time.Now()
		if !s.Await(t.Context(), time.Minute, 0) || time.Since(start) != time.Second {
			t.Errorf("one that is raised meanwhile is seen after %s", time.Since(start))
		}
		s.Raise()
		s.Clear()
		s.Clear() // never blocks, either
		start = time.Now()
		if !s.Await(t.Context(), time.Minute, 0) || time.Since(start) != time.Minute {
			t.Errorf("what was cleared is seen after %s", time.Since(start))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s.Await(ctx, time.Minute, 0) {
			t.Error("there is a look after the end")
		}
	})
}
