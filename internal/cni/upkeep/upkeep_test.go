// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package upkeep_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/orphans"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/upkeep"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node has records, what the API knows of their pods, and hands that answer.
type node struct {
	mu      sync.Mutex
	synced  chan struct{}
	records map[journal.Key]*observe.Sandbox
	pod     orphans.Knowledge
	answer  func(apply.Order) (apply.Answer, error)
	begin   time.Time
	orders  []string // "key after"
	at      int      // orders that are being carried out
	most    int
}

func (n *node) Synced() <-chan struct{} { return n.synced }

func (n *node) Sandboxes() []*observe.Sandbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*observe.Sandbox
	for _, key := range []journal.Key{"a-eth0", "b-eth0", "w-eth0"} {
		if s := n.records[key]; s != nil {
			all = append(all, s)
		}
	}
	return all
}

func (n *node) knows(planner.PodRef) orphans.Knowledge {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pod
}

func (n *node) Do(_ context.Context, host string, o apply.Order) (apply.Answer, error) {
	n.mu.Lock()
	n.at++
	n.most = max(n.most, n.at)
	if host != "host" {
		n.orders = append(n.orders, "on "+host)
	}
	n.orders = append(n.orders, string(o.Key)+" "+time.Since(n.begin).String())
	n.mu.Unlock()
	time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at--
	answer, err := n.answer(o)
	if err == nil && answer.Outcome == apply.Done {
		delete(n.records, o.Key)
	}
	return answer, err
}

func done(apply.Order) (apply.Answer, error) { return apply.Answer{Outcome: apply.Done}, nil }

// run runs a Keeper over a node for a time and gives what it counted.
func run(t *testing.T, n *node, d time.Duration, then func()) map[string]uint64 {
	t.Helper()
	n.begin = time.Now()
	k := upkeep.New(upkeep.Options{Hands: n, Records: n, Knows: n.knows}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var ended error
	var wg sync.WaitGroup
	wg.Go(func() { ended = k.Run(ctx) })
	time.Sleep(d) //nolint:forbidigo // the bubble's clock
	if then != nil {
		then()
		time.Sleep(d) //nolint:forbidigo // the bubble's clock
	}
	cancel()
	wg.Wait()
	if ended != nil {
		t.Error(ended)
	}
	return k.Counts()
}

func newNode(pod orphans.Knowledge, dead bool, keys ...journal.Key) *node {
	n := &node{synced: make(chan struct{}), records: map[journal.Key]*observe.Sandbox{}, pod: pod, answer: done}
	close(n.synced)
	n.records["w-eth0"] = &observe.Sandbox{ // lives
		Sandbox: &record.Sandbox{Key: "w-eth0", Finished: true, Body: record.Body{Host: "host"}}, Begun: time.Unix(2, 0),
	}
	for _, key := range keys {
		n.records[key] = &observe.Sandbox{
			Sandbox: &record.Sandbox{Key: key, Finished: true}, PodNamespace: "default", PodName: "p", PodUID: "u-" + string(key),
			Begun: time.Unix(1, 0), Dead: dead,
		}
	}
	return n
}

// Suspects are undone after the patience, one at a time, and once.
func TestOrphansOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(orphans.Unknown, false, "a-eth0", "b-eth0")
		counts := run(t, n, time.Hour, nil)
		if diff := cmp.Diff([]string{"a-eth0 2m0s", "b-eth0 2m1s"}, n.orders); diff != "" || n.most != 1 {
			t.Errorf("%d at a time; %s", n.most, diff)
		}
		if diff := cmp.Diff(map[string]uint64{"done": 2}, counts); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOrphansOfAnotherBootAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(orphans.Unsure, true, "a-eth0")
		run(t, n, time.Minute, nil)
		if diff := cmp.Diff([]string{"a-eth0 0s"}, n.orders); diff != "" {
			t.Error(diff)
		}
	})
}

func TestNobodyIsASuspect(t *testing.T) {
	for name, n := range map[string]func() *node{
		"the pod is known":    func() *node { return newNode(orphans.Known, false, "a-eth0") },
		"the cache is behind": func() *node { return newNode(orphans.Unsure, false, "a-eth0") },
		"no pod of Kubernetes": func() *node {
			n := newNode(orphans.Unknown, false, "a-eth0")
			n.records["a-eth0"].PodName = ""
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := n()
				run(t, n, time.Hour, nil)
				if len(n.orders) > 0 {
					t.Errorf("orders %v", n.orders)
				}
			})
		})
	}
}

