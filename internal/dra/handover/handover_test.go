// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/dummy"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/sriov"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

const pf kernel.PCIAddr = "0000:03:00.0"

// rig is a node with four VFs, two of which p1 has, and a dummy that p1 has as well.
type rig struct {
	t        *testing.T
	machine  *kerneltest.Machine
	store    *state.Store
	managers map[device.ManagerType]device.Manager
	dir      string
	h        *handover.Handover
	before   map[string]string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, machine: kerneltest.NewMachine(), dir: t.TempDir()}
	r.machine.AddPF(pf, "ens1f0", 8)
	if err := r.machine.SetNumVFs(pf, 4); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r.managers = map[device.ManagerType]device.Manager{
		device.SRIOV: sriov.New(sriov.Config{Kernel: r.machine, Log: log}),
		device.Dummy: dummy.New(dummy.Config{Kernel: r.machine, Log: log}),
	}
	var err error
	if r.store, err = state.New(log, device.SRIOV, device.Dummy); err != nil {
		t.Fatal(err)
	}
	r.open()
	return r
}

// open is a new process: nothing is known but what is in the files.
func (r *rig) open() {
	r.t.Helper()
	h, err := handover.New(handover.Config{
		StateDir: r.dir, Managers: r.managers, Store: r.store, Kernel: r.machine, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.h = h
	r.t.Cleanup(func() { h.Close() })
}

// vf prepares a VF for a claim of a pod.
func (r *rig) vf(id int, claim, pod, podIfName string) {
	r.t.Helper()
	addr := kerneltest.VFAddr(pf, id)
	link, err := r.machine.LinkOf(kernel.Namespace{}, addr)
	if err != nil {
		r.t.Fatal(err)
	}
	text := fmt.Sprintf(`{"Addr":%q,"Driver":"igbvf","Vendor":"0x8086","DeviceID":"0x10ca","PFName":"ens1f0","VFID":%d,"KernelIfaceName":%q}`, addr, id, link.Name)
	r.prepare(device.SRIOV, text, claim, pod, v2alpha1.DeviceConfig{PodIfName: podIfName})
}

func (r *rig) dummy(claim, pod, podIfName string) {
	r.t.Helper()
	r.prepare(device.Dummy, `{"Name":"dummy0"}`, claim, pod, v2alpha1.DeviceConfig{PodIfName: podIfName})
}

func (r *rig) prepare(kind device.ManagerType, text, claim, pod string, config v2alpha1.DeviceConfig) {
	r.t.Helper()
	m := r.managers[kind]
	dev, err := m.RestoreDevice([]byte(text))
	if err != nil {
		r.t.Fatal(err)
	}
	saved, err := m.Inspect(dev, config)
	if err != nil {
		r.t.Fatal(err)
	}
	if dev, err = m.Setup(r.t.Context(), dev, config, saved); err != nil {
		r.t.Fatal(err)
	}
	r.store.Put(device.Allocation{
		DeviceName: dev.Name(), Manager: kind, PreparedDevice: dev, Pool: "pool",
		PodUID: types.UID(pod), ClaimUID: types.UID(claim), Config: config, Saved: saved,
	})
}

// remember keeps what the machine is now, for unchanged.
func (r *rig) remember() { r.before = r.machine.Snapshot() }

// unchanged says that the machine is as it was, but for namespaces that came or went.
func (r *rig) unchanged() {
	r.t.Helper()
	host := cmpopts.IgnoreMapEntries(func(k, _ string) bool { return strings.Contains(k, "/run/netns/") || strings.HasPrefix(k, "namespace") })
	if diff := cmp.Diff(r.before, r.machine.Snapshot(), host); diff != "" {
		r.t.Errorf("the machine changed (-before +now):\n%s", diff)
	}
}

func (r *rig) sandbox(id string) (handover.Sandbox, kernel.Namespace) {
	r.t.Helper()
	ns := r.machine.AddNamespace("/run/netns/" + id)
	return handover.Sandbox{PodUID: "p1", ID: id, Namespace: ns.Path}, ns
}

// names are the interfaces of a namespace that are up, without lo.
func (r *rig) names(ns kernel.Namespace) (all []string) {
	r.t.Helper()
	links, err := r.machine.Links(ns)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range links {
		if l.Name != "lo" && l.Up {
			all = append(all, l.Name)
		}
	}
	return all
}

// records are the files of hand-overs.
func (r *rig) records() (all []string) {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, "handovers"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func (r *rig) is(what string, got, want []string) {
	r.t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.SortSlices(strings.Compare)); diff != "" {
		r.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// T-40, T-42: there under its name and up; back as it was; both as often as anybody likes.
func TestAttachDetach(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.vf(1, "c2", "p1", "")
	r.remember()
	s, ns := r.sandbox("s1")
	names, err := r.h.Prepared("p1")
	must(t, err)
	r.is("reserved names", names, []string{"sriov0", "ens1f0v1"})
	given, err := r.h.Attach(t.Context(), s)
	must(t, err)
	r.is("interfaces", r.names(ns), []string{"sriov0", "ens1f0v1"})
	if len(given) != 2 || given[0].IfName != "sriov0" && given[1].IfName != "sriov0" || given[0].PCI == "" {
		t.Errorf("given are %v", given)
	}
	moves := r.machine.Count("Move")
	again, err := r.h.Attach(t.Context(), s)
	must(t, err)
	if diff := cmp.Diff(given, again); diff != "" || r.machine.Count("Move") != moves {
		t.Errorf("a repeated Attach moved %d links and gave (-first +again):\n%s", r.machine.Count("Move")-moves, diff)
	}
	for range 2 {
		must(t, r.h.Detach(t.Context(), "s1"))
		r.unchanged()
		r.is("records", r.records(), nil)
	}
}

// A pod without claims costs nothing.
func TestNothingPrepared(t *testing.T) {
	r := newRig(t)
	s, _ := r.sandbox("s1")
	given, err := r.h.Attach(t.Context(), s)
	must(t, err)
	if len(given) != 0 || len(r.records()) != 0 {
		t.Errorf("given are %v, records %v", given, r.records())
	}
}

// T-41, T-29: what cannot be is found before anything moves.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*rig, *handover.Sandbox, kernel.Namespace)
		want string
	}{
		{"a link has the name", func(r *rig, _ *handover.Sandbox, ns kernel.Namespace) {
			r.machine.AddLink(ns, kernel.Link{Name: "sriov0"})
		}, `podIfName "sriov0" is taken by an interface that the pod has already`},
		{"a link has it as alternative name", func(r *rig, _ *handover.Sandbox, ns kernel.Namespace) {
			r.machine.AddLink(ns, kernel.Link{Name: "eth0", AltNames: []string{"sriov0"}})
		}, `podIfName "sriov0" is taken by an alternative name of interface eth0`},
		{"another network has it", func(_ *rig, s *handover.Sandbox, _ kernel.Namespace) {
			s.Reserved = []string{"net1", "sriov0"}
		}, `podIfName "sriov0" is taken by another network of the pod`},
		{"two devices", func(r *rig, _ *handover.Sandbox, _ kernel.Namespace) {
			r.vf(2, "c3", "p1", "sriov0")
		}, `podIfName "sriov0" is taken by device 0000-03-10-0`},
		{"T-49: no namespace", func(_ *rig, s *handover.Sandbox, _ kernel.Namespace) { s.Namespace = "" }, "hostNetwork"},
		{"a namespace that is gone", func(_ *rig, s *handover.Sandbox, _ kernel.Namespace) { s.Namespace = "/run/netns/none" }, "/run/netns/none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.vf(0, "c1", "p1", "sriov0")
			r.vf(1, "c2", "p1", "other0")
			s, ns := r.sandbox("s1")
			c.edit(r, &s, ns)
			r.remember()
			_, err := r.h.Attach(t.Context(), s)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is %v, not %q", err, c.want)
			}
			r.unchanged()
			if r.machine.Count("Move") != 0 {
				t.Error("something moved")
			}
		})
	}
}

