// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/report"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/journal"
)

// What became of the writes, for Writes.
const (
	outcomeWritten   = "written"
	outcomeUnchanged = "unchanged" // it was there already, the cache had not shown it
	outcomeGone      = "gone"
	outcomeForbidden = "forbidden"
	outcomeFailed    = "failed"
)

// state is what is kept of one pod between two looks.
type state struct {
	reported life // the ADD that said that it is over, before its record does
	wrote    *wrote
	put      put
	fault    string // what was told last, "" = all is well
	waiters  []*waiter
	pod      planner.PodRef
	had      map[report.Name]string // the entries of its sandboxes, and whose they were last (container ID)
	alone    time.Time              // since when it has no sandbox
}

// life is one record, and not a later one of its key.
type life struct {
	key   journal.Key
	begun time.Time
}

func lifeOf(s *observe.Sandbox) life { return life{s.Key, s.Begun} }

// wrote is a write that the cache has not shown yet.
type wrote struct {
	value  string
	before []string // what the cache may show until then
	at     time.Time
}

// put is what a pod's status was last made to say, and how often in a row: somebody else
// took it away in between.
type put struct {
	says  string
	times int
	at    time.Time
}

// contested says how long a status is to rest before it is put back once more. The first
// few times it is put back at once; then the pauses grow as those after failures do, and end
// when the status holds for longer than the longest of them. Something new to say never rests.
func (p put) contested(says string, now time.Time) time.Duration {
	if p.says != says || p.times <= freely || now.Sub(p.at) > 2*lastRest {
		return 0
	}
	return min(firstRest<<min(p.times-freely, 16), lastRest) - now.Sub(p.at)
}

// again counts a write.
func (p put) again(says string, now time.Time) put {
	if p.says != says || now.Sub(p.at) > 2*lastRest {
		return put{says, 1, now}
	}
	return put{says, p.times + 1, now}
}

// rests says how long a pod's status is to rest, since another writer keeps changing it.
func (r *Reconciler) rests(uid, says string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(uid).put.contested(says, time.Now())
}

// waiter is a report that waits for the status of its sandbox, or of a later one.
type waiter struct {
	life life
	done chan struct{}
}

// of gives a pod's state, and makes it. The caller has the lock.
func (r *Reconciler) of(uid string) *state {
	st := r.state[uid]
	if st == nil {
		st = &state{}
		r.state[uid] = st
	}
	return st
}

// complete says whether a sandbox's status can be known: its ADD is over, or has reported
// that all is made.
func (r *Reconciler) complete(s *observe.Sandbox) bool {
	if s.Finished || !s.Answered() {
		return s.Finished
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(s.PodUID).reported == lifeOf(s)
}

// expect notes that a sandbox was reported, and gives who waits for its status.
func (r *Reconciler) expect(s *observe.Sandbox) *waiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &waiter{lifeOf(s), make(chan struct{})}
	st := r.of(s.PodUID)
	st.reported = w.life
	st.waiters = append(st.waiters, w)
	return w
}

// unexpect gives up waiting.
func (r *Reconciler) unexpect(uid string, w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.state[uid]; st != nil {
		st.waiters = slices.DeleteFunc(st.waiters, func(x *waiter) bool { return x == w })
	}
}

// keeps says whether something is kept of a pod.
func (r *Reconciler) keeps(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state[uid] != nil
}

