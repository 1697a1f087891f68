// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// fakeRecords are the records of one pod.
type fakeRecords struct {
	notify func(string)

	mu  sync.Mutex
	all []*observe.Sandbox
	now []*observe.Sandbox // what Refresh sees; nil: all
}

func (f *fakeRecords) Notify(g func(string)) { f.notify = g }

func (f *fakeRecords) ByPod(string) []*observe.Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

func (f *fakeRecords) Refresh(_ context.Context, key journal.Key) (*observe.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all
	if f.now != nil {
		all = f.now
	}
	for _, s := range all {
		if s.Key == key {
			return s, nil
		}
	}
	return nil, nil
}

func (f *fakeRecords) set(all ...*observe.Sandbox) {
	f.mu.Lock()
	f.all = all
	f.mu.Unlock()
	f.notify("u1")
}

func sandboxRecord(id string, undoing bool) *observe.Sandbox {
	return &observe.Sandbox{Undoing: undoing, Sandbox: &record.Sandbox{
		Key: journal.Key(id + "-eth0"), Body: record.Body{Sandbox: plan.Sandbox{ContainerID: id}},
	}}
}

// fakeDetacher notes what comes home.
type fakeDetacher struct {
	mu   sync.Mutex
	home []string
	err  error
}

func (f *fakeDetacher) DetachIf(_ context.Context, id string, over func() bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && over() {
		f.home = append(f.home, id)
	}
	return f.err
}

func (f *fakeDetacher) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.home)
}

// TestEnds: devices come home when a record is being undone or is gone, once; not when its ADD is
// repeated; and what fails is tried again.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, h := &fakeRecords{}, &fakeDetacher{}
		e := newEnds(records)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.run(ctx, h, slog.New(slog.DiscardHandler)) }()
		expect := func(step string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := h.said(); !slices.Equal(got, want) {
				t.Errorf("%s: home are %q, want %q", step, got, want)
			}
		}
		records.set(sandboxRecord("a", false), sandboxRecord("b", false))
		expect("both live")
		records.set(sandboxRecord("a", true), sandboxRecord("b", false))
		records.set(sandboxRecord("a", true), sandboxRecord("b", false))
		expect("a is being undone", "a")
		records.set(sandboxRecord("b", false))
		expect("a is gone", "a")
		records.mu.Lock()
		records.now = []*observe.Sandbox{sandboxRecord("b", false)}
		records.mu.Unlock()
		records.set()
		expect("b was added again meanwhile", "a")
		records.mu.Lock()
		records.now = nil
		records.mu.Unlock()
		records.set(sandboxRecord("b", false))
		expect("b lives", "a")
		h.mu.Lock()
		h.err = errors.New("busy")
		h.mu.Unlock()
		records.set()
		expect("b does not come", "a")
		h.mu.Lock()
		h.err = nil
		h.mu.Unlock()
		time.Sleep(detachPause) //nolint:forbidigo // the bubble's time
		expect("b comes", "a", "b")
		cancel()
		if err := <-ended; err != nil || len(e.seen) > 0 {
			t.Errorf("%v; %d pods are remembered", err, len(e.seen))
		}
	})
}
