// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// wantVF wants a VF to have a VLAN, a QoS, and (unless nil) what else is given.
func wantVF(t *testing.T, b bench, pf kernel.PCIAddr, want kernel.VF) {
	t.Helper()
	is, err := b.VF(pf, want.ID)
	must(t, err)
	all, err := b.VFs(pf)
	must(t, err)
	if diff := cmp.Diff(is, all[want.ID]); diff != "" {
		t.Errorf("VF %d alone, and among all of the PF:\n%s", want.ID, diff)
	}
	if want.MAC == nil {
		is.MAC = nil
	}
	if want.Trust == nil {
		is.Trust = nil
	}
	if want.Spoof == nil {
		is.Spoof = nil
	}
	if diff := cmp.Diff(want, is); diff != "" {
		t.Errorf("VF %d (-want +is):\n%s", want.ID, diff)
	}
}

func wantNumVFs(t *testing.T, b bench, pf kernel.PCIAddr, n int) {
	t.Helper()
	f, err := b.Function(pf)
	must(t, err)
	if addrs := vfAddrs(t, b, pf); f.NumVFs != n || len(addrs) != n {
		t.Errorf("%s says %d VFs and has %v, not %d", pf, f.NumVFs, addrs, n)
	}
}

func numberRules() []rule {
	return []rule{
		{name: "numvfs 0→4", on: vfs, run: func(on trial) {
			t, b := on.t, on.bench
			wantNumVFs(t, b, b.pf(0), 0)
			must(t, b.SetNumVFs(b.pf(0), 4))
			wantNumVFs(t, b, b.pf(0), 4)
			pf := must1(b.Function(b.pf(0)))(t)
			for id, addr := range vfAddrs(t, b, b.pf(0)) {
				if addr != kerneltest.VFAddr(b.pf(0), id) {
					t.Errorf("VF %d is %s", id, addr)
				}
				l := linkOf(t, b, host, addr)
				is := must1(b.Function(addr))(t)
				want := kernel.Function{
					Addr: addr, Class: 0x020000, Vendor: "0x8086", Device: "0x10ca", Driver: "igbvf", PF: pf.Addr, VFID: id,
					NUMANode: -1, PCIeRoot: "pci0000:00", IOMMUGroup: is.IOMMUGroup, Netdevs: []string{l.Name},
				}
				if diff := cmp.Diff(want, is); diff != "" || is.IOMMUGroup == "" {
					t.Errorf("%s", diff)
				}
			}
			is := must1(b.Function(pf.Addr))(t)
			want := kernel.Function{
				Addr: pf.Addr, Class: 0x020000, Vendor: "0x8086", Device: "0x10c9", Driver: "igb", VFID: -1, TotalVFs: 7, NumVFs: 4,
				NUMANode: -1, PCIeRoot: "pci0000:00", IOMMUGroup: is.IOMMUGroup, Netdevs: []string{linkOf(t, b, host, pf.Addr).Name},
			}
			if diff := cmp.Diff(want, is); diff != "" {
				t.Error(diff)
			}
		}},
		{name: "numvfs 4→2 is refused, 4→4 is nothing, more than there can be is refused", on: vfs, vfs: 4, run: func(on trial) {
			t, b := on.t, on.bench
			before := must1(b.LinkOf(host, vfAddrs(t, b, b.pf(0))[3]))(t)
			for n, want := range map[int]error{2: syscall.EBUSY, 5: syscall.EBUSY, 4: nil, 8: syscall.ERANGE, -1: syscall.EINVAL} {
				if err := b.SetNumVFs(b.pf(0), n); !errors.Is(err, want) {
					t.Errorf("%d: %v", n, err)
				}
			}
			wantNumVFs(t, b, b.pf(0), 4)
			alike(t, "a VF's link", linkOf(t, b, host, before.PCI), before)
		}},
		{name: "numvfs 4→0 succeeds while a VF is in a namespace, whose link vanishes", on: vfs, vfs: 4, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			l := b.subject(t)
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			must(t, b.SetUp(pod, moved.Index, true))
			must(t, b.SetNumVFs(b.pf(0), 0))
			wantNumVFs(t, b, b.pf(0), 0)
			for _, ns := range []kernel.Namespace{pod, host} {
				if l, err := b.LinkOf(ns, moved.PCI); !errors.Is(err, kernel.ErrNoLink) {
					t.Errorf("%s: %+v, %v", ns.Path, l, err)
				}
			}
			if _, err := b.Function(moved.PCI); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("function: %v", err)
			}
			if _, err := b.VF(b.pf(0), 0); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("VF: %v", err)
			}
		}},
		{name: "numvfs of what is no PF, and of none", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			for _, addr := range []kernel.PCIAddr{b.subject(t).PCI, "0000:ff:1f.7"} {
				if err := b.SetNumVFs(addr, 1); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %v", addr, err)
				}
			}
		}},
		{name: "links of VFs come late", on: vfs, run: func(on trial) {
			t, b := on.t, on.bench
			appear := b.late(t, b.pf(0), 2)
			wantNumVFs(t, b, b.pf(0), 2)
			for _, addr := range vfAddrs(t, b, b.pf(0)) {
				if l, err := b.LinkOf(host, addr); !errors.Is(err, kernel.ErrNoLink) {
					t.Errorf("%s: %+v, %v", addr, l, err)
				}
			}
			appear()
			for _, addr := range vfAddrs(t, b, b.pf(0)) {
				l := linkOf(t, b, host, addr)
				if f := must1(b.Function(addr))(t); !slices.Equal(f.Netdevs, []string{l.Name}) || f.Driver != "igbvf" {
					t.Errorf("%+v", f)
				}
			}
		}},
		{name: "two PFs have VFs of their own", on: vfs, vfs: 2, twoPFs: true, run: func(on trial) {
			t, b := on.t, on.bench
			must(t, b.SetVF(b.pf(0), 1, kernel.VFChange{VLAN: new(100)}))
			wantVF(t, b, b.pf(0), kernel.VF{ID: 1, VLAN: 100})
			wantVF(t, b, b.pf(1), kernel.VF{ID: 1})
			all := slices.Concat(vfAddrs(t, b, b.pf(0)), vfAddrs(t, b, b.pf(1)))
			slices.Sort(all)
			if len(slices.Compact(all)) != 4 {
				t.Errorf("%v", all)
			}
			must(t, b.SetNumVFs(b.pf(0), 0))
			wantNumVFs(t, b, b.pf(1), 2)
		}},
	}
}