// One that cannot be moved, or brought up, brings all others home.
func TestUndone(t *testing.T) {
	for _, c := range []struct {
		method string
		n      int // the call that fails
	}{{"Move", 1}, {"Move", 2}, {"SetUp", 1}, {"SetUp", 2}} {
		t.Run(fmt.Sprint(c.method, c.n), func(t *testing.T) {
			r := newRig(t)
			r.vf(0, "c1", "p1", "sriov0")
			r.vf(1, "c2", "p1", "sriov1")
			r.remember()
			s, _ := r.sandbox("s1")
			broken := errors.New("broken")
			fail := &failing{Machine: r.machine, method: c.method, left: c.n, err: broken}
			h, err := handover.New(handover.Config{StateDir: r.dir, Managers: r.managers, Store: r.store, Kernel: fail, Log: slog.New(slog.DiscardHandler)})
			must(t, err)
			defer h.Close()
			if _, err := h.Attach(t.Context(), s); !errors.Is(err, broken) {
				t.Fatalf("error is %v", err)
			}
			r.unchanged()
			r.is("records", r.records(), nil)
			_, err = h.Attach(t.Context(), s)
			must(t, err)
		})
	}
}

// failing fails one call of a method.
type failing struct {
	*kerneltest.Machine
	method string
	left   int
	err    error
}

