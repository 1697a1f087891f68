// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/weftnet/weft/internal/agent/metrics"
)

// numbers are what the parts keep that monitoring asks for.
func (a *Agent) numbers() metrics.Sources {
	return metrics.Sources{
		CacheAge: func() (time.Duration, bool) {
			last := a.cluster.LastContact()
			return time.Since(last), !last.IsZero()
		},
		Records:      a.records,
		Reconcile:    a.reconciler.Lag,
		StatusWrites: a.reconciler.Writes,
		Orphans:      a.keeper.Counts,
		Plugs:        a.keeper.Plugs,
		APIRequests:  a.cluster.Requests,
		Published:    func() bool { return a.publisher.Status().Published },
		Restored:     func() uint64 { return a.publisher.Status().Restored },
		Ready: func() bool {
			ready, _ := a.ready.Ready()
			return ready
		},
	}
}

// records are the records by their state. Torn ones are among the others.
func (a *Agent) records() map[string]int {
	c := a.observer.Counts()
	return map[string]int{
		"finished": c.Finished, "half_done": c.HalfDone, "undoing": c.Undoing, "dead": c.Dead, "newer": c.Newer,
		"corrupt": c.Corrupt, "placeholder": c.Placeholders, "torn": c.Torn, "quarantined": c.Quarantined,
	}
}
