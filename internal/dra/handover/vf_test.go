// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/sriov"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// patience is for an emulated machine that others keep busy.
const patience = 2 * time.Minute

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !holds(); {
		if time.Now().After(late) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// vfs makes VFs of a PF, and waits for their links.
func vfs(t *testing.T, machine *kernel.Machine, count int) (pf kernel.Function, all []kernel.PCIAddr) {
	t.Helper()
	functions, err := machine.Functions()
	check(t, err)
	for _, f := range functions {
		if f.TotalVFs > 0 && len(f.Netdevs) > 0 {
			pf = f
			break
		}
	}
	if pf.Addr == "" {
		t.Fatal("the machine has no PF")
	}
	link, err := machine.LinkOf(kernel.Namespace{}, pf.Addr)
	check(t, err)
	check(t, machine.SetUp(kernel.Namespace{}, link.Index, true))
	check(t, machine.SetNumVFs(pf.Addr, 0))
	check(t, machine.SetNumVFs(pf.Addr, count))
	t.Cleanup(func() { check(t, machine.SetNumVFs(pf.Addr, 0)) })
	pf, err = machine.Function(pf.Addr)
	check(t, err)
	for i := range count {
		eventually(t, fmt.Sprintf("VF %d has a link", i), func() bool {
			functions, err := machine.Functions()
			check(t, err)
			for _, f := range functions {
				if f.PF == pf.Addr && f.VFID == i && len(f.Netdevs) > 0 {
					all = append(all, f.Addr)
					return true
				}
			}
			return false
		})
	}
	return pf, all
}

// newVFs is a node on which pod p1 has two real VFs, as net0 and net1.
func newVFs(t *testing.T) (r *real, pf kernel.Function, addrs []kernel.PCIAddr) {
	t.Helper()
	if !kerneltest.InMachine() {
		t.Skip("needs a kernel with SR-IOV virtual functions: make vm-test runs it in one")
	}
	machine, err := kernel.Open("/sys")
	check(t, err)
	t.Cleanup(func() { check(t, machine.Close()) })
	pf, addrs = vfs(t, machine, 2)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	manager := sriov.New(sriov.Config{Kernel: machine, Log: log})
	store, err := state.New(log)
	check(t, err)
	for i, addr := range addrs {
		link, err := machine.LinkOf(kernel.Namespace{}, addr)
		check(t, err)
		f, err := machine.Function(addr)
		check(t, err)
		dev, err := manager.RestoreDevice([]byte(fmt.Sprintf(
			`{"Addr":%q,"Driver":%q,"PFName":%q,"VFID":%d,"KernelIfaceName":%q}`, addr, f.Driver, pf.Netdevs[0], f.VFID, link.Name)))
		check(t, err)
		config := v2alpha1.DeviceConfig{PodIfName: fmt.Sprint("net", i), VLAN: 100}
		saved, err := manager.Inspect(dev, config)
		check(t, err)
		dev, err = manager.Setup(t.Context(), dev, config, saved)
		check(t, err)
		store.Put(device.Allocation{
			DeviceName: dev.Name(), Manager: device.SRIOV, PreparedDevice: dev, Pool: "pool", PodUID: "p1",
			ClaimUID: types.UID(fmt.Sprint("c", i)), Config: config, Saved: saved,
		})
	}
	h, err := handover.New(handover.Config{
		StateDir: t.TempDir(), Managers: map[device.ManagerType]device.Manager{device.SRIOV: manager}, Store: store, Kernel: machine, Log: log,
	})
	check(t, err)
	t.Cleanup(func() { check(t, h.Close()) })
	return &real{machine: machine, store: store, h: h}, pf, addrs
}

// homes are the VFs' links on the host.
func (r *real) homes(t *testing.T, addrs []kernel.PCIAddr) (all []kernel.LinkState) {
	t.Helper()
	for _, addr := range addrs {
		link, err := r.machine.LinkOf(kernel.Namespace{}, addr)
		check(t, err)
		all = append(all, kernel.StateOf(link))
	}
	return all
}

// T-40, T-42, T-43 on real VFs: there and back; and when the namespace ends first, the kernel brings
// them home under the names that they had in it, in its own time.
func TestVFs(t *testing.T) {
	r, _, addrs := newVFs(t)
	before := r.homes(t, addrs)
	for _, end := range []string{"detached", "gone"} {
		path := kerneltest.NetnsThatGoes(t)
		given, err := r.h.Attach(t.Context(), sandboxAt(end, path))
		check(t, err)
		there := r.links(t, path)
		if len(given) != 2 || len(there) != 2 || !there["net0"].Up || !there["net1"].Up {
			t.Errorf("the pod has %+v, given are %+v", there, given)
		}
		if end == "gone" {
			check(t, kernel.RemoveNetns(path))
		}
		check(t, r.h.Detach(t.Context(), end))
		if diff := cmp.Diff(before, r.homes(t, addrs)); diff != "" {
			t.Errorf("%s: the VFs changed (-before +now):\n%s", end, diff)
		}
	}
}

// T-47, T-48 on real VFs: the next sandbox has what the last one lost without a word; the claims'
// end brings it home.
func TestVFsOfLostSandbox(t *testing.T) {
	r, _, addrs := newVFs(t)
	before := r.homes(t, addrs)
	first, second := kerneltest.NetnsThatGoes(t), kerneltest.NetnsThatGoes(t)
	_, err := r.h.Attach(t.Context(), sandboxAt("s1", first))
	check(t, err)
	check(t, kernel.RemoveNetns(first))
	_, err = r.h.Attach(t.Context(), sandboxAt("s2", second))
	check(t, err)
	check(t, r.h.Detach(t.Context(), "s1"))
	if there := r.links(t, second); len(there) != 2 {
		t.Errorf("the pod has %+v", there)
	}
	check(t, r.h.Return(t.Context(), "c0", "p1"))
	check(t, r.h.Return(t.Context(), "c1", "p1"))
	if diff := cmp.Diff(before, r.homes(t, addrs)); diff != "" {
		t.Errorf("the VFs changed (-before +now):\n%s", diff)
	}
}

// VFs that were destroyed while their pod had them are home.
func TestVFsDestroyed(t *testing.T) {
	r, pf, addrs := newVFs(t)
	path := kerneltest.NetnsThatGoes(t)
	_, err := r.h.Attach(t.Context(), sandboxAt("s1", path))
	check(t, err)
	check(t, r.machine.SetNumVFs(pf.Addr, 0))
	if there := r.links(t, path); len(there) > 0 {
		t.Errorf("the pod has %+v", there)
	}
	check(t, r.h.Detach(t.Context(), "s1"))
	if _, err := r.machine.LinkOf(kernel.Namespace{}, addrs[0]); !errors.Is(err, kernel.ErrNoLink) {
		t.Errorf("error is %v", err)
	}
}