// earlier notes what entries a pod's sandboxes have, and gives the pod, and those entries that are
// of other sandboxes than its newest: of records that are left, and of those that were seen.
func (r *Reconciler) earlier(uid string, newest *observe.Sandbox, all []*observe.Sandbox) (planner.PodRef, []report.Name) {
	names := make([][]report.Name, len(all))
	for i, s := range all {
		names[i] = namesOf(s)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(all) == 0 && r.state[uid] == nil {
		return planner.PodRef{}, nil
	}
	st := r.of(uid)
	if st.had == nil {
		st.had = map[report.Name]string{}
	}
	for i, s := range all {
		st.pod, st.alone = refOf(s), time.Time{}
		for _, name := range names[i] {
			if container := containerOf(s); st.had[name] != container {
				st.had[name] = container
				r.changed.Raise()
			}
		}
	}
	for _, u := range r.records.Unreadable() {
		maps.DeleteFunc(st.had, func(_ report.Name, container string) bool { return strings.HasPrefix(string(u.Key), container+"-") })
	}
	var gone []report.Name
	for name, container := range st.had {
		if newest == nil || container != containerOf(newest) {
			gone = append(gone, name)
		}
	}
	return st.pod, gone
}

func namesOf(s *observe.Sandbox) []report.Name {
	var made []wire.ReportAttachment
	for i := range s.Attachments {
		a := &s.Attachments[i]
		made = append(made, wire.ReportAttachment{Network: a.Network, IfName: a.IfName, CNIVersion: a.Conf.CNIVersion, Result: a.Result})
	}
	return report.NamesOf(made)
}

// settle says that the status of a sandbox is right, to those who wait for it or for an
// earlier one of the pod. shown: the cache has it, so nothing of earlier ones is left.
func (r *Reconciler) settle(uid string, s *observe.Sandbox, shown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.of(uid)
	st.fault = ""
	if shown {
		was := len(st.had)
		maps.DeleteFunc(st.had, func(_ report.Name, container string) bool { return s == nil || container != containerOf(s) })
		if len(st.had) != was {
			r.changed.Raise()
		}
	}
	if s == nil {
		if shown {
			delete(r.state, uid)
		}
		return
	}
	st.waiters = slices.DeleteFunc(st.waiters, func(w *waiter) bool {
		over := !w.life.begun.After(s.Begun)
		if over {
			close(w.done)
		}
		return over
	})
}

// mayEnd is how long a pod that has no sandbox is waited for, until it ends or gets another one.
func (r *Reconciler) mayEnd(uid string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.of(uid)
	if st.alone.IsZero() {
		st.alone = time.Now()
	}
	return endsFor - time.Since(st.alone)
}

// release ends the waiting for a pod that has no sandbox.
func (r *Reconciler) release(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.state[uid]; st != nil {
		for _, w := range st.waiters {
			close(w.done)
		}
		st.waiters = nil
	}
}

// forget drops what is kept of a pod.
func (r *Reconciler) forget(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.state[uid]; st != nil && len(st.had) > 0 {
		r.changed.Raise()
	}
	delete(r.state, uid)
}

// believed is what the pod's annotation is, as far as it is known: what was written, as long
// as the cache is behind it. unseen is how long that is believed yet, 0 = the cache is.
func (r *Reconciler) believed(uid, cached string) (annotation string, unseen time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.of(uid)
	if st.wrote == nil {
		return cached, 0
	}
	left := behindFor - time.Since(st.wrote.at)
	if left <= 0 || cached == st.wrote.value || !slices.Contains(st.wrote.before, cached) {
		st.wrote = nil // shown, or overtaken
		return cached, 0
	}
	return st.wrote.value, left
}

// remember keeps what was written until the cache shows it.
func (r *Reconciler) remember(uid, cached, old, value, says string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.of(uid)
	if old != value {
		st.put = st.put.again(says, time.Now())
	}
	if st.wrote = nil; cached != value {
		st.wrote = &wrote{value: value, before: []string{cached, old}, at: time.Now()}
	}
}

// isNews says whether a pod's fault is to be told: once until it is over, and that writing
// is forbidden, which is so for all pods, once in a while.
func (r *Reconciler) isNews(uid string, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.of(uid)
	was := st.fault
	st.fault = err.Error()
	if !errors.Is(err, ErrForbidden) {
		return was == ""
	}
	if now := time.Now(); now.Sub(r.forbidden) >= forbiddenEvery {
		r.forbidden = now
		return true
	}
	return false
}

func (r *Reconciler) count(outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes[outcome]++
}

// Writes counts the writes by what became of them: written, unchanged (it was there
// already), gone, forbidden, failed.
func (r *Reconciler) Writes() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.writes)
}

// State is what is to be said about a pod's status.
type State struct {
	Desired string // the annotation as it is to be, "" = there is nothing to say (yet)
	Right   bool   // the pod has it, as far as is known
	Fault   string // why it has not, "" = it is on its way
}

// State says how it is with the status of a pod that records know by this UID.
func (r *Reconciler) State(uid string) State {
	all := r.records.ByPod(uid)
	s := newest(all)
	if s == nil || !r.complete(s) {
		return State{}
	}
	_, gone := r.earlier(uid, s, all)
	status, err := r.status(s, gone)
	if err != nil {
		return State{Fault: err.Error()}
	}
	_, cached, ok := r.pods.Status(refOf(s))
	if !ok {
		return State{Desired: status.Merge(""), Fault: "the pod is not known, or has ended"}
	}
	shown, _ := r.believed(uid, cached)
	r.mu.Lock()
	defer r.mu.Unlock()
	return State{Desired: status.Merge(shown), Right: status.In(shown), Fault: r.of(uid).fault}
}
