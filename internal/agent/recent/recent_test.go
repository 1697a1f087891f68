// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// clock is a time that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) forward(d time.Duration) { c.at = c.at.Add(d) }

func TestCalls(t *testing.T) {
	c := &clock{start}
	r := New(c.now)
	if got := r.Calls(); len(got) != 0 {
		t.Errorf("before any call: %v", got)
	}
	r.Call("DEL", time.Hour, true)
	c.forward(30 * time.Second)
	for i := range 100 {
		r.Call("ADD", time.Duration(i+1)*time.Millisecond, i%10 == 0)
	}
	c.forward(30*time.Second + 1) // the DEL is older than a minute now
	want := []Calls{
		{Name: "ADD", Total: 100, TotalFailed: 10, Span: Window, Count: 100, Failed: 10, P50: 50 * time.Millisecond, P99: 99 * time.Millisecond, Max: 100 * time.Millisecond},
		{Name: "DEL", Total: 1, TotalFailed: 1, Span: Window},
	}
	if diff := cmp.Diff(want, r.Calls()); diff != "" {
		t.Error(diff)
	}
	r.Call("DEL", time.Second, false)
	if got := r.Calls()[1]; got.Count != 1 || got.P50 != time.Second || got.P99 != time.Second || got.Total != 2 {
		t.Errorf("a single call: %+v", got)
	}
}

// Too many calls for what is kept: the span says of how long a time the numbers are.
func TestCallsWithoutEnd(t *testing.T) {
	c := &clock{start}
	r := New(c.now)
	for range 3 * maxSamples {
		c.forward(time.Millisecond)
		r.Call("plan", time.Millisecond, false)
	}
	got := r.Calls()[0]
	if got.Total != 3*maxSamples || got.Count != maxSamples || got.Span != (maxSamples-1)*time.Millisecond {
		t.Errorf("%+v", got)
	}
	for i := range 2 * maxNames {
		r.Call(fmt.Sprint(i), 0, false)
	}
	if all := r.Calls(); len(all) != maxNames+1 {
		t.Errorf("%d names are kept", len(all))
	}
}

func TestFaults(t *testing.T) {
	c := &clock{start}
	r := New(c.now)
	r.Fault("planner", "ns/web", "no such\nnetwork \x1b[2J")
	c.forward(time.Second)
	r.Fault("upkeep", "", "other")
	c.forward(time.Second)
	r.Fault("planner", "ns/web", "no such\nnetwork \x1b[2J")
	want := []Fault{
		{At: start.Add(2 * time.Second), First: start, Count: 2, Part: "planner", Pod: "ns/web", Text: "no such network \uFFFD[2J"},
		{At: start.Add(time.Second), First: start.Add(time.Second), Count: 1, Part: "upkeep", Text: "other"},
	}
	if diff := cmp.Diff(want, r.Faults()); diff != "" {
		t.Error(diff)
	}
	for i := range 2 * maxFaults {
		r.Fault("p", "", fmt.Sprint(i)+strings.Repeat("x", 2*maxText))
	}
	all := r.Faults()
	if len(all) != maxFaults || !strings.HasPrefix(all[0].Text, fmt.Sprint(2*maxFaults-1)) || len(all[0].Text) > maxText {
		t.Errorf("%d faults, the first %q", len(all), all[0].Text)
	}
}

// Whatever a part warns of is a fault, and the log is as it was.
func TestHandler(t *testing.T) {
	r := New((&clock{start}).now)
	var out bytes.Buffer
	without := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError})
	log := slog.New(r.Handler(without, func(s string) string { return strings.ReplaceAll(s, "secret", "*") })).With("part", "reconcile")
	log.Info("nothing of note")
	for attempt := range 3 {
		log.Warn("status is not right", "namespace", "ns", "pod", "web", "error", errors.New("secret: 403"), "attempts", attempt)
	}
	log.Warn("hook was too late", "pod_namespace", "ns", "pod", "db", "error", errors.New("2 s"))
	log.WithGroup("g").Error("it is broken", "dir", "/x")
	want := []Fault{
		{At: start, First: start, Count: 1, Part: "reconcile", Text: "it is broken: dir /x"},
		{At: start, First: start, Count: 1, Part: "reconcile", Pod: "ns/db", Text: "hook was too late: 2 s"},
		{At: start, First: start, Count: 3, Part: "reconcile", Pod: "ns/web", Text: "status is not right: *: 403"},
	}
	if diff := cmp.Diff(want, r.Faults()); diff != "" {
		t.Error(diff)
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "part=reconcile g.dir=/x") {
		t.Errorf("log: %s", got)
	}
}
