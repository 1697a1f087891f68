// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
)

// order notes in which order things end.
type order struct{ ended chan string }

func (o order) component(name string) component {
	return task{name, func(ctx context.Context) error {
		<-ctx.Done()
		o.ended <- name
		return ctx.Err()
	}}
}

func newOrder() order { return order{make(chan string, 8)} }

func (o order) String() string {
	close(o.ended)
	var all []string
	for name := range o.ended {
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func TestFrontEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrder()
		ctx, cancel := context.WithCancel(t.Context())
		g := newGroup(ctx, slog.New(slog.DiscardHandler))
		g.goBack(o.component("back"))
		g.goFront(o.component("front"))
		cancel()
		err := g.wait(func(reason string) { o.ended <- "(" + reason + ")" })
		if got := o.String(); err != nil || got != "front (told to) back" && got != "(told to) front back" {
			t.Errorf("%v, ended in the order %s", err, got)
		}
	})
}

func TestOneFailureEndsAll(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		back bool
		run  func(context.Context) error
		want string
	}{
		"front fails":         {false, func(context.Context) error { return boom }, "bad: boom"},
		"back fails":          {true, func(context.Context) error { return boom }, "bad: boom"},
		"one ends by itself":  {true, func(context.Context) error { return nil }, "bad: ended by itself"},
		"its own cancelation": {false, func(context.Context) error { return context.Canceled }, "bad: context canceled"},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOrder()
			g := newGroup(t.Context(), slog.New(slog.DiscardHandler))
			g.goBack(o.component("back"))
			g.goFront(o.component("front"))
			start := g.goFront
			if c.back {
				start = g.goBack
			}
			start(task{"bad", c.run})
			var reason string
			err := g.wait(func(r string) { reason = r })
			if err == nil || err.Error() != c.want || reason != c.want {
				t.Errorf("%s: %v, reason %q", name, err, reason)
			}
			if got := o.String(); got != "front back" {
				t.Errorf("%s: ended in the order %s", name, got)
			}
		})
	}
}
