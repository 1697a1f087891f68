// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestGoneWhileTheAgentIsAway: what becomes of a pod's sandboxes while there is no agent is known to
// the next one by what the last one put down.
func TestGoneWhileTheAgentIsAway(t *testing.T) {
	for name, c := range map[string]struct {
		writes int
		while  func(r *rigged)
		after  func(r *rigged)
		want   func(r *rigged) []any
	}{
		"another one":                 {3, func(r *rigged) { r.drop(r.old); r.put(finished(r.new)) }, nil, func(r *rigged) []any { return statusOf(r.new, "10.0.0.3") }},
		"none":                        {2, func(r *rigged) { r.drop(r.old) }, nil, nil},
		"none, and another one later": {3, func(r *rigged) { r.drop(r.old) }, func(r *rigged) { r.add() }, func(r *rigged) []any { return statusOf(r.new, "10.0.0.3") }},
		"the same":                    {1, func(*rigged) {}, nil, func(r *rigged) []any { return statusOf(r.old, "10.0.0.2") }},
		"it cannot be read":           {1, func(r *rigged) { r.spoil(r.old) }, nil, func(r *rigged) []any { return statusOf(r.old, "10.0.0.2") }},
		"the pod ended":               {1, func(r *rigged) { r.drop(r.old); r.set("a", func(p *pod) { p.terminal = true }) }, nil, func(r *rigged) []any { return statusOf(r.old, "10.0.0.2") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rigged{rig: newRig(t)}
				var kept []Remembered
				seen := make(chan struct{})
				r.memory = &Memory{
					Load: func() []Remembered { return kept }, Save: func(all []Remembered) { kept = all }, After: []<-chan struct{}{seen},
				}
				r.anew()
				close(seen)
				r.back()
				r.pod("a")
				r.set("a", func(p *pod) { p.annotation = "[" + foreignText + "]" })
				r.old = finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24", "default/netb"))
				r.put(r.old)
				r.pass(time.Minute)
				r.away()
				r.new = sandbox("c2", "a", "uid-a", "10.0.0.3/24")
				c.while(r)
				// Nobody has seen records or pods yet: nothing is taken for gone, nor forgotten.
				r.memory.After = []<-chan struct{}{make(chan struct{})}
				r.back()
				r.pass(time.Hour)
				r.away()
				r.memory.After = nil
				r.back()
				r.pass(time.Hour)
				if c.after != nil {
					c.after(r)
				}
				var want []any
				if c.want != nil {
					want = c.want(r)
				}
				r.want("a", c.writes, append(want, foreign)...)
				r.drop(r.old)
				r.remove("a")
				r.drop(r.new)
				r.pass(time.Hour)
				r.away()
				if len(kept) != 0 {
					t.Errorf("kept %+v", kept)
				}
			})
		})
	}
}