func vfRules() []rule {
	return []rule{
		{name: "VLAN and QoS of a VF with values from before, and back", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pf := b.pf(0)
			wantVF(t, b, pf, kernel.VF{ID: 0, Trust: new(false), Spoof: new(true)})
			must(t, b.SetVF(pf, 0, kernel.VFChange{VLAN: new(7), QoS: new(3)}))
			before := must1(b.VF(pf, 0))(t)
			must(t, b.SetVF(pf, 0, kernel.VFChange{VLAN: new(100), QoS: new(5)}))
			wantVF(t, b, pf, kernel.VF{ID: 0, VLAN: 100, QoS: 5})
			must(t, b.SetVF(pf, 0, kernel.VFChange{VLAN: new(101)}))
			wantVF(t, b, pf, kernel.VF{ID: 0, VLAN: 101, QoS: 5})
			must(t, b.SetVF(pf, 0, kernel.VFChange{QoS: new(0)}))
			wantVF(t, b, pf, kernel.VF{ID: 0, VLAN: 101})
			must(t, b.SetVF(pf, 0, kernel.VFChange{VLAN: &before.VLAN, QoS: &before.QoS}))
			wantVF(t, b, pf, before)
			wantVF(t, b, pf, kernel.VF{ID: 1})
			must(t, b.SetVF(pf, 0, kernel.VFChange{VLAN: new(0)}))
			wantVF(t, b, pf, kernel.VF{ID: 0})
		}},
		{name: "values that no VF can have", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			for _, c := range []kernel.VFChange{{VLAN: new(-1)}, {VLAN: new(4095)}, {QoS: new(8)}, {QoS: new(-1)}, {MAC: mac("02:00:00:00:00:00:00:01")}} {
				if err := b.SetVF(b.pf(0), 0, c); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("%+v: %v", c, err)
				}
			}
			if err := b.SetVF(b.pf(0), 5, kernel.VFChange{VLAN: new(1)}); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("no such VF: %v", err)
			}
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0})
		}},
		{name: "trust and spoof check of a VF", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			must(t, b.SetVF(b.pf(0), 1, kernel.VFChange{Trust: new(true), Spoof: new(false)}))
			wantVF(t, b, b.pf(0), kernel.VF{ID: 1, Trust: new(true), Spoof: new(false)})
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, Trust: new(false), Spoof: new(true)})
			must(t, b.SetVF(b.pf(0), 1, kernel.VFChange{Trust: new(false), Spoof: new(true)}))
			wantVF(t, b, b.pf(0), kernel.VF{ID: 1, Trust: new(false), Spoof: new(true)})
		}},
		{name: "the own address that the PF sets while the VF is up is taken when it comes up again", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, fixed := b.subject(t), mac("02:aa:00:00:00:01")
			must(t, b.SetUp(host, l.Index, true))
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{MAC: fixed}))
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, MAC: fixed})
			if is := find(t, b, host, l.Index); is.MAC.String() != l.MAC.String() {
				t.Errorf("it has %s at once", is.MAC)
			}
			must(t, b.SetUp(host, l.Index, false))
			must(t, b.SetUp(host, l.Index, true))
			if is := find(t, b, host, l.Index); is.MAC.String() != fixed.String() {
				t.Errorf("it has %s", is.MAC)
			}
		}},
		{name: "the own address that the PF sets is taken when the driver is bound again, and when it comes up", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, fixed := b.subject(t), mac("02:aa:00:00:00:02")
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{MAC: fixed}))
			b.unbind(t, l.PCI)
			b.bind(t, l.PCI, "igbvf")
			l = linkOf(t, b, host, l.PCI)
			must(t, b.SetUp(host, l.Index, true))
			if is := find(t, b, host, l.Index); is.MAC.String() != fixed.String() {
				t.Errorf("it has %s", is.MAC)
			}
		}},
		{name: "a VF's own address is refused when its PF fixed one, until the PF takes that back", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, fixed, mine := b.subject(t), mac("02:aa:00:00:00:03"), mac("02:bb:00:00:00:03")
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{MAC: fixed}))
			must(t, b.SetUp(host, l.Index, true))
			want := kernel.StateOf(find(t, b, host, l.Index))
			want.MAC, want.MTU = mine, 1400
			is, err := b.Restore(host, l.Index, want)
			if !errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Errorf("error is %v", err)
			}
			if is.MAC.String() != fixed.String() || is.MTU != 1400 || !is.Up {
				t.Errorf("it is %+v", is)
			}
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{MAC: mac("00:00:00:00:00:00")}))
			is, err = b.Restore(host, l.Index, want)
			if err != nil || is.MAC.String() != mine.String() {
				t.Errorf("it is %+v, %v", is, err)
			}
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, MAC: mine})
		}},
		{name: "a trusted VF may set its own address all the same", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, fixed, mine := b.subject(t), mac("02:aa:00:00:00:05"), mac("02:bb:00:00:00:05")
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{MAC: fixed, Trust: new(true)}))
			want := kernel.StateOf(find(t, b, host, l.Index))
			want.MAC, want.Up = mine, true
			is, err := b.Restore(host, l.Index, want)
			if err != nil || is.MAC.String() != mine.String() {
				t.Errorf("it is %+v, %v", is, err)
			}
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, MAC: mine})
		}},
		{name: "what the PF keeps of a VF stays when the VF's namespace ends", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			kept := kernel.VF{ID: 0, MAC: mac("02:aa:00:00:00:04"), VLAN: 100, QoS: 3, Trust: new(false), Spoof: new(false)}
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{MAC: kept.MAC, VLAN: &kept.VLAN, QoS: &kept.QoS, Trust: kept.Trust, Spoof: kept.Spoof}))
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			must(t, b.SetUp(pod, moved.Index, true))
			wantVF(t, b, b.pf(0), kept)
			b.destroy(t, pod)
			linkOf(t, b, host, l.PCI)
			wantVF(t, b, b.pf(0), kept)
		}},
		{name: "VFs that are made anew have nothing of the old ones", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: new(100), QoS: new(3), Trust: new(true), Spoof: new(false)}))
			must(t, b.SetNumVFs(b.pf(0), 0))
			must(t, b.SetNumVFs(b.pf(0), 1))
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, Trust: new(false), Spoof: new(true)})
		}},
		{name: "a PF that refuses VLANs (switchdev) changes nothing", injected: "no NIC at hand has that mode", vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			b.(*fakeBench).Fail("SetVF", syscall.EOPNOTSUPP)
			if err := b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: new(1)}); !errors.Is(err, syscall.EOPNOTSUPP) {
				t.Error(err)
			}
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0})
		}},
	}
}

