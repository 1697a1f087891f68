// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
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

// made remembers nothing: no test of this room makes VFs.
type made struct{}

func (made) Made(kernel.PCIAddr) (int, error)  { return 0, nil }
func (made) SetMade(kernel.PCIAddr, int) error { return nil }

// whole is a node with the real managers and the real hand-over, on a machine in memory.
type whole struct {
	*rig
	machine  *kerneltest.Machine
	handover *handover.Handover
	freeing  func() // called when a VF is about to be freed; nil is fine
}

// told is a manager of VFs that says when one is freed.
type told struct {
	*sriov.Manager
	w *whole
}

func (m told) Free(ctx context.Context, dev device.Device, config v2alpha1.DeviceConfig, saved device.Saved) error {
	if m.w.freeing != nil {
		m.w.freeing()
	}
	return m.Manager.Free(ctx, dev, config, saved)
}

func newMachine(t *testing.T) *kerneltest.Machine {
	t.Helper()
	m := kerneltest.NewMachine()
	m.AddPF(pf, "ens1f0", 8)
	if err := m.SetNumVFs(pf, vfs); err != nil {
		t.Fatal(err)
	}
	return m
}

func newWhole(t *testing.T, m *kerneltest.Machine) *whole {
	t.Helper()
	w := &whole{rig: &rig{dir: t.TempDir(), boot: "boot-1", api: newCluster()}, machine: m}
	w.start(t)
	return w
}

