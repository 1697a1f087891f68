// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upkeep is what the agent has done to the node's attachments between the runtime's
// calls: it decides when to give the hands ("weft-cni apply") an order, and gives it.
//
// It owns the pauses: one order of a kind is carried out at a time, so that what is repaired
// never takes a node from what is asked for; a record whose order came to nothing rests,
// longer each time.
//
// Invariants:
//   - Nothing is undone here. The hands look at record and sandbox themselves, under the
//     record's lock and where the host's mounts are seen, and have the last word.
//   - One record that cannot be mended keeps none of the others waiting for longer than its
//     own order takes.
//   - What it keeps in memory may be lost: the records and the API say it all again.
//
// It must not know the API or an informer (Knows), nor how an order is carried out.
//
// Implements: architecture 4.4 (hot-plug and orphans); spec/cni.md rule 12.
package upkeep

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/orphans"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/wake"
)

const (
	// lookEvery is how often all records are looked at.
	lookEvery = 10 * time.Second
	// settle is how long after a change the pods are looked at: several come together, and a pod
	// that was made a moment ago is not seen half.
	settle = 500 * time.Millisecond
	// settleMost is how long after the first of many changes that is at the latest: on a busy node
	// there is always another one, and one pod's owner can see to that.
	settleMost = 2 * time.Second
	// firstRest and lastRest bound how long a record rests after an order that came to
	// nothing; it doubles from one to the other.
	firstRest = 10 * time.Second
	lastRest  = 10 * time.Minute
	// DefaultResultsDir is where the runtimes' CNI library keeps results.
	DefaultResultsDir = "/var/lib/cni/results"
)

// Records is the view of the records: *observe.Observer.
type Records interface {
	Synced() <-chan struct{}
	Sandboxes() []*observe.Sandbox
}

// Options say with what and about what the Keeper works.
type Options struct {
	Hands   Hands
	Records Records
	// Knows says what the API knows of a pod of this node.
	Knows func(planner.PodRef) orphans.Knowledge
	// Asked is the networks annotation of a pod of this node that has not ended and is not
	// about to; ok is false for any other.
	Asked func(planner.PodRef) (annotation string, ok bool)
	// Tell tells a pod's owner something.
	Tell       func(planner.PodRef, planner.Event)
	ResultsDir string // see apply.Order; as the host sees it
}

// Keeper keeps the node's attachments right.
type Keeper struct {
	opts  Options
	log   *slog.Logger
	judge orphans.Judge
	pods  map[name]*plugged
	wake  wake.Signal

	mu     sync.Mutex // guards what follows
	rests  map[name]*rest
	counts map[string]uint64
	plugs  map[string]uint64
}

// name names one record of one sandbox.
type name struct {
	key   journal.Key
	begun time.Time
}

// rest is until when a record is left alone, and after how many orders.
type rest struct {
	until time.Time
	tries int
	said  string
}

// New makes a Keeper; it gives no order before Run.
func New(opts Options, log *slog.Logger) *Keeper {
	return &Keeper{
		opts: opts, log: log, rests: map[name]*rest{}, pods: map[name]*plugged{}, wake: wake.New(),
		counts: map[string]uint64{}, plugs: map[string]uint64{},
	}
}

// Counts says how many orders about orphans there were, by what came of them.
func (k *Keeper) Counts() map[string]uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.counts)
}

// Resting is an orphan that could not be undone, and waits for the next order.
type Resting struct {
	Key   journal.Key
	Begun time.Time
	Tries int
	Until time.Time
	Said  string // what the last order came to
}

// Resting gives the orphans that are looked at again later, the next one first.
func (k *Keeper) Resting() []Resting {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]Resting, 0, len(k.rests))
	for n, r := range k.rests {
		all = append(all, Resting{Key: n.key, Begun: n.begun, Tries: r.tries, Until: r.until, Said: r.said})
	}
	slices.SortFunc(all, func(a, b Resting) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.Key, b.Key))
	})
	return all
}

