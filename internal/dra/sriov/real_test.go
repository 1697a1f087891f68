// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

// patience is for an emulated machine that others keep busy.
const patience = 2 * time.Minute

// realPF gives the machine's kernel, and a PF that is up and has no VFs.
func realPF(t *testing.T) (*kernel.Machine, kernel.Function) {
	t.Helper()
	if os.Getenv("WEFT_VM") != "1" {
		t.Skip("needs a kernel with SR-IOV virtual functions: make vm-test runs it in one")
	}
	machine, err := kernel.Open("/sys")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { machine.Close() })
	functions, err := machine.Functions()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range functions {
		if f.TotalVFs == 0 || len(f.Netdevs) == 0 {
			continue
		}
		link, err := machine.LinkOf(kernel.Namespace{}, f.Addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := machine.SetUp(kernel.Namespace{}, link.Index, true); err != nil {
			t.Fatal(err)
		}
		if err := machine.SetNumVFs(f.Addr, 0); err != nil {
			t.Fatal(err)
		}
		return machine, f
	}
	t.Fatal("the machine has no PF")
	return nil, kernel.Function{}
}

// until waits for an inventory of so many VFs that all have links.
func until(t *testing.T, published <-chan []device.Device, count int) []device.Device {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case devices := <-published:
			named := 0
			for _, d := range devices {
				if d.(Device).KernelIfaceName != "" {
					named++
				}
			}
			if named == count && len(devices) == count {
				return devices
			}
		case <-limit:
			t.Fatalf("no inventory of %d VFs", count)
		}
	}
}

// T-2, T-22, T-35 and decision 3 on real VFs: made, put into a VLAN, changed as by a pod, given back
// with VLAN, priority and MAC address, and made fewer.
func TestRealVFs(t *testing.T) {
	machine, pf := realPF(t)
	records, err := OpenRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	spec := func(count int) v2alpha1.SRIOVConfig {
		return v2alpha1.SRIOVConfig{Enabled: true, Ifaces: []v2alpha1.SRIOVInterface{iface(pf.Netdevs[0], count)}}
	}
	m := New(Config{
		Spec: spec(4), Kernel: machine, Provisioned: records, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	published := make(chan []device.Device, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, func(d []device.Device) { published <- d }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	dev := until(t, published, 4)[0].(Device)
	if dev.PFName != pf.Netdevs[0] || dev.pf != pf.Addr {
		t.Errorf("%+v is not of PF %s", dev, pf.Addr)
	}
	realClaim(t, machine, m, dev)
	m.Configure(spec(2))
	until(t, published, 2)
	if n, err := records.Made(pf.Addr); err != nil || n != 2 {
		t.Errorf("made %d, %v", n, err)
	}
}

func realClaim(t *testing.T, machine *kernel.Machine, m *Manager, dev Device) {
	t.Helper()
	vlan, qos := 77, 3
	if err := machine.SetVF(dev.pf, dev.VFID, kernel.VFChange{VLAN: &vlan, QoS: &qos}); err != nil {
		t.Fatal(err)
	}
	state := func() (kernel.VF, kernel.LinkState) {
		t.Helper()
		vf, err := machine.VF(dev.pf, dev.VFID)
		if err != nil {
			t.Fatal(err)
		}
		link, err := m.Link(kernel.Namespace{}, dev, nil)
		if err != nil {
			t.Fatal(err)
		}
		return vf, kernel.StateOf(link)
	}
	vfBefore, linkBefore := state()
	config := v2alpha1.DeviceConfig{VLAN: 100}
	saved, err := m.Inspect(dev, config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Setup(t.Context(), dev, config, saved); err != nil {
		t.Fatal(err)
	}
	if vf, _ := state(); vf.VLAN != 100 || vf.QoS != 0 {
		t.Errorf("VLAN %d, priority %d", vf.VLAN, vf.QoS)
	}
	link, err := m.Link(kernel.Namespace{}, dev, saved)
	if err != nil {
		t.Fatal(err)
	}
	changed := linkBefore
	changed.Name, changed.MAC = "net1", net.HardwareAddr{2, 9, 9, 9, 9, 9}
	if _, err := machine.Restore(kernel.Namespace{}, link.Index, changed); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Free(t.Context(), dev, config, saved); err != nil {
			t.Fatal(err)
		}
	}
	vf, home := state()
	// Without an address that the PF fixed, it shows the VF's own, which is compared with the link.
	vf.MAC, vfBefore.MAC = nil, nil
	if diff := cmp.Diff(vfBefore, vf); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(linkBefore, home); diff != "" {
		t.Error(diff)
	}
}