func (w *whole) start(t *testing.T) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	managers := map[device.ManagerType]device.Manager{
		device.SRIOV: told{sriov.New(sriov.Config{Spec: v2alpha1.SRIOVConfig{Enabled: true}, Kernel: w.machine, Provisioned: made{}, Log: log}), w},
		device.Dummy: dummy.New(dummy.Config{Spec: v2alpha1.DummyConfig{Enabled: true, Count: 3}, Kernel: w.machine, Log: log}),
	}
	var err error
	if w.rows, err = state.New(log, device.SRIOV, device.Dummy); err != nil {
		t.Fatal(err)
	}
	if w.handover, err = handover.New(handover.Config{
		StateDir: w.dir, Managers: managers, Store: w.rows, Kernel: w.machine, Log: log,
		Ready: func(pod types.UID) error { return w.Ready(pod) },
	}); err != nil {
		t.Fatal(err)
	}
	if w.Claims, err = New(Config{
		Node: node, Driver: driver, StateDir: w.dir, Boot: w.boot, Managers: managers,
		Store: w.rows, API: w.api, Events: w.api, Handover: w.handover, Log: log,
	}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for kind, m := range managers {
		running.Go(func() {
			if err := m.Run(ctx, w.rows.OnDevices(kind)); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		_ = w.handover.Close()
		_ = w.Close()
	})
	if err := w.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.handover.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	<-w.rows.Initialized()
	w.plugin = w.Plugin(driver)
}

// vfClaim is t22 for VF 0 of the machine.
func vfClaim() *resourceapi.ResourceClaim {
	c := t22()
	c.Status.Allocation.Devices.Results[0].Device = strings.NewReplacer(":", "-", ".", "-").Replace(string(kerneltest.VFAddr(pf, 0)))
	return c
}

func dummyClaim(name, pod string, i string) *resourceapi.ResourceClaim {
	c := newClaim(name, pod, nil, 0)
	c.Status.Allocation.Devices.Results[0].Device = "dummy" + i
	return c
}

// A claim's whole life, with a pod whose sandbox ends without a word.
func TestWholeLife(t *testing.T) { // T-22, T-35, T-48
	w := newWhole(t, newMachine(t))
	vlan, qos := 77, 3
	if err := w.machine.SetVF(pf, 0, kernel.VFChange{VLAN: &vlan, QoS: &qos}); err != nil {
		t.Fatal(err)
	}
	before := w.machine.Snapshot()
	claim := vfClaim()
	link := dummyClaim("c2", "p1", "1")
	w.api.add(claim, link)
	w.mustPrepare(t, claim, link)
	if got, err := w.machine.VF(pf, 0); err != nil || got.VLAN != 1001 {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := w.machine.Link(kernel.Namespace{}, "dummy1"); err != nil {
		t.Fatal(err)
	}
	for c, name := range map[*resourceapi.ResourceClaim]string{claim: "sriov0", link: "dummy1"} {
		d := w.api.devices(c)
		if len(d) != 1 || d[0].NetworkData == nil || d[0].NetworkData.InterfaceName != name || d[0].NetworkData.HardwareAddress == "" {
			t.Errorf("status of %s: %+v", c.Name, d)
		}
	}
	calls := len(w.machine.Calls())
	w.mustPrepare(t, claim, link)
	if more := w.machine.Calls()[calls:]; len(more) > 0 || w.api.writes != 2 {
		t.Errorf("a repeat did %v, and there were %d writes", more, w.api.writes)
	}

	ns := w.machine.AddNamespace("/run/netns/s1")
	if _, err := w.handover.Attach(t.Context(), handover.Sandbox{PodUID: "uid-p1", ID: "s1", Namespace: ns.Path}); err != nil {
		t.Fatal(err)
	}
	w.mustPrepare(t, claim, link) // a kubelet that was started again, while the links are away
	if w.api.writes != 2 {
		t.Errorf("%d writes", w.api.writes)
	}
	w.machine.DestroyNamespace("/run/netns/s1")
	for _, c := range []*resourceapi.ResourceClaim{claim, link} {
		if err := w.unprepare(t, c); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(before, w.machine.Snapshot()); diff != "" {
		t.Errorf("the host is not as it was: %s", diff)
	}
	w.clean2(t)
}

func (w *whole) clean2(t *testing.T) {
	t.Helper()
	if rows := w.rows.Allocations(); len(rows) > 0 {
		t.Errorf("rows are left: %v", rows)
	}
	if keys, err := w.records.Keys(); err != nil || len(keys) > 0 {
		t.Errorf("records are left: %v, %v", keys, err)
	}
}

func TestForeignLinkOfADummysName(t *testing.T) { // T-38
	m := newMachine(t)
	m.AddLink(kernel.Namespace{}, kernel.Link{Name: "dummy1", Kind: "bridge"})
	w := newWhole(t, m)
	before := m.Snapshot()
	claim := dummyClaim("c1", "p1", "1")
	w.api.add(claim)
	if err := w.prepare(t, claim)[claim.UID].Err; err == nil || !strings.Contains(err.Error(), "dummy1") {
		t.Fatalf("got %v", err)
	}
	if err := w.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, m.Snapshot()); diff != "" {
		t.Error(diff)
	}
	w.clean2(t)
}

func TestFreeWhileThePFIsAway(t *testing.T) { // T-34
	w := newWhole(t, newMachine(t))
	claim := vfClaim()
	w.api.add(claim)
	before := w.machine.Snapshot()
	w.mustPrepare(t, claim)
	w.machine.Fail("SetVF", syscall.ENODEV)
	if err := w.unprepare(t, claim); err == nil {
		t.Fatal("no error")
	}
	if len(w.rows.OfClaim(claim.UID)) != 1 {
		t.Fatal("no row")
	}
	w.machine.Fail("SetVF", nil)
	w.machine.RenamePF(pf, "ens1f0np0")
	if err := w.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	w.machine.RenamePF(pf, "ens1f0")
	if diff := cmp.Diff(before, w.machine.Snapshot()); diff != "" {
		t.Error(diff)
	}
	w.clean2(t)
}

// After a reboot the machine has neither VLANs nor dummy links, and the kubelet does not call.
func TestRebootOfTheWholeNode(t *testing.T) { // T-47
	w := newWhole(t, newMachine(t))
	claim, link := vfClaim(), dummyClaim("c2", "p1", "1")
	w.api.add(claim, link)
	w.mustPrepare(t, claim, link)
	w.machine, w.boot = newMachine(t), "boot-2"
	before := w.machine.Snapshot()
	w.start(t)
	if got, err := w.machine.VF(pf, 0); err != nil || got.VLAN != 1001 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := w.machine.Link(kernel.Namespace{}, "dummy1"); err != nil {
		t.Error(err)
	}
	ns := w.machine.AddNamespace("/run/netns/s2")
	if _, err := w.handover.Attach(t.Context(), handover.Sandbox{PodUID: "uid-p1", ID: "s2", Namespace: ns.Path}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*resourceapi.ResourceClaim{claim, link} {
		if err := w.unprepare(t, c); err != nil {
			t.Fatal(err)
		}
	}
	w.machine.DestroyNamespace("/run/netns/s2")
	if diff := cmp.Diff(before, w.machine.Snapshot()); diff != "" {
		t.Error(diff)
	}
	w.clean2(t)
}

// A PF's driver that is loaded anew takes the VLANs of its VFs with it: the next sandbox has them
// set all the same, also that of an agent which was started meanwhile, and so has the kubelet's
// next call.
func TestVLANLostWithVFs(t *testing.T) {
	for name, then := range map[string]func(*testing.T, *whole, *resourceapi.ResourceClaim){
		"at once":       func(*testing.T, *whole, *resourceapi.ResourceClaim) {},
		"restart":       func(t *testing.T, w *whole, _ *resourceapi.ResourceClaim) { t.Helper(); w.start(t) },
		"prepare again": func(t *testing.T, w *whole, c *resourceapi.ResourceClaim) { t.Helper(); w.mustPrepare(t, c) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWhole(t, newMachine(t))
			claim := vfClaim()
			w.api.add(claim)
			w.mustPrepare(t, claim)
			for _, n := range []int{0, vfs} {
				if err := w.machine.SetNumVFs(pf, n); err != nil {
					t.Fatal(err)
				}
			}
			then(t, w, claim)
			if vf, err := w.machine.VF(pf, 0); err != nil || (vf.VLAN == 1001) != (name != "at once") {
				t.Errorf("before the hand-over: %+v, %v", vf, err)
			}
			ns := w.machine.AddNamespace("/run/netns/s1")
			if _, err := w.handover.Attach(t.Context(), handover.Sandbox{PodUID: "uid-p1", ID: "s1", Namespace: ns.Path}); err != nil {
				t.Fatal(err)
			}
			if vf, err := w.machine.VF(pf, 0); err != nil || vf.VLAN != 1001 {
				t.Errorf("in the pod: %+v, %v", vf, err)
			}
			if n := w.machine.Count("SetVF"); n != 2 {
				t.Errorf("%d writes", n)
			}
		})
	}
}

// What cannot be set again is not given to a pod.
func TestVLANLostForGood(t *testing.T) {
	w := newWhole(t, newMachine(t))
	claim := vfClaim()
	w.api.add(claim)
	w.mustPrepare(t, claim)
	if err := w.machine.SetVF(pf, 0, kernel.VFChange{VLAN: new(0)}); err != nil {
		t.Fatal(err)
	}
	w.machine.Fail("SetVF", syscall.EOPNOTSUPP)
	ns := w.machine.AddNamespace("/run/netns/s1")
	s := handover.Sandbox{PodUID: "uid-p1", ID: "s1", Namespace: ns.Path}
	if given, err := w.handover.Attach(t.Context(), s); err == nil {
		t.Errorf("given %+v", given)
	}
	if _, err := w.machine.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, 0)); err != nil {
		t.Error(err)
	}
}

