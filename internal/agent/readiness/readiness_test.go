// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package readiness_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/agent/readiness"
)

// step is one event and what the machine says after it.
type step struct {
	set     string // the condition, "" = Stop
	ok      bool
	why     string
	change  bool     // Changed tells
	publish bool     // conf_published has its turn
	reasons []string // nil = ready
}

func TestSequences(t *testing.T) {
	const (
		records, caches, planner = readiness.RecordsLoaded, readiness.CachesSynced, readiness.PlannerListening
		primary, published       = readiness.PrimaryConf, readiness.ConfPublished
	)
	up := func(more ...step) []step {
		return append([]step{
			{records, true, "", true, false, []string{"caches_synced: not yet", "planner_listening: not yet", "primary_conf: not yet", "conf_published: not yet"}},
			{caches, true, "", true, false, []string{"planner_listening: not yet", "primary_conf: not yet", "conf_published: not yet"}},
			{planner, true, "", true, false, []string{"primary_conf: not yet", "conf_published: not yet"}},
			{primary, true, "", true, true, []string{"conf_published: not yet"}},
			{published, true, "", true, true, nil},
		}, more...)
	}
	tests := map[string][]step{
		"start-up in order": up(),
		"in any order": {
			{published, true, "", true, false, []string{"records_loaded: not yet", "caches_synced: not yet", "planner_listening: not yet", "primary_conf: not yet"}},
			{primary, true, "", true, false, []string{"records_loaded: not yet", "caches_synced: not yet", "planner_listening: not yet"}},
			{planner, true, "", true, false, []string{"records_loaded: not yet", "caches_synced: not yet"}},
			{records, true, "", true, false, []string{"caches_synced: not yet"}},
			{caches, true, "", true, true, nil},
		},
		"the primary conf goes and comes back": up(
			step{primary, false, "file is gone", true, false, []string{"primary_conf: file is gone"}},
			step{primary, false, "file is gone", false, false, []string{"primary_conf: file is gone"}},
			step{primary, false, "file is broken", true, false, []string{"primary_conf: file is broken"}},
			step{primary, true, "left over", true, true, nil},
			step{primary, true, "", false, true, nil},
		),
		"publishing fails, which is its own turn": up(
			step{published, false, "disk is full", true, true, []string{"conf_published: disk is full"}},
			step{published, false, "", true, true, []string{"conf_published: does not hold"}},
			step{published, true, "", true, true, nil},
		),
		"stop is for good": up(
			step{"", false, "terminated", true, false, []string{"stopping: terminated"}},
			step{"", false, "killed", false, false, []string{"stopping: terminated"}},
			step{caches, false, "stopped", true, false, []string{"stopping: terminated", "caches_synced: stopped"}},
			step{caches, true, "", true, false, []string{"stopping: terminated"}},
		),
		"a further condition is the last": up(
			step{"nri", false, "no socket", true, true, []string{"nri: no socket"}},
			step{"nri", true, "", true, true, nil},
			step{"dra", true, "", true, true, nil},
		),
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			m := readiness.New(time.Now, readiness.Order()...)
			if ready, _ := m.Ready(); ready {
				t.Fatal("ready before anything was set")
			}
			for i, s := range steps {
				changed := m.Changed()
				if s.set == "" {
					m.Stop(s.why)
				} else {
					m.Set(s.set, s.ok, s.why)
				}
				if got := closed(changed); got != s.change {
					t.Errorf("step %d: changed %v, want %v", i, got, s.change)
				}
				ready, reasons := m.Ready()
				if diff := cmp.Diff(s.reasons, reasons); diff != "" || ready != (s.reasons == nil) {
					t.Errorf("step %d: ready %v, reasons (-want +got):\n%s", i, ready, diff)
				}
				if got := m.Reached(published); got != s.publish {
					t.Errorf("step %d: publishing has its turn: %v, want %v", i, got, s.publish)
				}
			}
		})
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Since is when a condition came to hold or ceased to, not when its reason changed.
func TestSince(t *testing.T) {
	clock := time.Unix(0, 0)
	m := readiness.New(func() time.Time { clock = clock.Add(time.Second); return clock }, "a", "b")
	m.Set("a", true, "")
	m.Set("b", false, "first")
	m.Set("a", true, "")
	m.Set("a", false, "gone")
	m.Set("a", false, "still gone")
	want := []readiness.Condition{
		{Name: "a", Why: "still gone", Since: time.Unix(4, 0)},
		{Name: "b", Why: "first", Since: time.Unix(2, 0)},
	}
	got := m.Conditions()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	got[0].OK = true
	if m.Reached("b") {
		t.Error("the machine's own conditions were given away")
	}
	if m.Reached("nobody") {
		t.Error("an unknown condition has its turn")
	}
}

// Nobody who takes the channel before looking misses a change.
func TestWaiters(t *testing.T) {
	m := readiness.New(time.Now, readiness.Order()...)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for {
				changed := m.Changed()
				if ready, _ := m.Ready(); ready {
					return
				}
				<-changed
			}
		})
	}
	names := readiness.Order()
	slices.Reverse(names)
	for _, name := range names {
		m.Set(name, true, "")
	}
	wait.Wait()
}