func (f *failing) fails(method string) error {
	if method == f.method {
		f.left--
		if f.left == 0 {
			return f.err
		}
	}
	return nil
}

func (f *failing) Move(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error) {
	if err := f.fails("Move"); err != nil {
		return kernel.Link{}, err
	}
	return f.Machine.Move(from, index, to, name)
}

func (f *failing) SetUp(ns kernel.Namespace, index int, up bool) error {
	if err := f.fails("SetUp"); err != nil {
		return err
	}
	return f.Machine.SetUp(ns, index, up)
}

// T-43: the namespace ended before anybody said so: a VF that came home under its pod-side name,
// or under any other, is made what it was.
func TestNamespaceGone(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.vf(1, "c2", "p1", "ens1f0") // taken on the host: it comes back as devN
	r.dummy("c3", "p1", "d0")
	s, ns := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	r.is("interfaces", r.names(ns), []string{"sriov0", "ens1f0", "d0"})
	r.machine.DestroyNamespace(ns.Path)
	r.open() // also after the agent was started again
	must(t, r.h.Detach(t.Context(), "s1"))
	for i, name := range []string{"ens1f0v0", "ens1f0v1"} {
		link, err := r.machine.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, i))
		if err != nil || link.Name != name || link.Up {
			t.Errorf("VF %d is %+v, %v", i, link, err)
		}
	}
	r.is("records", r.records(), nil)

	// T-47: another sandbox of the pod has all of it again, the dummy too.
	s2, ns2 := r.sandbox("s2")
	_, err = r.h.Attach(t.Context(), s2)
	must(t, err)
	r.is("interfaces", r.names(ns2), []string{"sriov0", "ens1f0", "d0"})
}

// A late end of sandbox A takes nothing from sandbox B of the same pod.
func TestLateDetach(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	a, nsA := r.sandbox("a")
	b, nsB := r.sandbox("b")
	_, err := r.h.Attach(t.Context(), a)
	must(t, err)
	_, err = r.h.Attach(t.Context(), b)
	must(t, err)
	r.is("interfaces of A", r.names(nsA), nil)
	r.is("interfaces of B", r.names(nsB), []string{"sriov0"})
	must(t, r.h.Detach(t.Context(), "a"))
	r.is("interfaces of B", r.names(nsB), []string{"sriov0"})
}

// T-48: no end of the sandbox was told, and the claim is given back. Another claim's link stays.
func TestReturn(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.vf(1, "c2", "p1", "sriov1")
	s, ns := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	must(t, r.h.Return(t.Context(), "c1", "p1"))
	r.is("interfaces", r.names(ns), []string{"sriov1"})
	must(t, r.h.Return(t.Context(), "c1", "p1"))
	must(t, r.h.Return(t.Context(), "c2", "p1"))
	r.is("interfaces", r.names(ns), nil)
	r.is("records", r.records(), nil)
}

// A claim that is freed while its pod is given its devices comes home all the same: what the hook has
// read before it had its turn counts no more, and what it has begun is waited for.
func TestReturnMeetsAttach(t *testing.T) {
	for _, when := range []string{"before its turn", "before its record"} {
		t.Run(when, func(t *testing.T) {
			r := newRig(t)
			r.vf(0, "c1", "p1", "sriov0")
			r.remember()
			s, _ := r.sandbox("s1")
			synctest.Test(t, func(t *testing.T) {
				var freed error
				var freeing sync.WaitGroup
				free := sync.OnceFunc(func() {
					freed = errors.New("it is being freed")
					freeing.Go(func() { must(t, r.h.Return(t.Context(), "c1", "p1")) })
					synctest.Wait() // it is done, or waits
				})
				r.with(func(cfg *handover.Config) {
					cfg.Ready = func(types.UID) error {
						now := freed
						if when == "before its turn" {
							free()
						}
						return now
					}
					if when == "before its record" {
						cfg.Kernel = looking{r.machine, free}
					}
				})
				_, err := r.h.Attach(t.Context(), s)
				if freeing.Wait(); when == "before its turn" && err == nil {
					t.Error("it is handed over")
				}
			})
			r.unchanged()
			r.is("records", r.records(), nil)
		})
	}
}

// looking tells of each look into a namespace.
type looking struct {
	*kerneltest.Machine
	looked func()
}

func (l looking) Links(ns kernel.Namespace) ([]kernel.Link, error) {
	l.looked()
	return l.Machine.Links(ns)
}

