// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

// step is one VF that a claim has.
type step struct {
	*rig
	dev    device.Device
	config v2alpha1.DeviceConfig
	saved  device.Saved
}

func inspected(t *testing.T, n *node, config v2alpha1.DeviceConfig) *step {
	t.Helper()
	s := &step{rig: newRig(t, n), dev: vf2(), config: config}
	var err error
	if s.saved, err = s.Inspect(s.dev, config); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *step) setup() {
	s.t.Helper()
	var err error
	if s.dev, err = s.Setup(s.t.Context(), s.dev, s.config, s.saved); err != nil {
		s.t.Fatal(err)
	}
}

func (s *step) free() {
	s.t.Helper()
	// Twice, from JSON as after a restart: Free is idempotent.
	for range 2 {
		text := fmt.Sprintf(`{"Addr":"%s"}`, s.dev.(Device).Addr)
		dev, err := s.RestoreDevice([]byte(text))
		if err != nil {
			s.t.Fatal(err)
		}
		if err := s.Free(s.t.Context(), dev, s.config, s.saved); err != nil {
			s.t.Fatal(err)
		}
	}
}

// snapshot is all that a claim could have changed.
func (n *node) snapshot() string { return fmt.Sprint(n.links, n.vfs) }

// T-22 and T-35: VLAN and priority that were set before are back afterwards.
func TestVLAN(t *testing.T) {
	for _, before := range []kernel.VF{{}, {VLAN: 77, QoS: 3}} {
		n := fixture()
		n.vfs[vfAddr(pf0, 0)] = before
		want := n.snapshot()
		s := inspected(t, n, v2alpha1.DeviceConfig{VLAN: 1001})
		if got := n.snapshot(); got != want {
			t.Errorf("inspect changed %s to %s", want, got)
		}
		s.setup()
		s.setup()
		if got := n.vfs[vfAddr(pf0, 0)]; got.VLAN != 1001 || got.QoS != 0 {
			t.Errorf("VLAN %d, priority %d", got.VLAN, got.QoS)
		}
		s.free()
		if got := n.snapshot(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if len(n.writes) != 2 {
			t.Errorf("written %q", n.writes)
		}
	}
}

// Without a VLAN in the claim that of the administrator stays, even while the PF has no link.
func TestNoVLAN(t *testing.T) {
	n := fixture()
	n.vfs[vfAddr(pf0, 0)] = kernel.VF{VLAN: 77, QoS: 3}
	delete(n.links, pf0)
	s := inspected(t, n, v2alpha1.DeviceConfig{})
	s.setup()
	s.free()
	s.expectWrites()
}

// A claim that another driver prepared has no saved state: its VLAN is cleared, as that driver would,
// and its link has the name again that the claim knows, with what else it has now.
func TestFreeOfAnotherDriversClaim(t *testing.T) {
	n := fixture()
	want := n.snapshot()
	n.vfs[vfAddr(pf0, 0)] = kernel.VF{VLAN: 1001}
	n.updateLink(vfAddr(pf0, 0), func(l *kernel.Link) { l.Name = "sriov0" })
	n.update(vfAddr(pf0, 0), func(f *kernel.Function) { f.Netdevs = []string{"sriov0"} })
	s := &step{rig: newRig(t, n), dev: vf2(), config: v2alpha1.DeviceConfig{VLAN: 1001}}
	s.setup()
	for range 2 {
		if err := s.Free(t.Context(), s.dev, s.config, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.snapshot(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if diff := cmp.Diff(kernel.LinkState{Name: "ens1f0v0"}, s.Home(s.dev, nil)); diff != "" {
		t.Error(diff)
	}
}

// TestUsedOnHost: what the host uses is not taken from it, and what is no use of it is no obstacle.
func TestUsedOnHost(t *testing.T) {
	for _, test := range []struct {
		name string
		be   func(*kernel.Link)
		says string // "": it is given
	}{
		{"port of a bridge", func(l *kernel.Link) { l.Master = "br0" }, "ens1f0v0 is a port of br0"},
		{"VLANs", func(l *kernel.Link) { l.Uppers = []string{"v.1", "v.2"} }, "ens1f0v0 has v.1, v.2 on top of it"},
		{"address", withAddr("192.0.2.1/24"), "ens1f0v0 is up with address 192.0.2.1/24"},
		{"up", withAddr("fe80::1/64"), ""},
		{"down with an address", func(l *kernel.Link) { withAddr("192.0.2.1/24")(l); l.Up = false }, "ens1f0v0 is down with address 192.0.2.1/24"},
		{"down with one of IPv6", func(l *kernel.Link) { withAddr("2001:db8::1/64")(l); l.Up = false }, "ens1f0v0 is down with address 2001:db8::1/64"},
		{"down with what every link has", func(l *kernel.Link) { withAddr("fe80::1/64")(l); l.Up = false }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := fixture()
			n.updateLink(vfAddr(pf0, 0), test.be)
			r := newRig(t, n)
			_, err := r.Inspect(vf2(), v2alpha1.DeviceConfig{VLAN: 5})
			if (err == nil) != (test.says == "") || err != nil && (!strings.Contains(err.Error(), "VF "+string(vfAddr(pf0, 0))+" is used by the host") || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("inspect: %v", err)
			}
			r.expectWrites()
			if test.says == "" {
				return
			}
			n.updateLink(vfAddr(pf0, 0), func(l *kernel.Link) { l.Up, l.Master, l.Uppers, l.Addrs = false, "", nil, nil })
			if _, err := r.Inspect(vf2(), v2alpha1.DeviceConfig{}); err != nil {
				t.Errorf("out of use again: %v", err)
			}
		})
	}
}

// T-9 and T-34: the PF is found whatever its name, and Free fails until it is there.
func TestPFAtFree(t *testing.T) {
	n := fixture()
	want := n.snapshot()
	s := inspected(t, n, v2alpha1.DeviceConfig{VLAN: 5})
	s.setup()
	link := n.links[pf0]
	delete(n.links, pf0)
	if err := s.Free(t.Context(), s.dev, s.config, s.saved); err == nil || !strings.Contains(err.Error(), string(pf0)) {
		t.Errorf("freed without the PF: %v", err)
	}
	n.links[pf0] = link
	n.update(pf0, func(f *kernel.Function) { f.Netdevs = []string{"renamed"} })
	s.free()
	if got := n.snapshot(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A VF that is no more is free; one in its place that is no VF is none of ours.
func TestFreeOfVanishedVF(t *testing.T) {
	n := fixture()
	s := inspected(t, n, v2alpha1.DeviceConfig{VLAN: 5})
	s.setup()
	n.removeVFs(pf0)
	s.free()
	n.addPF(vfAddr(pf0, 0), "other", 0)
	s.free()
	s.expectWrites("vlan 0000:03:00.2 5/0")
	if _, err := s.Setup(t.Context(), s.dev, s.config, s.saved); err == nil {
		t.Error("set up what is no VF")
	}
}

// What the pod left of the link: its name for it, another MAC address, another MTU.
func TestLinkIsPutBack(t *testing.T) {
	n := fixture()
	want := n.snapshot()
	s := inspected(t, n, v2alpha1.DeviceConfig{PodIfName: "net1"})
	s.setup()
	addr := vfAddr(pf0, 0)
	n.updateLink(addr, func(l *kernel.Link) { l.Name, l.MTU, l.MAC = "net1", 9000, net.HardwareAddr{2, 9, 9, 9, 9, 9} })
	n.update(addr, func(f *kernel.Function) { f.Netdevs = []string{"net1"} })
	s.setup() // again, with the link home under the pod's name
	if got := s.dev.(Device).KernelIfaceName; got != "ens1f0v0" {
		t.Errorf("the prepared device is called %s", got)
	}
	s.free()
	if got := n.snapshot(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	home := s.Home(s.dev, s.saved)
	if home.Name != "ens1f0v0" || home.MTU != 1500 || home.MAC.String() != "02:00:00:00:00:00" {
		t.Errorf("home is %v", home)
	}
}

// A link that never left keeps the addresses that it has.
func TestLinkThatNeverLeft(t *testing.T) {
	n := fixture()
	s := inspected(t, n, v2alpha1.DeviceConfig{})
	s.setup()
	n.updateLink(vfAddr(pf0, 0), withAddr("192.0.2.1/24"))
	s.free()
	s.expectWrites()
}

// Neither a taken name nor a MAC address that the PF fixed meanwhile keeps a VF from being free.
func TestLinkThatCannotBePutBack(t *testing.T) {
	n := fixture()
	s := inspected(t, n, v2alpha1.DeviceConfig{})
	s.setup()
	n.updateLink(vfAddr(pf0, 0), func(l *kernel.Link) { l.Name, l.MAC = "net1", net.HardwareAddr{2, 9, 9, 9, 9, 9} })
	n.updateLink(vfAddr(pf0, 1), func(l *kernel.Link) { l.Name = "ens1f0v0" })
	n.noMAC = syscall.EADDRNOTAVAIL
	if err := s.Free(t.Context(), s.dev, s.config, s.saved); err != nil {
		t.Error(err)
	}
	n.noMAC = errRefused
	if err := s.Free(t.Context(), s.dev, s.config, s.saved); err == nil {
		t.Error("another refusal is not told")
	}
}

func TestInspectRefuses(t *testing.T) {
	addr := vfAddr(pf0, 0)
	tests := []struct {
		name   string
		change func(n *node)
		config v2alpha1.DeviceConfig
		says   string
	}{
		{"away", func(n *node) { n.away(addr) }, v2alpha1.DeviceConfig{}, "no link in the host's network namespace"},
		{"gone", func(n *node) { n.removeVFs(pf0) }, v2alpha1.DeviceConfig{}, "find VF 0000:03:00.2"},
		{
			"unbound since", func(n *node) { n.update(addr, func(f *kernel.Function) { f.Driver = "" }) },
			v2alpha1.DeviceConfig{},
			"no driver",
		},
		{
			"vfio without IOMMU", func(n *node) { n.update(addr, func(f *kernel.Function) { f.Driver = "vfio-pci" }) },
			v2alpha1.DeviceConfig{},
			"IOMMU",
		},
		{
			"vfio with a name", func(n *node) { n.update(addr, func(f *kernel.Function) { f.Driver = "vfio-pci" }) },
			v2alpha1.DeviceConfig{PodIfName: "net1"},
			"podIfName",
		},
		{"PF without link", func(n *node) { delete(n.links, pf0) }, v2alpha1.DeviceConfig{VLAN: 5}, "read VF 0000:03:00.2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := fixture()
			test.change(n)
			r := newRig(t, n)
			_, err := r.Inspect(vf2(), test.config)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
			if len(r.taken) != 0 {
				t.Error("a VF that was refused counts as used")
			}
		})
	}
}

// A PF in switchdev mode: said clearly, and what was begun can be undone.
func TestVLANUnsupported(t *testing.T) {
	n := fixture()
	n.noVLAN = syscall.EOPNOTSUPP
	s := inspected(t, n, v2alpha1.DeviceConfig{VLAN: 5})
	_, err := s.Setup(t.Context(), s.dev, s.config, s.saved)
	if err == nil || !strings.Contains(err.Error(), "switchdev") || !strings.Contains(err.Error(), "VLAN 5") {
		t.Errorf("%v", err)
	}
	s.free()
}

// T-50: a VF with vfio is its device files, and has no link to look for.
func TestVFIO(t *testing.T) {
	n := fixture()
	addr := vfAddr(pf0, 0)
	n.away(addr)
	n.update(addr, func(f *kernel.Function) { f.Driver, f.IOMMUGroup = "vfio-pci", "17" })
	s := inspected(t, n, v2alpha1.DeviceConfig{VLAN: 5})
	s.setup()
	want := []string{"/dev/vfio/vfio", "/dev/vfio/17"}
	if diff := cmp.Diff(want, s.Nodes(s.dev)); diff != "" {
		t.Error(diff)
	}
	// From a record, which does not know the group.
	dev, err := s.RestoreDevice([]byte(`{"Addr":"0000:03:00.2","Driver":"vfio-pci"}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.Nodes(dev)); diff != "" {
		t.Error(diff)
	}
	if nodes := s.Nodes(vf2()); nodes != nil {
		t.Errorf("a VF with a link has %q", nodes)
	}
	s.free()
}

// Setup does not need the link: it may be in the pod already.
func TestSetupWhileAway(t *testing.T) {
	n := fixture()
	s := inspected(t, n, v2alpha1.DeviceConfig{VLAN: 5})
	n.away(vfAddr(pf0, 0))
	s.setup()
	if got := s.dev.(Device); got.KernelIfaceName != "ens1f0v0" || got.PFName != "ens1f0" {
		t.Errorf("%+v", got)
	}
}
