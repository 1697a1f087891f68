// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package observe is the agent's view of the attachment records of its node: what the
// hands have written, kept current by a watch of their folder and by a scan now and then.
//
// It owns nothing on the disk: it takes no lock, and makes, changes and removes nothing
// below the state directory. The records are the truth and the view follows them; a scan
// of the whole folder is what the watch is measured against.
//
// Invariants:
//   - A Sandbox is never changed after it was handed out. It keeps names, interfaces,
//     results and phases of a record; raw configurations, which may have a MiB each, go.
//   - A record is read when it appears, and at most once in coalesce for all the lines that
//     are written to it then, unless somebody asks for it (Refresh).
//   - A record that cannot be read, whether broken, newer or somebody's file, is shown and
//     counted, and keeps none of the others from being seen.
//   - A record's file stays open, for reading and without lock, until it is gone, so that the
//     times of a DEL are known although it ends by removing them.
//   - Whoever is told of a change may call the Observer: it holds no lock then.
//
// It must not know what is made of the view: status (internal/cni/reconcile), metrics and
// the command line are its callers.
//
// Implements: architecture 4.3 (reading records) and 4.4; architecture 1, law 3.
package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weftnet/weft/internal/host/journal"
)

// errStopped is what Refresh answers when nobody reads any more.
var errStopped = errors.New("the observer has ended")

// Observer watches the records of one state directory.
type Observer struct {
	stateDir string
	dir      string // <stateDir>/attachments
	boot     string
	log      *slog.Logger
	synced   chan struct{}
	ended    chan struct{}
	ask      chan question
	notify   []func(podUID string)
	timings  []func(Timing)
	reads    atomic.Int64 // of records' files

	mu    sync.RWMutex // guards what follows; never held over I/O or a call of notify
	shown map[journal.Key]shown
	pods  map[string][]*Sandbox // by the pod's UID, oldest first
	fault error                 // of the folder, since the last look at it
}

// shown is one file of the folder as callers see it: exactly one of the fields is set.
type shown struct {
	sandbox *Sandbox
	fault   *Unreadable
	empty   bool
}

func (s shown) podUID() string {
	switch {
	case s.sandbox != nil:
		return s.sandbox.PodUID
	case s.fault != nil:
		return s.fault.PodUID
	}
	return ""
}

// question asks for a record to be read now.
type question struct {
	key    journal.Key
	answer chan shown
}

// Unreadable is a record of which there is no view.
type Unreadable struct {
	Key    journal.Key
	PodUID string // "" = it cannot even be told whose it is
	Newer  bool   // a later version of Weft wrote it
	Err    error
}

// New gives an observer of the records below a state directory, which need not be there.
// Nothing is read before Run.
func New(stateDir string, log *slog.Logger) (*Observer, error) {
	if !filepath.IsAbs(stateDir) {
		return nil, fmt.Errorf("observe records: stateDir %q: is not an absolute path", stateDir)
	}
	stateDir = filepath.Clean(stateDir)
	return &Observer{
		stateDir: stateDir,
		dir:      filepath.Join(stateDir, "attachments"),
		boot:     journal.BootID(),
		log:      log,
		synced:   make(chan struct{}),
		ended:    make(chan struct{}),
		ask:      make(chan question),
		shown:    map[journal.Key]shown{},
		pods:     map[string][]*Sandbox{},
	}, nil
}

// Notify has f called with the UID of a pod one of whose records changed, appeared or went;
// it must be quick. Call it before Run.
func (o *Observer) Notify(f func(podUID string)) { o.notify = append(o.notify, f) }

// Timings has f called with the times that records tell of; it must be quick. What was
// written before the first scan is left out: an earlier agent has told it. Call it before Run.
func (o *Observer) Timings(f func(Timing)) { o.timings = append(o.timings, f) }

// Synced is closed once every record that was there at the start has been looked at.
func (o *Observer) Synced() <-chan struct{} { return o.synced }

