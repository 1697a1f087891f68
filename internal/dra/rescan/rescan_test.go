// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rescan_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/internal/dra/rescan"
)

// TestSignal: raising never blocks, and any number of times before somebody looks is one look; one
// that is raised during a look is another.
func TestSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rescan.NewSignal()
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
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s.Await(ctx, time.Minute, 0) {
			t.Error("there is a look after the end")
		}
	})
}

// TestProblems: each problem is told once, another text is another one, and its end is told once.
func TestProblems(t *testing.T) {
	var p rescan.Problems
	var told []string
	tell := func(about string, err error) {
		if err != nil {
			about += ": " + err.Error()
		}
		told = append(told, about)
	}
	for _, now := range []map[string]error{{"pf": errors.New("one")}, {"pf": errors.New("one")}, {"pf": errors.New("two")}, nil, nil} {
		p.Tell(now, tell)
	}
	if want := []string{"pf: one", "pf: two", "pf"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
