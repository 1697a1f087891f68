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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// with is another process, whose configuration differs.
func (r *rig) with(edit func(*handover.Config)) {
	r.t.Helper()
	cfg := handover.Config{StateDir: r.dir, Managers: r.managers, Store: r.store, Kernel: r.machine, Log: slog.New(slog.DiscardHandler)}
	edit(&cfg)
	h, err := handover.New(cfg)
	must(r.t, err)
	r.t.Cleanup(func() { h.Close() })
	r.h = h
}

// refused says that a pod gets neither links nor files, and is not taken for one without any.
func (r *rig) refused(s handover.Sandbox, want string) {
	r.t.Helper()
	_, attach := r.h.Attach(r.t.Context(), s)
	_, prepared := r.h.Prepared(s.PodUID)
	_, nodes := r.h.Nodes(r.t.Context(), s.PodUID)
	for _, err := range []error{attach, prepared, nodes} {
		if err == nil || !strings.Contains(err.Error(), want) {
			r.t.Errorf("error is %v, not %q", err, want)
		}
	}
}

// After a start rows are made from records. Until then a pod that has a record, or may have one, is
// refused, and all others go on.
func TestNotKnownYet(t *testing.T) {
	for name, c := range map[string]struct {
		write   func(dir string)
		refused bool
	}{
		"no folder":          {func(string) {}, false},
		"another pod's":      {func(dir string) { begin(t, dir, "c1", "p2") }, false},
		"the pod's":          {func(dir string) { begin(t, dir, "c1", "p1") }, true},
		"one that is shared": {func(dir string) { begin(t, dir, "c1", "") }, true},
		"one that is broken": {func(dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "c1.jsonl"), []byte("nonsense\n"), 0o600))
		}, true},
		"no folder, but a file": {func(dir string) {
			must(t, os.RemoveAll(dir))
			must(t, os.WriteFile(dir, nil, 0o600))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			dir := filepath.Join(r.dir, record.Devices)
			if name != "no folder" {
				must(t, os.Mkdir(dir, 0o700))
			}
			c.write(dir)
			known := make(chan struct{})
			r.with(func(cfg *handover.Config) { cfg.Known = known })
			s, ns := r.sandbox("s1")
			if c.refused {
				want := "c1 was prepared before the agent's start"
				if name == "no folder, but a file" {
					want = "look for devices"
				}
				r.refused(s, want)
			} else {
				given, err := r.h.Attach(t.Context(), s)
				must(t, err)
				if len(given) > 0 {
					t.Errorf("given are %v", given)
				}
			}
			r.vf(0, "c1", "p1", "sriov0")
			close(known)
			_, err := r.h.Attach(t.Context(), s)
			must(t, err)
			r.is("interfaces", r.names(ns), []string{"sriov0"})
		})
	}
}

// begin makes the record of a claim.
func begin(t *testing.T, dir, claim, pod string) {
	t.Helper()
	records, err := journal.Open(dir, record.Devices)
	must(t, err)
	defer records.Close()
	rec, err := records.Acquire(t.Context(), journal.Key(claim))
	must(t, err)
	must(t, rec.Begin(journal.Intent{PodUID: pod, Body: []byte("{}")}))
	must(t, rec.Close())
}

// A device that is not set up yet, after a reboot, would be in the wrong network.
func TestNotReady(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.nodes(1, "c2", "p1")
	notYet := errors.New("VLAN not set yet")
	r.with(func(cfg *handover.Config) {
		cfg.Ready = func(pod types.UID) error {
			if pod == "p1" {
				return notYet
			}
			return nil
		}
	})
	s, ns := r.sandbox("s1")
	r.refused(s, "VLAN not set yet")
	r.is("interfaces", r.names(ns), nil)
	notYet = nil
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	r.is("interfaces", r.names(ns), []string{"sriov0"})
}

// nodes prepares a VF that a pod has as files.
func (r *rig) nodes(id int, claim, pod string) {
	r.t.Helper()
	addr := kerneltest.VFAddr(pf, id)
	must(r.t, r.machine.Unbind(addr))
	r.machine.ChangeFunction(addr, func(f *kernel.Function) { f.IOMMUGroup = "7" })
	must(r.t, r.machine.Bind(addr, "vfio-pci"))
	text := fmt.Sprintf(`{"Addr":%q,"Driver":"vfio-pci","Vendor":"0x8086","DeviceID":"0x10ca","PFName":"ens1f0","VFID":%d}`, addr, id)
	r.prepare(device.SRIOV, text, claim, pod, v2alpha1.DeviceConfig{})
}

// T-50: what has no link moves nowhere, has no name, and is there as files.
func TestNodes(t *testing.T) {
	r := newRig(t)
	r.nodes(1, "c2", "p1")
	s, _ := r.sandbox("s1")
	given, err := r.h.Attach(t.Context(), s)
	must(t, err)
	names, err := r.h.Prepared("p1")
	must(t, err)
	if len(given) > 0 || len(names) > 0 || r.machine.Count("Move") > 0 {
		t.Errorf("given are %v, names %v", given, names)
	}
	paths, err := r.h.Nodes(t.Context(), "p1")
	must(t, err)
	r.is("files", paths, []string{"/dev/vfio/vfio", "/dev/vfio/7"})
	if paths, err := r.h.Nodes(t.Context(), "p2"); err != nil || len(paths) > 0 {
		t.Errorf("another pod has %v, %v", paths, err)
	}
}

