// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/agent/debug"
)

// TestTop: of pods that come, go and fail the agent says how many there were, how they stand and
// why one failed.
func TestTop(t *testing.T) {
	r := newRig(t)
	r.startReady()
	top := func() debug.Top {
		t.Helper()
		a, err := r.debug().Top(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return a.Top
	}
	calls := func(name string) (c debug.Calls) {
		t.Helper()
		for _, all := range top().Calls {
			if all.Name == name {
				c = all
			}
		}
		return c
	}
	for _, pod := range []string{"web", "gone"} {
		r.server.Apply(r.pod(pod, "neta"))
		if out, err := r.call("ADD", pod, asks("neta")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	r.server.Apply(r.pod("bad", "missing"))
	if out, err := r.call("ADD", "bad", asks("missing")).CombinedOutput(); err == nil {
		t.Fatalf("a network that is not there is attached: %s", out)
	}
	if out, err := r.call("DEL", "gone", asks("neta")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.await("both ADD and the DEL are seen", func() bool { return calls("ADD").Count == 2 && calls("DEL").Count == 1 })
	r.await("one pod is left", func() bool { return len(top().Moving) == 2 })

	now := top()
	if diff := cmp.Diff([]debug.Count{{Name: "done", Count: 2}}, now.Attachments); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]debug.Count{{Name: "finished", Count: 1}}, now.Records); diff != "" {
		t.Error(diff)
	}
	for _, m := range now.Moving {
		if m.Pod != "web" || m.Phase != debug.PhaseDone || m.Since.IsZero() {
			t.Errorf("attachment %+v", m)
		}
	}
	if now.Lanes.Fault != "" || now.Lanes.Limit < 4 || now.Lanes.InUse != 0 {
		t.Errorf("lanes %+v", now.Lanes)
	}
	if c := calls("ADD pb"); c.Total != 2 || c.P99 <= 0 || c.P50 > c.P99 {
		t.Errorf("calls of a plugin: %+v", c)
	}
	if c := calls("planner plan"); c.Total != 3 || c.TotalFailed != 1 || c.Failed != 1 {
		t.Errorf("calls of the planner: %+v", c)
	}
	if len(now.Faults) == 0 || now.Faults[0].Pod != "default/bad" || now.Faults[0].Part != "plan" || !strings.Contains(now.Faults[0].Text, "missing") {
		t.Errorf("faults %+v", now.Faults)
	}
	if now.Driver || now.VMs != nil {
		t.Errorf("what is off is shown: %+v", now)
	}
	if err := r.call("DEL", "web", asks("neta")).Run(); err != nil {
		t.Error(err)
	}
}
