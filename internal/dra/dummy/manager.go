// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

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

// machine is what is needed of kernel.Machine.
type machine interface {
	Links(ns kernel.Namespace) ([]kernel.Link, error)
	AddDummy(ns kernel.Namespace, name string) (kernel.Link, error)
	Restore(ns kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error)
	Rename(ns kernel.Namespace, index int, name string) error
	Remove(ns kernel.Namespace, index int) error
	Watch(ctx context.Context, changed func()) error
}

// Config is what a Manager works with. Kernel and Log must be there.
type Config struct {
	Spec   v2alpha1.DummyConfig // Configure replaces it
	Kernel machine
	// Prepared are the names of the devices that a claim has: they stay in the inventory when the
	// count is lowered, until they are free. May be nil.
	Prepared func() []string
	// Report is told of what keeps devices from being offered, once, and with nil when it is over;
	// the name is a device's, or empty for all. It must not wait. May be nil.
	Report func(name string, err error)
	// Interval is how long a change that the kernel did not tell of goes unseen. Default: 30 s.
	Interval time.Duration
	Log      *slog.Logger
}

// Manager is the device.Manager of dummy links.
type Manager struct {
	conf   Config
	signal wake.Signal // something changed

	mu   sync.Mutex
	spec v2alpha1.DummyConfig
}

var _ device.Manager = (*Manager)(nil)

// New gives a manager, which does nothing until Run.
func New(conf Config) *Manager {
	if conf.Prepared == nil {
		conf.Prepared = func() []string { return nil }
	}
	if conf.Report == nil {
		conf.Report = func(string, error) {}
	}
	if conf.Interval <= 0 {
		conf.Interval = 30 * time.Second
	}
	return &Manager{conf: conf, spec: conf.Spec, signal: wake.New()}
}

// Type is device.Dummy.
func (m *Manager) Type() device.ManagerType { return device.Dummy }

// Configure replaces the configuration. A manager that is not enabled publishes no devices, but
// those that are prepared, and frees what it prepared.
func (m *Manager) Configure(spec v2alpha1.DummyConfig) {
	m.mu.Lock()
	m.spec = spec
	m.mu.Unlock()
	m.Rescan()
}

// Rescan has Run look at everything again, soon.
func (m *Manager) Rescan() { m.signal.Raise() }

func (m *Manager) configured() v2alpha1.DummyConfig {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spec
}

// RestoreDevice reads a link's JSON, also that of one which is gone.
func (m *Manager) RestoreDevice(data json.RawMessage) (device.Device, error) { return restore(data) }

// Link is the claim's link in a network namespace, whatever its name.
func (m *Manager) Link(ns kernel.Namespace, dev device.Device, data device.Saved) (kernel.Link, error) {
	d, s, err := read(dev, data)
	if err != nil {
		return kernel.Link{}, err
	}
	links, err := m.conf.Kernel.Links(ns)
	if err != nil {
		return kernel.Link{}, err
	}
	return s.find(d, links)
}

// Home is what the link was when it was made.
func (m *Manager) Home(dev device.Device, data device.Saved) kernel.LinkState {
	d, s, err := read(dev, data)
	if err != nil {
		return kernel.LinkState{}
	}
	return s.home(d)
}

// Nodes are none.
func (m *Manager) Nodes(device.Device) []string { return nil }

func read(dev device.Device, data device.Saved) (Device, saved, error) {
	d, ok := dev.(Device)
	if !ok {
		return Device{}, saved{}, fmt.Errorf("device %v of type %T is no dummy link", dev, dev)
	}
	s, err := parseSaved(data)
	return d, s, err
}