// Who only looks whether a sandbox lacks something takes nothing from another one that lives, but
// does from one that is gone.
func TestYields(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	a, nsA := r.sandbox("a")
	b, nsB := r.sandbox("b")
	_, err := r.h.Attach(t.Context(), a)
	must(t, err)
	b.Yields = true
	if _, err := r.h.Attach(t.Context(), b); !errors.Is(err, handover.ErrElsewhere) {
		t.Fatalf("error is %v", err)
	}
	r.is("interfaces of A", r.names(nsA), []string{"sriov0"})
	r.machine.DestroyNamespace(nsA.Path)
	_, err = r.h.Attach(t.Context(), b)
	must(t, err)
	r.is("interfaces of B", r.names(nsB), []string{"sriov0"})
	_, err = r.h.Attach(t.Context(), b) // its own is none of another
	must(t, err)
}

// A sandbox that runs keeps what it has when something of it went missing, or was renamed in it.
func TestStandingIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.vf(1, "c2", "p1", "sriov1")
	s, ns := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	link, err := r.machine.Link(ns, "sriov0")
	must(t, err)
	must(t, r.machine.Rename(ns, link.Index, "mine0"))
	gone, err := r.machine.Link(ns, "sriov1")
	must(t, err)
	_, err = r.machine.Move(ns, gone.Index, kernel.Namespace{}, "taken0")
	must(t, err)
	moves := r.machine.Count("Move")
	_, err = r.h.Attach(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "0000-03-10-2 of pool pool was given to sandbox s1 and is not there any more") || strings.Contains(err.Error(), "0000-03-10-0") {
		t.Errorf("error is %v", err)
	}
	if got := r.machine.Count("Move"); got != moves {
		t.Errorf("%d moves", got-moves)
	}
	must(t, r.h.Detach(t.Context(), "s1"))
	for i, name := range []string{"ens1f0v0", "ens1f0v1"} {
		if link, err := r.machine.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, i)); err != nil || link.Name != name {
			t.Errorf("VF %d is %+v, %v", i, link, err)
		}
	}
}

// The end of a record is told late: the ADD was repeated, and its devices stay.
func TestDetachIf(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	s, ns := r.sandbox("s1")
	_, err := r.h.Attach(t.Context(), s)
	must(t, err)
	must(t, r.h.DetachIf(t.Context(), "s1", func() bool { return false }))
	r.is("interfaces", r.names(ns), []string{"sriov0"})
	must(t, r.h.DetachIf(t.Context(), "s1", func() bool { return true }))
	r.is("interfaces", r.names(ns), nil)
}

// slow ends a call's context while its last link is brought up.
type slow struct {
	*kerneltest.Machine
	end func()
}

func (s slow) SetUp(ns kernel.Namespace, index int, up bool) error {
	s.end()
	return s.Machine.SetUp(ns, index, up)
}

// T-52: also the last link is undone when nobody waits for it any more.
func TestGivenUp(t *testing.T) {
	r := newRig(t)
	r.vf(0, "c1", "p1", "sriov0")
	r.remember()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.with(func(cfg *handover.Config) { cfg.Kernel = slow{r.machine, cancel} })
	s, _ := r.sandbox("s1")
	if _, err := r.h.Attach(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	r.unchanged()
	r.is("records", r.records(), nil)
}

// counted counts what is asked of the allocations.
type counted struct{ asked int }

func (c *counted) OfPod(types.UID) []device.Allocation {
	c.asked++
	return nil
}

// TestPodWithoutDevice: of a pod that has no device the hooks and the planner ask the table and
// readiness, once each, and nothing else: no kernel, no record. Its rows may be missing because their
// record cannot be had, so that readiness has the last word.
func TestPodWithoutDevice(t *testing.T) {
	r := newRig(t)
	rows := &counted{}
	ready, unready := 0, error(nil)
	known := make(chan struct{})
	close(known)
	r.with(func(cfg *handover.Config) {
		cfg.Known, cfg.Store = known, rows
		cfg.Ready = func(types.UID) error { ready++; return unready }
		cfg.Observe = func(string, int, time.Duration, error) { t.Error("it is counted as a hand-over") }
	})
	s, _ := r.sandbox("s1")
	// What reads the disk would fail now.
	for _, folder := range []string{record.Devices, record.Handovers} {
		must(t, os.RemoveAll(filepath.Join(r.dir, folder)))
		must(t, os.WriteFile(filepath.Join(r.dir, folder), nil, 0o600))
	}
	count := func() (n int) {
		for _, method := range []string{"Links", "LinkOf", "Link", "LinkByIndex", "NamespaceID", "Function", "Move"} {
			n += r.machine.Count(method)
		}
		return n
	}
	before := count()
	for range 3 {
		_, attach := r.h.Attach(t.Context(), s)
		_, prepared := r.h.Prepared(s.PodUID)
		_, nodes := r.h.Nodes(t.Context(), s.PodUID)
		must(t, errors.Join(attach, prepared, nodes))
	}
	if now := count(); now != before {
		t.Errorf("the kernel was asked %d times", now-before)
	}
	if rows.asked != 9 || ready != 9 {
		t.Errorf("the table was asked %d times by nine calls, and readiness %d", rows.asked, ready)
	}
	unready = errors.New("a record cannot be had")
	if _, err := r.h.Attach(t.Context(), s); !errors.Is(err, unready) {
		t.Errorf("attach: %v", err)
	}
	if _, err := r.h.Nodes(t.Context(), s.PodUID); !errors.Is(err, unready) {
		t.Errorf("nodes: %v", err)
	}
}