// A VF that is handed over as files has its VLAN set again as well, before a container gets them, and is
// not given without; while its claim is freed nothing sets it any more.
func TestVLANLostOfFiles(t *testing.T) {
	m := newMachine(t)
	addr := kerneltest.VFAddr(pf, 0)
	m.ChangeFunction(addr, func(f *kernel.Function) { f.IOMMUGroup = "7" })
	if err := errors.Join(m.Unbind(addr), m.Bind(addr, "vfio-pci")); err != nil {
		t.Fatal(err)
	}
	w := newWhole(t, m)
	claim := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":1001}`}, 0)
	claim.Status.Allocation.Devices.Results[0].Device = deviceName(0)
	w.api.add(claim)
	w.mustPrepare(t, claim)
	vlan := func(want int) {
		t.Helper()
		if vf, err := m.VF(pf, 0); err != nil || vf.VLAN != want {
			t.Errorf("%+v, %v", vf, err)
		}
	}
	lose := func() {
		t.Helper()
		if err := m.SetVF(pf, 0, kernel.VFChange{VLAN: new(0)}); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	if paths, err := w.handover.Nodes(t.Context(), "uid-p1"); err != nil || len(paths) != 2 {
		t.Errorf("%q, %v", paths, err)
	}
	vlan(1001)
	lose()
	m.Fail("SetVF", syscall.EOPNOTSUPP)
	if paths, err := w.handover.Nodes(t.Context(), "uid-p1"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("given %q, %v", paths, err)
	}
	m.Fail("SetVF", nil)
	w.freeing = func() {
		if paths, err := w.handover.Nodes(t.Context(), "uid-p1"); err == nil {
			t.Errorf("while it is freed: %q", paths)
		}
		vlan(0)
	}
	if err := w.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	vlan(0)
}

// given is a claim whose VF is in the pod's sandbox s1.
func (w *whole) given(t *testing.T) (claim *resourceapi.ResourceClaim, ns kernel.Namespace) {
	t.Helper()
	claim = vfClaim()
	w.api.add(claim)
	w.mustPrepare(t, claim)
	ns = w.machine.AddNamespace("/run/netns/s1")
	if _, err := w.handover.Attach(t.Context(), handover.Sandbox{PodUID: "uid-p1", ID: "s1", Namespace: ns.Path}); err != nil {
		t.Fatal(err)
	}
	return claim, ns
}

// A MAC address that the PF fixed while a pod had the VF stays, and nothing hangs on it.
func TestFreeWithFixedMAC(t *testing.T) {
	w := newWhole(t, newMachine(t))
	claim, ns := w.given(t)
	fixed := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	if err := w.machine.SetVF(pf, 0, kernel.VFChange{MAC: fixed}); err != nil {
		t.Fatal(err)
	}
	link, err := w.machine.LinkOf(ns, kerneltest.VFAddr(pf, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, up := range []bool{false, true} { // it takes effect
		if err := w.machine.SetUp(ns, link.Index, up); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	link, err = w.machine.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, 0))
	if err != nil || link.Name != "ens1f0v0" || link.MAC.String() != fixed.String() {
		t.Errorf("home is %+v, %v", link, err)
	}
	w.clean2(t)
}

// A VF that was bound, while a pod had it, to a driver that makes no link has nothing to bring home.
func TestFreeOfReboundVF(t *testing.T) {
	for _, driver := range []string{"vfio-pci", "mlx5_vfio_pci", "uio_pci_generic", "igb_uio", "pci-stub"} {
		t.Run(driver, func(t *testing.T) {
			w := newWhole(t, newMachine(t))
			claim, ns := w.given(t)
			addr := kerneltest.VFAddr(pf, 0)
			if err := w.machine.Unbind(addr); err != nil {
				t.Fatal(err)
			}
			w.machine.ChangeFunction(addr, func(f *kernel.Function) { f.Driver, f.IOMMUGroup = driver, "7" })
			w.machine.DestroyNamespace(ns.Path)
			if err := w.unprepare(t, claim); err != nil {
				t.Fatal(err)
			}
			w.clean2(t)
		})
	}
}

// An alternative name that a pod gave its VF, or that the host gave away meanwhile, keeps the VF
// from nothing.
func TestAlternativeNamesOfAPod(t *testing.T) {
	for name, c := range map[string]struct{ before, inPod []string }{
		"a pod's own":           {nil, []string{"mine"}},
		"a link's of the host":  {nil, []string{"mine", "ens1f0"}},
		"its own, taken by now": {[]string{"uplink"}, []string{"uplink"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.ChangeLink(kernel.Namespace{}, "ens1f0v0", func(l *kernel.Link) { l.AltNames = c.before })
			w := newWhole(t, m)
			claim, ns := w.given(t)
			m.ChangeLink(ns, "sriov0", func(l *kernel.Link) { l.AltNames = c.inPod })
			if c.before != nil {
				m.AddLink(kernel.Namespace{}, kernel.Link{Name: c.before[0], Kind: "bridge"})
			}
			if err := w.handover.Detach(t.Context(), "s1"); err != nil {
				t.Fatal(err)
			}
			link, err := m.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, 0))
			if err != nil || link.Name != "ens1f0v0" || len(link.AltNames) > 0 {
				t.Errorf("home is %+v, %v", link, err)
			}
			if err := w.unprepare(t, claim); err != nil {
				t.Fatal(err)
			}
			w.clean2(t)
		})
	}
}

