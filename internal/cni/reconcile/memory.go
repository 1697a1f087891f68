// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/report"
	"github.com/weftnet/weft/internal/host/wake"
)

// keepEvery is how often what is remembered is put down at most.
const keepEvery = time.Second

// Remembered are the entries that a pod's sandboxes had, for the next agent: a record that goes while
// there is none leaves nothing else by which they are known from another writer's.
type Remembered struct {
	Pod planner.PodRef
	Had []Had
}

// Had is one entry, and the container ID of the sandbox that it was of last.
type Had struct {
	report.Name
	Container string
}

// Memory is where it is put down. It may be lost: then such entries stay as another writer's do.
type Memory struct {
	Load func() []Remembered
	Save func([]Remembered)
	// After are closed when records and pods have all been seen: what is remembered of a pod that
	// nobody has seen yet is not taken for what is gone.
	After []<-chan struct{}
}

// rememberAll keeps the memory until ctx ends.
func (r *Reconciler) rememberAll(ctx context.Context) {
	for _, seen := range r.opts.Memory.After {
		select {
		case <-seen:
		case <-ctx.Done():
			return // nothing is put down either: it would be less than there is
		}
	}
	for _, m := range r.opts.Memory.Load() {
		r.recall(m)
	}
	for {
		select {
		case <-r.changed:
			wake.Pause(ctx, keepEvery)
			r.changed.Clear()
			r.opts.Memory.Save(r.remembered())
		case <-ctx.Done():
			r.opts.Memory.Save(r.remembered())
			return
		}
	}
}

// recall takes in what an earlier agent knew of a pod, as far as nothing newer is known.
func (r *Reconciler) recall(m Remembered) {
	r.mu.Lock()
	st := r.of(m.Pod.UID)
	if st.had == nil {
		st.had, st.pod = map[report.Name]string{}, m.Pod
	}
	for _, h := range m.Had {
		if _, known := st.had[h.Name]; !known {
			st.had[h.Name] = h.Container
		}
	}
	r.mu.Unlock()
	r.Changed(m.Pod.UID)
}

// remembered is what there is to be put down, sorted.
func (r *Reconciler) remembered() []Remembered {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Remembered
	for _, uid := range slices.Sorted(maps.Keys(r.state)) {
		st := r.state[uid]
		if len(st.had) == 0 {
			continue
		}
		m := Remembered{Pod: st.pod}
		for name, container := range st.had {
			m.Had = append(m.Had, Had{name, container})
		}
		slices.SortFunc(m.Had, func(a, b Had) int {
			return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Interface, b.Interface))
		})
		all = append(all, m)
	}
	return all
}
