// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// machineRig is a manager on the machine that obeys the kernel's rules.
type machineRig struct {
	*Manager
	machine *kerneltest.Machine
	dev     device.Device
}

func newMachineRig(t *testing.T) *machineRig {
	t.Helper()
	m := kerneltest.NewMachine()
	m.AddPF(pf0, "ens1f0", 8)
	if err := m.SetNumVFs(pf0, 4); err != nil {
		t.Fatal(err)
	}
	r := &machineRig{machine: m, Manager: New(Config{
		Spec: v2alpha1.SRIOVConfig{Enabled: true}, Kernel: m, Provisioned: &made{n: map[kernel.PCIAddr]int{}},
		Log: slog.New(slog.DiscardHandler),
	})}
	functions, err := m.Functions()
	if err != nil {
		t.Fatal(err)
	}
	devices := sorted(functions).devices(nil)
	if len(devices) != 4 {
		t.Fatalf("%d VFs", len(devices))
	}
	r.dev = devices[1]
	return r
}

// I8: the VF goes into a pod, is changed there, comes home in every way there is, and is then what
// it was.
func TestMachineLife(t *testing.T) {
	config := v2alpha1.DeviceConfig{VLAN: 1001, PodIfName: "net1"}
	host := kernel.Namespace{}
	comesHome := map[string]func(t *testing.T, r *machineRig, pod kernel.Namespace, saved device.Saved){
		"never left": func(*testing.T, *machineRig, kernel.Namespace, device.Saved) {},
		"given back": func(t *testing.T, r *machineRig, pod kernel.Namespace, saved device.Saved) {
			t.Helper()
			link := r.moved(t, pod, saved)
			if _, err := r.machine.Move(pod, link.Index, host, r.Home(r.dev, saved).Name); err != nil {
				t.Fatal(err)
			}
		},
		"namespace died": func(t *testing.T, r *machineRig, pod kernel.Namespace, saved device.Saved) {
			t.Helper()
			r.moved(t, pod, saved)
			r.machine.DestroyNamespace(pod.Path)
		},
		"PF renamed": func(t *testing.T, r *machineRig, pod kernel.Namespace, saved device.Saved) {
			t.Helper()
			r.moved(t, pod, saved)
			r.machine.RenamePF(pf0, "other")
			r.machine.DestroyNamespace(pod.Path)
			r.machine.RenamePF(pf0, "ens1f0")
		},
	}
	for name, home := range comesHome {
		t.Run(name, func(t *testing.T) {
			r := newMachineRig(t)
			vf := r.dev.(Device).VFID
			vlan, qos := 77, 3
			if err := r.machine.SetVF(pf0, vf, kernel.VFChange{VLAN: &vlan, QoS: &qos}); err != nil {
				t.Fatal(err)
			}
			pod := r.machine.AddNamespace("/run/netns/a")
			before := r.machine.Snapshot()
			saved, err := r.Inspect(r.dev, config)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, r.machine.Snapshot()); diff != "" {
				t.Errorf("inspect changed something: %s", diff)
			}
			dev, err := r.Setup(t.Context(), r.dev, config, saved)
			if err != nil || dev.(Device).KernelIfaceName != r.dev.(Device).KernelIfaceName {
				t.Fatalf("%v, %v", dev, err)
			}
			if got, err := r.machine.VF(pf0, vf); err != nil || got.VLAN != 1001 || got.QoS != 0 {
				t.Errorf("%+v, %v", got, err)
			}
			home(t, r, pod, saved)
			if name != "never left" && name != "given back" {
				r.machine.AddNamespace(pod.Path) // as it was before, for the comparison
			}
			for range 2 {
				if err := r.Free(t.Context(), r.dev, config, saved); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, r.machine.Snapshot()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// moved is the VF's link in the pod, after the pod has changed it.
func (r *machineRig) moved(t *testing.T, pod kernel.Namespace, saved device.Saved) kernel.Link {
	t.Helper()
	link, err := r.Link(kernel.Namespace{}, r.dev, saved)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.machine.Move(kernel.Namespace{}, link.Index, pod, "net1"); err != nil {
		t.Fatal(err)
	}
	r.machine.ChangeLink(pod, "net1", func(l *kernel.Link) { l.MTU, l.MAC = 9000, net.HardwareAddr{2, 9, 9, 9, 9, 9} })
	if link, err = r.Link(pod, r.dev, saved); err != nil || link.Name != "net1" {
		t.Fatalf("%v, %v", link, err)
	}
	return link
}

// A PF in switchdev mode on the machine: what was begun is undone without another write.
func TestMachineVLANUnsupported(t *testing.T) {
	r := newMachineRig(t)
	config := v2alpha1.DeviceConfig{VLAN: 5}
	r.machine.Fail("SetVF", syscall.EOPNOTSUPP)
	saved, err := r.Inspect(r.dev, config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Setup(t.Context(), r.dev, config, saved); err == nil || !strings.Contains(err.Error(), "switchdev") {
		t.Errorf("%v", err)
	}
	if err := r.Free(t.Context(), r.dev, config, saved); err != nil {
		t.Error(err)
	}
}

// T-2 and T-8 on the machine: VFs that are made, come late, go into a pod, and go.
func TestMachineRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := kerneltest.NewMachine()
		m.AddPF(pf0, "ens1f0", 8)
		m.Late(pf0)
		manager := New(Config{
			Spec:   v2alpha1.SRIOVConfig{Enabled: true, Ifaces: []v2alpha1.SRIOVInterface{iface("ens1f0", 2)}},
			Kernel: m, Provisioned: &made{n: map[kernel.PCIAddr]int{}}, Log: slog.New(slog.DiscardHandler),
		})
		var mu sync.Mutex
		var last []device.Device
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- manager.Run(ctx, func(d []device.Device) {
				mu.Lock()
				defer mu.Unlock()
				last = d
			})
		}()
		expect := func(want int) {
			t.Helper()
			later(time.Second)
			mu.Lock()
			defer mu.Unlock()
			if len(last) != want {
				t.Errorf("%d devices, want %d: %v", len(last), want, last)
			}
		}
		expect(0)
		m.Appear(kerneltest.VFAddr(pf0, 0))
		expect(1)
		m.Appear(kerneltest.VFAddr(pf0, 1))
		expect(2)
		if err := m.SetNumVFs(pf0, 0); err != nil {
			t.Error(err)
		}
		later(settleFor)
		expect(2)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