// A hook that comes while a claim is freed, when its link is home and its row is still there, gives the
// pod nothing: the row goes, and nobody would know of the link. A claim that could not be freed is not
// handed over either, and one that is prepared anew is.
func TestHandOverWhileFreed(t *testing.T) { // I1
	w := newWhole(t, newMachine(t))
	before := w.machine.Snapshot()
	claim, ns := w.given(t)
	pod := string(claim.Status.ReservedFor[0].UID)
	attach := func(id string) error {
		_, err := w.handover.Attach(t.Context(), handover.Sandbox{PodUID: pod, ID: id, Namespace: ns.Path})
		return err
	}
	refused := func(when string) {
		t.Helper()
		if err := attach("s1"); !errors.Is(err, device.ErrFreed) || !strings.Contains(err.Error(), "claim default/c1 is being freed") {
			t.Errorf("%s: %v", when, err)
		}
		if _, err := w.machine.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, 0)); err != nil {
			t.Errorf("%s: the VF is not at home: %v", when, err)
		}
	}
	w.freeing = func() { refused("while it is freed") }
	w.machine.Fail("SetVF", syscall.ENODEV)
	if err := w.unprepare(t, claim); err == nil {
		t.Fatal("it is freed")
	}
	refused("when it could not be freed")
	w.machine.Fail("SetVF", nil)
	w.freeing = func() { refused("while it is freed for the next call") }
	w.mustPrepare(t, claim)
	if err := attach("s1"); err != nil {
		t.Errorf("prepared anew: %v", err)
	}
	w.freeing = func() { refused("while it is freed once more") }
	if err := w.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	w.freeing = nil
	if err := attach("s1"); err != nil {
		t.Errorf("a pod without a claim: %v", err)
	}
	w.machine.DestroyNamespace(ns.Path)
	if d := cmp.Diff(before, w.machine.Snapshot()); d != "" {
		t.Errorf("the host (-before +after):\n%s", d)
	}
}