// Records are not judged before all of them have been read.
func TestNothingBeforeTheRecordsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(orphans.Unsure, true, "a-eth0")
		n.synced = make(chan struct{})
		run(t, n, time.Hour, func() {
			if len(n.orders) > 0 {
				t.Errorf("orders %v", n.orders)
			}
			close(n.synced)
		})
		if len(n.orders) != 1 {
			t.Errorf("orders %v", n.orders)
		}
	})
}

// What fails is tried again with pauses that grow, and keeps no other one waiting.
func TestAnOrphanThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(orphans.Unsure, true, "a-eth0", "b-eth0")
		n.answer = func(o apply.Order) (apply.Answer, error) {
			if o.Key == "a-eth0" {
				return apply.Answer{}, errors.New("busy (code 16)")
			}
			return done(o)
		}
		counts := run(t, n, time.Hour, nil)
		want := []string{
			"a-eth0 0s", "b-eth0 1s", "a-eth0 20s", "a-eth0 50s", "a-eth0 1m40s", "a-eth0 3m10s", "a-eth0 6m0s",
			"a-eth0 11m30s", "a-eth0 21m40s", "a-eth0 31m50s", "a-eth0 42m0s", "a-eth0 52m10s",
		}
		if diff := cmp.Diff(want, n.orders); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[string]uint64{"done": 1, "failed": 11}, counts); diff != "" {
			t.Error(diff)
		}
	})
}

// The real edge: what the order says and what comes back.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	p := upkeep.Plugin{Binary: filepath.Join(dir, "weft-cni"), Conf: filepath.Join(dir, "conf")}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host, err := proc.Namespaces("self")
	if err != nil {
		t.Fatal(err)
	}
	order := apply.Order{Task: apply.Undo, Key: "a-eth0", Begun: time.Unix(1, 0).UTC()}
	fails := func(want string) {
		t.Helper()
		if _, err := p.Do(t.Context(), host, order); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	fails("published configuration")
	write(p.Conf, `{"name":"weft"}`)
	fails("no plugins")
	write(p.Conf, `{"name":"weft","cniVersion":"1.1.0","plugins":[{"type":"weft-cni","stateDir":"/s"}]}`)
	fails("no such file")
	write(p.Binary, "#!/bin/sh\ncat > "+dir+"/order; echo '{\"version\":1,\"outcome\":\"kept\",\"reason\":\"'$1'\"}'\n")
	answer, err := p.Do(t.Context(), host, order)
	if diff := cmp.Diff(apply.Answer{Version: 1, Outcome: apply.Kept, Reason: "apply"}, answer); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if a, err := p.Do(t.Context(), "net:[1] mnt:[2]", order); err != nil || a.Outcome != apply.Unsure {
		t.Errorf("elsewhere: %v, %v", a, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := apply.Parse(b)
	order.Version, order.Conf = 1, []byte(`{"type":"weft-cni","stateDir":"/s","name":"weft","cniVersion":"1.1.0"}`)
	if diff := cmp.Diff(order, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	write(p.Binary, "#!/bin/sh\necho '{\"code\":11,\"msg\":\"wait\"}'; exit 1\n")
	fails("wait (code 11)")
	write(p.Binary, "#!/bin/sh\necho oops >&2; exit 1\n")
	fails("oops")
	write(p.Binary, "#!/bin/sh\necho '{\"version\":7}'\n")
	fails("version 7")
}

// What could not be undone is shown, with the reason and the time of the next order, until it is
// undone.
func TestResting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(orphans.Unknown, true, "a-eth0")
		n.answer = func(apply.Order) (apply.Answer, error) { return apply.Answer{}, errors.New("the plugin is not there") }
		n.begin = time.Now()
		k := upkeep.New(upkeep.Options{Hands: n, Records: n, Knows: n.knows}, slog.New(slog.DiscardHandler))
		var keeper sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		keeper.Go(func() { k.Run(ctx) }) //nolint:errcheck // it has none
		time.Sleep(5 * time.Second)      //nolint:forbidigo // the bubble's clock
		want := []upkeep.Resting{{
			Key: "a-eth0", Begun: time.Unix(1, 0), Tries: 1, Until: n.begin.Add(11 * time.Second), Said: "failed: the plugin is not there",
		}}
		if diff := cmp.Diff(want, k.Resting()); diff != "" {
			t.Error(diff)
		}
		n.mu.Lock()
		n.answer = done
		n.mu.Unlock()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if got := k.Resting(); len(got) != 0 {
			t.Errorf("undone, and still resting: %v", got)
		}
		cancel()
		keeper.Wait()
	})
}
