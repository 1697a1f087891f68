// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// rig is an observer of a state directory that the test writes to by the journal.
type rig struct {
	*Observer
	t     *testing.T
	state string
	stop  func()

	mu    sync.Mutex
	told  []string
	times []Timing
}

// newRig makes an observer that does not run yet.
func newRig(t *testing.T, state string) *rig {
	t.Helper()
	o, err := New(state, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Observer: o, t: t, state: state}
	o.Notify(func(uid string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, uid)
	})
	o.Timings(func(x Timing) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.times = append(r.times, x)
	})
	return r
}

// start runs it until the test's end, or until stop.
func (r *rig) start() *rig {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background()) //nolint:usetesting // ended by stop, within the test
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(r.stop)
	select {
	case <-r.Synced():
	case <-time.After(20 * time.Second):
		r.t.Fatal("not synced")
	}
	return r
}

// observe gives a running one.
func observe(t *testing.T) *rig {
	t.Helper()
	return newRig(t, filepath.Join(t.TempDir(), "state")).start()
}

// await polls until ok is true.
func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (r *rig) awaitCounts(want Counts) {
	r.t.Helper()
	var got Counts
	defer func() {
		if got != want {
			r.t.Logf("counts %+v, want %+v", got, want)
		}
	}()
	r.await("the counts are right", func() bool { got = r.Counts(); return got == want })
}

func (r *rig) timed() []Timing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.times)
}

func (r *rig) tells() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.told)
}

// store opens the folder as the hands do.
func (r *rig) store() *journal.Store {
	r.t.Helper()
	s, err := journal.Open(filepath.Join(r.state, "attachments"), record.Kind)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	return s
}

// writer writes one record, with a clock of its own.
type writer struct {
	t   *testing.T
	rec *journal.Record
	at  time.Time
	// begun is called after an intent, nil = not.
	begun func()
}

func (r *rig) acquire(s *journal.Store, id string) *writer {
	r.t.Helper()
	rec, err := s.Acquire(r.t.Context(), journal.Key(id+"-eth0"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = rec.Close() })
	return &writer{t: r.t, rec: rec, at: time.Now().Truncate(time.Microsecond).UTC()}
}

// begin writes the intent of a pod with networks: attachment i is made by types[i].
func (w *writer) begin(pod string, conf []byte, types ...[]string) *writer {
	w.t.Helper()
	w.intent(journal.BootID(), pod, conf, types...)
	if w.begun != nil {
		w.begun()
	}
	return w
}

func (w *writer) intent(boot, pod string, conf []byte, types ...[]string) {
	w.t.Helper()
	p := plan.Plan{PodNamespace: "default", PodName: pod, PodUID: "uid-" + pod}
	for i, plugins := range types {
		n := netconf.Network{Name: fmt.Sprintf("net%d", i), CNIVersion: "1.0.0"}
		for _, typ := range plugins {
			n.Plugins = append(n.Plugins, netconf.Plugin{Type: typ, Conf: conf, Capabilities: map[string]bool{"ips": true}})
		}
		p.Attachments = append(p.Attachments, plan.Attachment{
			Network: n.Name, IfName: fmt.Sprintf("eth%d", i), Default: i == 0, Conf: n, Args: "A=b",
			RuntimeConfig: map[string]json.RawMessage{"ips": json.RawMessage(`["10.0.0.1"]`), "CNIDeviceInfoFile": json.RawMessage(`"/d/cni/x"`)},
		})
	}
	body, err := json.Marshal(record.Body{Sandbox: plan.Sandbox{ContainerID: pod, IfName: "eth0", Netns: "/n"}, ConfName: "m", CNIVersion: "1.0.0", Plan: p})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.rec.Begin(journal.Intent{PodUID: p.PodUID, Boot: boot, Time: w.at, Body: body}); err != nil {
		w.t.Fatal(err)
	}
}

// after appends phases, each so long after the one before.
func (w *writer) after(d time.Duration, phases ...journal.Phase) *writer {
	w.t.Helper()
	for _, p := range phases {
		w.at = w.at.Add(d)
		p.Time = w.at
		if err := w.rec.Append(p); err != nil {
			w.t.Fatal(err)
		}
	}
	return w
}

// made appends what an ADD writes for an attachment of one plugin, 1 ms apart.
func (w *writer) made(items ...int) *writer {
	w.t.Helper()
	for _, i := range items {
		w.after(time.Millisecond, attempting(i), started(i, 0), done(i))
	}
	return w
}

func (w *writer) forget() {
	w.t.Helper()
	if err := w.rec.Forget(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) close() {
	w.t.Helper()
	if err := w.rec.Close(); err != nil {
		w.t.Fatal(err)
	}
}

const address = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}`

func attempting(i int) journal.Phase { return journal.Phase{Phase: journal.Attempting, Item: i} }
func undoing(i int) journal.Phase    { return journal.Phase{Phase: journal.Undoing, Item: i} }
func undone(i int) journal.Phase     { return journal.Phase{Phase: journal.Undone, Item: i} }

func started(i, plugin int) journal.Phase {
	return journal.Phase{Phase: journal.Started, Item: i, Plugin: plugin, Group: 1, Start: 1}
}

func done(i int) journal.Phase {
	p := journal.Phase{Phase: journal.Done, Item: i}
	if i != journal.WholeCall {
		p.Result = json.RawMessage(address)
	}
	return p
}