// Files of one IOMMU group are one process': a VF that is bound to vfio is refused while a pod has another
// of its group, by whatever driver, and prepared when that is free.
func TestVFsOfOneIOMMUGroup(t *testing.T) { // I1
	m := newMachine(t)
	for i, group := range []string{"7", "7", "8", "7"} {
		addr := kerneltest.VFAddr(pf, i)
		m.ChangeFunction(addr, func(f *kernel.Function) { f.IOMMUGroup = group })
		if i == 3 {
			continue // has its link
		}
		if err := errors.Join(m.Unbind(addr), m.Bind(addr, "vfio-pci")); err != nil {
			t.Fatal(err)
		}
	}
	w := newWhole(t, m)
	claim := func(name, pod string, i int) *resourceapi.ResourceClaim {
		c := newClaim(name, pod, nil, 0)
		c.Status.Allocation.Devices.Results[0].Device = deviceName(i)
		w.api.add(c)
		return c
	}
	link, files, same, other := claim("c3", "p3", 3), claim("c0", "p0", 0), claim("c4", "p0", 1), claim("c1", "p1", 1)
	refused := func(holder string, i int) {
		t.Helper()
		want := "claim default/c1: request net0: device " + deviceName(1) + ": IOMMU group 7: device " + deviceName(i) +
			" of the same group is prepared for claim default/" + holder
		if err := w.prepare(t, other)[other.UID].Err; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v", err)
		}
	}
	w.mustPrepare(t, link)
	refused("c3", 3)
	if err := w.unprepare(t, link); err != nil {
		t.Fatal(err)
	}
	w.mustPrepare(t, files, claim("c2", "p2", 2))
	refused("c0", 0)
	w.mustPrepare(t, same) // the same pod's
	for _, c := range []*resourceapi.ResourceClaim{files, same} {
		if err := w.unprepare(t, c); err != nil {
			t.Fatal(err)
		}
	}
	w.mustPrepare(t, other)
}