// Fault says what is wrong with the folder of the records, as the last look at it found.
func (o *Observer) Fault() error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.fault
}

// Sandboxes gives the view of every readable record, by their keys.
func (o *Observer) Sandboxes() []*Sandbox {
	o.mu.RLock()
	defer o.mu.RUnlock()
	all := make([]*Sandbox, 0, len(o.shown))
	for _, s := range o.shown {
		if s.sandbox != nil {
			all = append(all, s.sandbox)
		}
	}
	slices.SortFunc(all, func(a, b *Sandbox) int { return compareKeys(a.Key, b.Key) })
	return all
}

// ByPod gives the sandboxes of one pod, the oldest first.
func (o *Observer) ByPod(uid string) []*Sandbox {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return slices.Clone(o.pods[uid])
}

// Sandbox gives the view of one record.
func (o *Observer) Sandbox(key journal.Key) (*Sandbox, bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	s := o.shown[key].sandbox
	return s, s != nil
}

// Unreadable lists the records of which there is no view, by their keys.
func (o *Observer) Unreadable() []Unreadable {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var all []Unreadable
	for _, s := range o.shown {
		if s.fault != nil {
			all = append(all, *s.fault)
		}
	}
	slices.SortFunc(all, func(a, b Unreadable) int { return compareKeys(a.Key, b.Key) })
	return all
}

// Refresh reads a record now, and gives its view; nil without an error when there is no
// record, or a placeholder only.
func (o *Observer) Refresh(ctx context.Context, key journal.Key) (*Sandbox, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	q := question{key, make(chan shown, 1)}
	select {
	case o.ask <- q:
	case <-o.ended:
		return nil, errStopped
	case <-ctx.Done():
		return nil, fmt.Errorf("read record %s: %w", key, context.Cause(ctx))
	}
	select {
	case s := <-q.answer:
		if s.fault != nil {
			return nil, s.fault.Err
		}
		return s.sandbox, nil
	case <-o.ended:
		return nil, errStopped
	case <-ctx.Done():
		return nil, fmt.Errorf("read record %s: %w", key, context.Cause(ctx))
	}
}

// show puts what a file is now in the place of what it was, and tells whom it concerns.
func (o *Observer) show(key journal.Key, now shown) {
	o.mu.Lock()
	was := o.shown[key]
	if now == (shown{}) {
		delete(o.shown, key)
	} else {
		o.shown[key] = now
	}
	if was.sandbox != nil {
		o.unlist(was.sandbox)
	}
	if now.sandbox != nil && now.sandbox.PodUID != "" {
		list := append(slices.Clone(o.pods[now.sandbox.PodUID]), now.sandbox)
		slices.SortFunc(list, Older)
		o.pods[now.sandbox.PodUID] = list
	}
	o.mu.Unlock()
	o.tell(was.podUID())
	if now.podUID() != was.podUID() {
		o.tell(now.podUID())
	}
}

func (o *Observer) unlist(s *Sandbox) {
	list := slices.DeleteFunc(slices.Clone(o.pods[s.PodUID]), func(x *Sandbox) bool { return x == s })
	if o.pods[s.PodUID] = list; len(list) == 0 {
		delete(o.pods, s.PodUID)
	}
}

func (o *Observer) tell(podUID string) {
	if podUID == "" {
		return
	}
	for _, f := range o.notify {
		f(podUID)
	}
}

func (o *Observer) tellTimings(all []Timing) {
	for _, t := range all {
		for _, f := range o.timings {
			f(t)
		}
	}
}

// Older orders the sandboxes of one pod, the oldest first: by their begin, but that one which the
// runtime has begun to delete comes before others, since a clock may have been set back.
func Older(a, b *Sandbox) int {
	deleted := func(s *Sandbox) int { return min(s.Deletes, 1) }
	return cmp.Or(cmp.Compare(deleted(b), deleted(a)), a.Begun.Compare(b.Begun), compareKeys(a.Key, b.Key))
}