func driverRules() []rule {
	return []rule{
		{name: "a PF is renamed", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pf := linkOf(t, b, host, b.pf(0))
			must(t, b.Rename(host, pf.Index, "renamed"))
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: new(5)}))
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, VLAN: 5})
			if f := must1(b.Function(b.pf(0)))(t); !slices.Equal(f.Netdevs, []string{"renamed"}) {
				t.Errorf("%+v", f)
			}
			must(t, b.Rename(host, pf.Index, pf.Name))
		}},
		{name: "a PF that is in another namespace has VFs, and tells nothing of them", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pf, pod := linkOf(t, b, host, b.pf(0)), b.namespace(t)
			moved, err := b.Move(host, pf.Index, pod, "pf")
			must(t, err)
			wantNumVFs(t, b, b.pf(0), 2)
			if _, err := b.VF(b.pf(0), 0); !errors.Is(err, kernel.ErrNoLink) {
				t.Errorf("VF: %v", err)
			}
			if f := must1(b.Function(b.pf(0)))(t); len(f.Netdevs) != 0 {
				t.Errorf("%+v", f)
			}
			_, err = b.Move(pod, moved.Index, host, pf.Name)
			must(t, err)
		}},
		{name: "a PF is unbound, with a VF in a namespace, and bound again", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pf, l, pod := b.pf(0), b.subject(t), b.namespace(t)
			_, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			b.unbind(t, pf)
			wantNumVFs(t, b, pf, 0)
			gone(t, b, pod, l.PCI)
			gone(t, b, host, pf)
			if f := must1(b.Function(pf))(t); f.Driver != "" || len(f.Netdevs) != 0 || f.TotalVFs == 0 {
				t.Errorf("%+v", f)
			}
			if err := b.SetNumVFs(pf, 1); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("numvfs: %v", err)
			}
			if _, err := b.VF(pf, 0); !errors.Is(err, kernel.ErrNoLink) {
				t.Errorf("VF: %v", err)
			}
			b.bind(t, pf, "igb")
			linkOf(t, b, host, pf)
			wantNumVFs(t, b, pf, 0)
			must(t, b.SetNumVFs(pf, 2))
			linkOf(t, b, host, l.PCI)
		}},
		{name: "a VF is unbound in a namespace, and bound again", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: new(100)}))
			_, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			b.unbind(t, l.PCI)
			gone(t, b, pod, l.PCI)
			if f := must1(b.Function(l.PCI))(t); f.Driver != "" || f.PF != b.pf(0) || f.VFID != 0 || len(f.Netdevs) != 0 {
				t.Errorf("%+v", f)
			}
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, VLAN: 100})
			b.bind(t, l.PCI, "igbvf")
			if home := linkOf(t, b, host, l.PCI); home.Up || home.Name == fakePod || len(home.AltNames) != 0 {
				t.Errorf("%+v", home)
			}
		}},
		{name: "the VFs' driver is loaded again", on: vfs, run: func(on trial) {
			t, b := on.t, on.bench
			appear := b.late(t, b.pf(0), 1)
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: new(100)}))
			appear()
			linkOf(t, b, host, vfAddrs(t, b, b.pf(0))[0])
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, VLAN: 100})
		}},
		{name: "a VF bound to vfio-pci has no link, and keeps its VLAN", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: new(100)}))
			b.unbind(t, l.PCI)
			b.bind(t, l.PCI, "vfio-pci")
			if f := must1(b.Function(l.PCI))(t); f.Driver != "vfio-pci" || len(f.Netdevs) != 0 || f.IOMMUGroup == "" {
				t.Errorf("%+v", f)
			}
			if l, err := b.LinkOf(host, l.PCI); !errors.Is(err, kernel.ErrNoLink) {
				t.Errorf("%+v, %v", l, err)
			}
			wantVF(t, b, b.pf(0), kernel.VF{ID: 0, VLAN: 100})
			must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: new(0)}))
			b.unbind(t, l.PCI)
			b.bind(t, l.PCI, "igbvf")
			linkOf(t, b, host, l.PCI)
		}},
		{name: "changes are told: at the start, of links, of numbers of VFs", on: vfs, run: func(on trial) {
			t, b := on.t, on.bench
			var told atomic.Int64
			next := func(what string, change func()) {
				before := told.Load()
				change()
				eventually(t, "to be told of "+what, func() bool { return told.Load() > before })
			}
			watch(t, b, &told, func() {
				pf := linkOf(t, b, host, b.pf(0))
				next("a link that goes down", func() { must(t, b.SetUp(host, pf.Index, false)) })
				next("a link that comes up", func() { must(t, b.SetUp(host, pf.Index, true)) })
				next("VFs", func() { must(t, b.SetNumVFs(b.pf(0), 1)) })
				vf := vfAddrs(t, b, b.pf(0))[0]
				linkOf(t, b, host, vf)
				next("a driver that is unbound", func() { b.unbind(t, vf) })
				next("no VFs", func() { must(t, b.SetNumVFs(b.pf(0), 0)) })
			})
		}},
		{name: "changes are told: of ordinary links", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			var told atomic.Int64
			l := b.subject(t)
			watch(t, b, &told, func() {
				before := told.Load()
				must(t, b.SetUp(host, l.Index, true))
				eventually(t, "to be told", func() bool { return told.Load() > before })
			})
		}},
		{name: "functions that cannot be read are named, the others are listed", injected: "no sysfs at hand refuses to be read", vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			b.(*fakeBench).Fail("Functions", syscall.EIO)
			all, err := b.Functions()
			if !errors.Is(err, syscall.EIO) || len(all) != 4 {
				t.Errorf("%v, %v", all, err)
			}
		}},
	}
}

// watch runs f while the machine is watched, and wants the watching to end with it.
func watch(t *testing.T, b bench, told *atomic.Int64, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Watch(ctx, func() { told.Add(1) }) }()
	eventually(t, "to be told at the start", func() bool { return told.Load() > 0 })
	f()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch ended with %v", err)
	}
}