// T-45: one that cannot be brought home stops no other one, and is brought later.
func TestFirstErrorStopsNothing(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.vf(1, "c2", "p1", "sriov1")
	r.remember()
	s, ns := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	broken := errors.New("broken")
	fail := &failing{Machine: r.machine, method: "Move", left: 1, err: broken}
	h, err := handover.New(handover.Config{StateDir: r.dir, Managers: r.managers, Store: r.store, Kernel: fail, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer h.Close()
	if err := h.Detach(t.Context(), "s1"); !errors.Is(err, broken) {
		t.Fatalf("error is %v", err)
	}
	if left := r.names(ns); len(left) != 1 {
		t.Errorf("%v are left", left)
	}
	must(t, h.Detach(t.Context(), "s1"))
	r.unchanged()
}

// A VF that was destroyed while its pod had it is home.
func TestDeviceGone(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	s, _ := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	must(t, r.machine.SetNumVFs(pf, 0))
	must(t, r.h.Detach(t.Context(), "s1"))
	r.is("records", r.records(), nil)
}

// The name on the host was taken meanwhile: the link is home under another.
func TestHomeNameTaken(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	s, _ := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	r.machine.AddLink(kernel.Namespace{}, kernel.Link{Name: "ens1f0v0"})
	must(t, r.h.Detach(t.Context(), "s1"))
	if _, err := r.machine.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, 0)); err != nil {
		t.Error(err)
	}
	r.is("records", r.records(), nil)
}

// A crash after any step: what was not finished is undone at the start, what was finished stands.
func TestCrash(t *testing.T) {
	for cut := range 7 { // lines of the record that were written
		t.Run(fmt.Sprint("after line ", cut), func(t *testing.T) {
			r := newRig(t)
			r.vf(0, "c1", "p1", "sriov0")
			r.vf(1, "c2", "p1", "sriov1")
			r.remember()
			s, ns := r.sandbox("s1")
			_, err := r.h.Attach(t.Context(), s)
			must(t, err)
			// The intent, two lines a link, and the last one: those behind the cut were never written.
			path := filepath.Join(r.dir, "handovers", "s1.jsonl")
			text, err := os.ReadFile(path)
			must(t, err)
			lines := strings.SplitAfter(string(text), "\n")
			if len(lines) != 7 {
				t.Fatalf("the record has %d lines:\n%s", len(lines)-1, text)
			}
			// What a line is about to do may have been done or not: here it was.
			must(t, os.WriteFile(path, []byte(strings.Join(lines[:cut], "")), 0o600))
			if cut < 4 { // the second link was not attempted
				link, err := r.machine.Link(ns, "sriov1")
				must(t, err)
				_, err = r.machine.Move(ns, link.Index, kernel.Namespace{}, "ens1f0v1")
				must(t, err)
			}
			if cut < 2 {
				link, err := r.machine.Link(ns, "sriov0")
				must(t, err)
				_, err = r.machine.Move(ns, link.Index, kernel.Namespace{}, "ens1f0v0")
				must(t, err)
			}
			r.open()
			must(t, r.h.Recover(t.Context()))
			if cut == 6 {
				r.is("interfaces", r.names(ns), []string{"sriov0", "sriov1"})
			} else {
				r.is("interfaces", r.names(ns), nil)
			}
			_, err = r.h.Attach(t.Context(), s)
			must(t, err)
			r.is("interfaces", r.names(ns), []string{"sriov0", "sriov1"})
			must(t, r.h.Detach(t.Context(), "s1"))
			r.unchanged()
		})
	}
}

// What cannot come home is tried again for days, and does not make its record grow.
func TestRecordDoesNotGrow(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.vf(1, "c1", "p1", "sriov1")
	r.remember()
	s, _ := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	r.machine.Fail("Move", errors.New("no such luck"))
	var sizes []int64
	for range 5 {
		if r.h.Detach(t.Context(), "s1") == nil {
			t.Fatal("they are home")
		}
		info, err := os.Stat(filepath.Join(r.dir, "handovers", "s1.jsonl"))
		must(t, err)
		sizes = append(sizes, info.Size())
	}
	if sizes[0] != sizes[4] {
		t.Errorf("sizes are %d", sizes)
	}
	r.machine.Fail("Move", nil)
	must(t, r.h.Detach(t.Context(), "s1"))
	r.unchanged()
}

// T-52: who asks waits no longer than it wants to, and what was begun is undone.
func TestDeadline(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.vf(1, "c2", "p1", "sriov1")
	r.remember()
	s, _ := r.sandbox("s1")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 0, errors.New("too late"))
	defer cancel()
	start := time.Now()
	if _, err := r.h.Attach(ctx, s); err == nil || !strings.Contains(err.Error(), "too late") {
		t.Fatalf("error is %v after %s", err, time.Since(start))
	}
	r.unchanged()
}
