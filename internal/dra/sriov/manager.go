// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/wake"
)

// Machine is what is needed of kernel.Machine.
type machine interface {
	Functions() ([]kernel.Function, error)
	Function(addr kernel.PCIAddr) (kernel.Function, error)
	SetNumVFs(pf kernel.PCIAddr, n int) error
	Link(ns kernel.Namespace, name string) (kernel.Link, error)
	LinkOf(ns kernel.Namespace, addr kernel.PCIAddr) (kernel.Link, error)
	Restore(ns kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error)
	VF(pf kernel.PCIAddr, vf int) (kernel.VF, error)
	VFs(pf kernel.PCIAddr) (map[int]kernel.VF, error)
	SetVF(pf kernel.PCIAddr, vf int, change kernel.VFChange) error
	Watch(ctx context.Context, changed func()) error
}

// Provisioned remembers which VFs Weft made, beyond a restart of the agent; see Made.
type Provisioned interface {
	// Made is how many VFs Weft made for a PF in this boot; 0: none.
	Made(pf kernel.PCIAddr) (int, error)
	// SetMade is called before n VFs are made. It is on the disk when it returns.
	SetMade(pf kernel.PCIAddr, n int) error
}

// Config is what a Manager works with. Kernel, Provisioned and Log must be there.
type Config struct {
	Spec        v2alpha1.SRIOVConfig // Configure replaces it
	Kernel      machine
	Provisioned Provisioned
	// InUse says whether a claim, a CNI record or anything else that the manager cannot see has
	// the VF, and what; nil: nothing.
	InUse func(addr kernel.PCIAddr) (bool, string)
	// Report is told of a problem with a PF that the configuration names, once, and with nil when
	// it is over. The empty name stands for the inventory as a whole. It must not wait. May be nil.
	Report func(pf string, err error)
	// Observe is told of each scan: how many VFs, and how long it took. May be nil.
	Observe func(devices int, took time.Duration)
	// Interval is how long a change that the kernel did not tell of goes unseen. Default: 30 s.
	Interval time.Duration
	Log      *slog.Logger
}

// Manager is the device.Manager of virtual functions.
type Manager struct {
	conf   Config
	signal wake.Signal // something changed

	mu       sync.Mutex
	spec     v2alpha1.SRIOVConfig
	resizing map[kernel.PCIAddr]bool      // PFs whose VFs are being changed
	taken    map[kernel.PCIAddr]time.Time // VFs that Inspect was asked for, and when
}

var (
	_ device.Manager = (*Manager)(nil)
	_ device.Mender  = (*Manager)(nil)
)

// New gives a manager, which does nothing until Run.
func New(conf Config) *Manager {
	if conf.InUse == nil {
		conf.InUse = func(kernel.PCIAddr) (bool, string) { return false, "" }
	}
	if conf.Report == nil {
		conf.Report = func(string, error) {}
	}
	if conf.Observe == nil {
		conf.Observe = func(int, time.Duration) {}
	}
	if conf.Interval <= 0 {
		conf.Interval = 30 * time.Second
	}
	return &Manager{
		conf: conf, spec: conf.Spec, signal: wake.New(),
		resizing: map[kernel.PCIAddr]bool{}, taken: map[kernel.PCIAddr]time.Time{},
	}
}

// Type is device.SRIOV.
func (m *Manager) Type() device.ManagerType { return device.SRIOV }

// Configure replaces the configuration. A manager that is not enabled publishes no devices and
// touches no PF, but frees what it prepared. The root of sysfs is the kernel's, not changed here.
func (m *Manager) Configure(spec v2alpha1.SRIOVConfig) {
	m.mu.Lock()
	m.spec = spec
	m.mu.Unlock()
	m.Rescan()
}

// Rescan has Run look at everything again, soon.
func (m *Manager) Rescan() { m.signal.Raise() }

func (m *Manager) configured() v2alpha1.SRIOVConfig {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spec
}

// RestoreDevice reads a VF's JSON, also that of one which is gone.
func (m *Manager) RestoreDevice(data json.RawMessage) (device.Device, error) { return restore(data) }

// Link is the VF's link in a network namespace, whatever its name.
func (m *Manager) Link(ns kernel.Namespace, dev device.Device, _ device.Saved) (kernel.Link, error) {
	d, err := own(dev)
	if err != nil {
		return kernel.Link{}, err
	}
	return m.conf.Kernel.LinkOf(ns, d.Addr)
}

// Home is what the link was before Setup. Without Inspect's answer, as of a claim that another
// driver prepared, it is only the name that is known.
func (m *Manager) Home(dev device.Device, saved device.Saved) kernel.LinkState {
	if s, err := parseSaved(saved); err == nil && s.Link != nil {
		return *s.Link
	}
	d, err := own(dev)
	if err != nil {
		return kernel.LinkState{}
	}
	return kernel.LinkState{Name: d.KernelIfaceName}
}

// Nodes are the device files of a VF that is bound to vfio-pci.
func (m *Manager) Nodes(dev device.Device) []string {
	d, err := own(dev)
	if err != nil || !isVFIO(d.Driver) {
		return nil
	}
	group := d.iommuGroup
	// A device from a record does not have it, and a reboot may number groups anew.
	if f, err := m.conf.Kernel.Function(d.Addr); err == nil {
		group = f.IOMMUGroup
	}
	if group == "" {
		return nil
	}
	return []string{"/dev/vfio/vfio", "/dev/vfio/" + group}
}

func own(dev device.Device) (Device, error) {
	d, ok := dev.(Device)
	if !ok {
		return Device{}, fmt.Errorf("device %v of type %T is no VF", dev, dev)
	}
	return d, nil
}
