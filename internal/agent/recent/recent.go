// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package recent keeps what happened on a node a moment ago: how often things were called in
// the last minute and how long they took, and the last faults in their words.
//
// It owns two things in memory: samples of calls by name, and a short list of faults. Both are
// bounded, whatever a node sees, and lost with the process: what has to last is in the records,
// and what has to be counted is in the metrics.
//
// Invariants: noting something never waits for anything but a short lock; a fault that comes
// again is moved to the end and counted, so that one that repeats hides none of the others; a
// text is one bounded line.
//
// It must not know who calls, nor how it is shown (internal/agent/debug, internal/inspect).
//
// Implements: architecture 4.4 (debug.sock: what weft top shows).
package recent

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
)

// Window is how far back calls are looked at.
const Window = time.Minute

// Bounds. A name more than maxNames is counted under otherName.
const (
	maxSamples = 2048 // of a name
	maxNames   = 64
	maxFaults  = 32
	maxText    = 512
	otherName  = "other"
)

// Recent is what happened lately. Its methods may be called by several goroutines.
type Recent struct {
	now func() time.Time

	mu     sync.Mutex
	calls  map[string]*calls
	faults []Fault // the newest last
}

// calls are those of one name.
type calls struct {
	total, failed uint64
	samples       []sample // a ring once it is full; next is the oldest then
	next          int
}

type sample struct {
	at     time.Time
	took   time.Duration
	failed bool
}

// Calls are the calls of one name.
type Calls struct {
	Name string
	// Total and TotalFailed are since the process began.
	Total, TotalFailed uint64
	// Count, Failed and the times are of the last Span: Window, less when there were too many.
	Span          time.Duration
	Count, Failed int
	P50, P99, Max time.Duration
}

// Fault is something that went wrong.
type Fault struct {
	// At is when it was last so, First when first, Count how often.
	At, First time.Time
	Count     int
	// Part is what tells of it; Pod is namespace/name, "" when it is about no pod or about one
	// whose name is not known.
	Part, Pod, Text string
}

// New makes a Recent with that clock.
func New(now func() time.Time) *Recent { return &Recent{now: now, calls: map[string]*calls{}} }

// Call notes a call that just ended.
func (r *Recent) Call(name string, took time.Duration, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.calls[name]
	if c == nil && len(r.calls) >= maxNames {
		name = otherName
		c = r.calls[name]
	}
	if c == nil {
		c = &calls{}
		r.calls[name] = c
	}
	c.total++
	if failed {
		c.failed++
	}
	s := sample{r.now(), took, failed}
	if len(c.samples) < maxSamples {
		c.samples = append(c.samples, s)
		return
	}
	c.samples[c.next] = s
	c.next = (c.next + 1) % maxSamples
}

// Calls gives all names that were ever called, sorted.
func (r *Recent) Calls() []Calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	all := make([]Calls, 0, len(r.calls))
	for name, c := range r.calls {
		all = append(all, c.sum(name, now))
	}
	slices.SortFunc(all, func(a, b Calls) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (c *calls) sum(name string, now time.Time) Calls {
	out := Calls{Name: name, Total: c.total, TotalFailed: c.failed, Span: Window}
	if len(c.samples) == maxSamples { // what is older than the oldest is forgotten
		out.Span = min(Window, now.Sub(c.samples[c.next].at))
	}
	var took []time.Duration
	for _, s := range c.samples {
		if now.Sub(s.at) > Window {
			continue
		}
		took = append(took, s.took)
		if s.failed {
			out.Failed++
		}
	}
	if out.Count = len(took); out.Count == 0 {
		return out
	}
	slices.Sort(took)
	rank := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1] }
	out.P50, out.P99, out.Max = rank(50), rank(99), took[len(took)-1]
	return out
}

// Fault notes that something went wrong. The text is cut to one line.
func (r *Recent) Fault(part, pod, text string) {
	text = fault.Bound(strings.Join(strings.Fields(text), " "), maxText)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	f := Fault{At: now, First: now, Count: 1, Part: part, Pod: pod, Text: text}
	if i := slices.IndexFunc(r.faults, func(o Fault) bool { return o.Part == part && o.Pod == pod && o.Text == text }); i >= 0 {
		f.First, f.Count = r.faults[i].First, r.faults[i].Count+1
		r.faults = slices.Delete(r.faults, i, i+1)
	}
	if len(r.faults) == maxFaults {
		r.faults = slices.Delete(r.faults, 0, 1)
	}
	r.faults = append(r.faults, f)
}

// Faults gives the last ones, the newest first.
func (r *Recent) Faults() []Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.faults)
	slices.Reverse(all)
	return all
}