// Run looks for orphans until ctx ends.
func (k *Keeper) Run(ctx context.Context) error { return k.every(ctx, nil, k.look) }

// every has the records looked at once all of them have been read, every lookEvery, and settle after
// the last of several wakes, or settleMost after the first; nil never wakes.
func (k *Keeper) every(ctx context.Context, wake <-chan struct{}, look func(context.Context)) error {
	select {
	case <-k.opts.Records.Synced():
	case <-ctx.Done():
		return nil
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	var first time.Time // of the wakes that were not followed by a look
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
			if first.IsZero() {
				first = time.Now()
			}
			pause.Reset(min(settle, settleMost-time.Since(first)))
		case <-pause.C:
			first = time.Time{}
			look(ctx)
		case <-ticker.C:
			look(ctx)
		}
	}
}

// look has every suspect that does not rest looked at by the hands, one after the other.
func (k *Keeper) look(ctx context.Context) {
	var seen []orphans.Sandbox
	there, hosts, latest := map[name]bool{}, map[name]string{}, ""
	for _, s := range k.opts.Records.Sandboxes() {
		if !s.Dead && s.Body.Host != "" {
			hosts[name{s.Key, s.Begun}], latest = s.Body.Host, s.Body.Host
		}
		o := orphans.Sandbox{Key: s.Key, Begun: s.Begun, PodUID: s.PodUID, Dead: s.Dead, Finished: s.Finished}
		if s.PodName != "" {
			o.Pod = k.opts.Knows(planner.PodRef{Namespace: s.PodNamespace, Name: s.PodName, UID: s.PodUID})
		}
		seen = append(seen, o)
		there[name{o.Key, o.Begun}] = true
	}
	k.mu.Lock()
	maps.DeleteFunc(k.rests, func(n name, _ *rest) bool { return !there[n] })
	k.mu.Unlock()
	for _, s := range k.judge.Look(time.Now(), seen) {
		if ctx.Err() != nil {
			return
		}
		if k.rested(name{s.Key, s.Begun}) {
			// Of another boot: where a runtime has run Weft in this one.
			k.undo(ctx, cmp.Or(hosts[name{s.Key, s.Begun}], latest), s)
		}
	}
}

// rested says that a record is not left alone now.
func (k *Keeper) rested(n name) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.rests[n]
	return r == nil || !time.Now().Before(r.until)
}

// undo has the hands undo one record, if its sandbox is gone.
func (k *Keeper) undo(ctx context.Context, host string, s orphans.Sandbox) {
	answer, err := k.opts.Hands.Do(ctx, host, apply.Order{Task: apply.Undo, Key: s.Key, Begun: s.Begun, ResultsDir: k.opts.ResultsDir})
	if ctx.Err() != nil {
		return // the next agent does it
	}
	outcome, said := string(answer.Outcome), answer.Reason
	if err != nil {
		outcome, said = "failed", err.Error()
	}
	over := err == nil && (answer.Outcome == apply.Done || answer.Outcome == apply.Gone)
	isNew := k.count(name{s.Key, s.Begun}, over, outcome, said)
	switch {
	case over && answer.Outcome == apply.Done:
		k.log.Info("orphan is undone", "key", string(s.Key), "pod_uid", s.PodUID, "other_boot", s.Dead)
	case !over && isNew: // it is told once as long as it lasts
		k.log.Warn("orphan is not undone, looked at again", "key", string(s.Key), "pod_uid", s.PodUID, "outcome", outcome, "reason", said)
	}
}

// count notes what came of an order. A record that it is not over with rests; isNew says that it
// did not come to the same the last time.
func (k *Keeper) count(n name, over bool, outcome, said string) (isNew bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[outcome]++
	if over {
		delete(k.rests, n)
		return false
	}
	r := k.rests[n]
	if r == nil {
		r = &rest{}
		k.rests[n] = r
	}
	r.until = time.Now().Add(min(firstRest<<min(r.tries, 16), lastRest))
	r.tries++
	was := r.said
	r.said = outcome + ": " + said
	return r.said != was
}
