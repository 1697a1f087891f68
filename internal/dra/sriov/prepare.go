// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/wake"
)

// takenFor is how long a VF counts as used after Inspect: until then whoever asked has made it
// durable, so that InUse tells, or given up. The kubelet's own deadline is 45 s.
const takenFor = 2 * time.Minute

// saved is Inspect's answer.
type saved struct {
	PF   kernel.PCIAddr    `json:"pf"`
	VF   *kernel.VF        `json:"vf,omitempty"`   // what the PF keeps; nil when Setup changes nothing of it
	Link *kernel.LinkState `json:"link,omitempty"` // nil with vfio
}

func parseSaved(data device.Saved) (saved, error) {
	var s saved
	if len(data) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return saved{}, fmt.Errorf("read the saved state of a VF: %w", err)
	}
	return s, nil
}

// Inspect reads the VLAN that the PF keeps for the VF, and the state of its link, which must be in
// the host's network namespace and not be used there: moving it away would cut off whoever does. From
// then on the VF is not destroyed to change the number of VFs.
func (m *Manager) Inspect(dev device.Device, config v2alpha1.DeviceConfig) (device.Saved, error) {
	d, err := own(dev)
	if err != nil {
		return nil, err
	}
	f, err := m.function(d.Addr)
	if err != nil {
		return nil, err
	}
	if err := m.take(f); err != nil {
		return nil, err
	}
	s, err := m.inspect(f, config)
	if err != nil {
		m.letGo(f.Addr)
		return nil, err
	}
	return json.Marshal(s)
}

func (m *Manager) inspect(f kernel.Function, config v2alpha1.DeviceConfig) (saved, error) {
	s := saved{PF: f.PF}
	// The driver may be another one since the scan.
	if err := fromFunction(f, kernel.Function{}).Check(config); err != nil {
		return saved{}, err
	}
	if config.VLAN != 0 {
		vf, err := m.conf.Kernel.VF(f.PF, f.VFID)
		if err != nil {
			return saved{}, fmt.Errorf("read VF %s: %w", f.Addr, err)
		}
		s.VF = &vf
	}
	if isVFIO(f.Driver) {
		if f.IOMMUGroup == "" {
			return saved{}, fmt.Errorf("VF %s is bound to %s but is in no IOMMU group, so a pod cannot be given it: turn the IOMMU on",
				f.Addr, f.Driver)
		}
		return s, nil
	}
	link, err := m.conf.Kernel.LinkOf(kernel.Namespace{}, f.Addr)
	if errors.Is(err, kernel.ErrNoLink) {
		return saved{}, fmt.Errorf("VF %s (driver %s) has no link in the host's network namespace: "+
			"it is in a pod, or still coming up: %w", f.Addr, f.Driver, err)
	}
	if err != nil {
		return saved{}, fmt.Errorf("find the link of VF %s: %w", f.Addr, err)
	}
	if why := usedOnHost(link); why != "" {
		return saved{}, fmt.Errorf("VF %s is used by the host and is not given to a pod: %s; "+
			"take it out of use, or keep it out of the pools by their filters", f.Addr, why)
	}
	s.Link = new(kernel.StateOf(link))
	return s, nil
}

// Setup sets the VLAN, by whatever name the PF has now.
func (m *Manager) Setup(
	_ context.Context, dev device.Device, config v2alpha1.DeviceConfig, data device.Saved,
) (device.Device, error) {
	d, err := own(dev)
	if err != nil {
		return nil, err
	}
	s, err := parseSaved(data)
	if err != nil {
		return nil, err
	}
	f, err := m.function(d.Addr)
	if err != nil {
		return nil, err
	}
	if config.VLAN != 0 {
		// A claim asks for no priority; one that was set belongs to the VLAN that was set.
		if err := m.setVLAN(f, int(config.VLAN), 0); err != nil {
			return nil, err
		}
	}
	pf, err := m.conf.Kernel.Function(f.PF)
	if err != nil {
		pf = kernel.Function{} // it is only asked for its name
	}
	prepared := fromFunction(f, pf)
	switch { // the link may be away, or home by a pod's name for it
	case s.Link != nil:
		prepared.KernelIfaceName = s.Link.Name
	case len(data) == 0 && d.Driver == prepared.Driver && d.KernelIfaceName != "":
		prepared.KernelIfaceName = d.KernelIfaceName // as another driver's claim has it
	}
	return prepared.Merge(d), nil
}

// Mend sets VLANs again that a PF no longer has, as when its VFs were destroyed and made anew: each PF
// is read once, and only what differs is written.
func (m *Manager) Mend(_ context.Context, rows []device.Allocation) error {
	read := map[kernel.PCIAddr]map[int]kernel.VF{}
	for _, row := range rows {
		if row.Config.VLAN == 0 {
			continue
		}
		d, err := own(row.PreparedDevice)
		if err != nil {
			return err
		}
		f, err := m.function(d.Addr)
		if err != nil {
			return err
		}
		if read[f.PF] == nil {
			if read[f.PF], err = m.conf.Kernel.VFs(f.PF); err != nil {
				return fmt.Errorf("see whether VF %s has its VLAN: %w", f.Addr, err)
			}
		}
		vf, ok := read[f.PF][f.VFID]
		if ok && vf.VLAN == int(row.Config.VLAN) && vf.QoS == 0 {
			continue
		}
		if err := m.setVLAN(f, int(row.Config.VLAN), 0); err != nil {
			return err
		}
		m.conf.Log.Warn("a VF had lost its VLAN, which is set again", "device", f.Addr, "pf", f.PF, "vlan", row.Config.VLAN, "found", vf.VLAN)
	}
	return nil
}

// Free puts back VLAN and priority, and the link's name, MAC and MTU where a pod left others.
// Without Inspect's answer a VLAN that the claim asked for is cleared. A link that is away still has
// Free fail: whoever has it has the VLAN as well, and nobody else could be given the VF.
func (m *Manager) Free(
	ctx context.Context, dev device.Device, config v2alpha1.DeviceConfig, data device.Saved,
) error {
	d, err := own(dev)
	if err != nil {
		return err
	}
	s, err := parseSaved(data)
	if err != nil {
		return err
	}
	f, link, err := m.atHome(ctx, d, s)
	if err != nil {
		return err
	}
	if f.PF == "" {
		m.letGo(d.Addr) // the VF went, and what the PF kept for it
		return nil
	}
	if config.VLAN != 0 {
		err = m.putBackVLAN(f, s)
	}
	if link != nil {
		err = errors.Join(err, m.putBack(f, s, d.KernelIfaceName, *link))
	}
	if err == nil {
		m.letGo(d.Addr)
	}
	return err
}

// A link comes home by itself when its network namespace ends, in the kernel's own time.
const (
	comeTimeout = time.Second
	comePause   = 10 * time.Millisecond
)

// atHome gives a VF, the zero value when it is no more, and the link that it had when it was prepared, which
// it waits for; nil: it had none, or has a driver without links since.
func (m *Manager) atHome(ctx context.Context, d Device, s saved) (kernel.Function, *kernel.Link, error) {
	for late := time.Now().Add(comeTimeout); ; {
		f, err := m.conf.Kernel.Function(d.Addr)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return kernel.Function{}, nil, nil
		case err != nil:
			return f, nil, fmt.Errorf("find VF %s: %w", d.Addr, err)
		case f.PF == "" || s.Link == nil && d.KernelIfaceName == "" || device.Linkless(f.Driver):
			return f, nil, nil
		}
		link, err := m.conf.Kernel.LinkOf(kernel.Namespace{}, d.Addr)
		switch {
		case err == nil:
			return f, &link, nil
		case !errors.Is(err, kernel.ErrNoLink):
			return f, nil, fmt.Errorf("find the link of VF %s: %w", d.Addr, err)
		case time.Now().After(late):
			return f, nil, fmt.Errorf("the link of VF %s is not in the host's network namespace: a pod has it still, or something holds "+
				"the network namespace of one that ended: %w", d.Addr, err)
		}
		if !wake.Pause(ctx, comePause) {
			return f, nil, fmt.Errorf("wait for the link of VF %s: %w", d.Addr, context.Cause(ctx))
		}
	}
}

// putBackVLAN writes only what differs: a PF that refused the claim's VLAN would refuse this one, too.
func (m *Manager) putBackVLAN(f kernel.Function, s saved) error {
	now, err := m.conf.Kernel.VF(f.PF, f.VFID)
	if err != nil {
		return fmt.Errorf("read VF %s by its PF %s: %w", f.Addr, f.PF, err)
	}
	var before kernel.VF
	if s.VF != nil {
		before = *s.VF
	}
	if now.VLAN == before.VLAN && now.QoS == before.QoS {
		return nil
	}
	return m.setVLAN(f, before.VLAN, before.QoS)
}

// putBack mends a link that came home by itself, or by another hand. What it is now is compared
// first, since restoring drops addresses, and a link that never left may have some. Without Inspect's
// answer, as of a claim that another driver prepared, its name is all that is known.
func (m *Manager) putBack(f kernel.Function, s saved, name string, link kernel.Link) error {
	want := kernel.StateOf(link)
	if want.Name = name; s.Link != nil {
		want = *s.Link
	}
	if link.Name == want.Name && link.MTU == want.MTU && link.MAC.String() == want.MAC.String() {
		return nil
	}
	err := device.Restore(m.conf.Kernel, link, want, m.conf.Log)
	if err != nil {
		return fmt.Errorf("restore the link of VF %s: %w", f.Addr, err)
	}
	return nil
}

func (m *Manager) setVLAN(f kernel.Function, vlan, qos int) error {
	err := m.conf.Kernel.SetVF(f.PF, f.VFID, kernel.VFChange{VLAN: &vlan, QoS: &qos})
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return fmt.Errorf("set VLAN %d of VF %s: its PF %s sets no VLANs for VFs, as in switchdev mode; "+
			"ask for no VLAN, or put the PF into legacy mode: %w", vlan, f.Addr, f.PF, err)
	}
	if err != nil {
		return fmt.Errorf("set VLAN %d of VF %s by its PF %s: %w", vlan, f.Addr, f.PF, err)
	}
	return nil
}

// function reads a VF that has to be there.
func (m *Manager) function(addr kernel.PCIAddr) (kernel.Function, error) {
	f, err := m.conf.Kernel.Function(addr)
	if err != nil {
		return kernel.Function{}, fmt.Errorf("find VF %s: %w", addr, err)
	}
	if f.PF == "" {
		return kernel.Function{}, fmt.Errorf("find VF %s: what has the address is no VF", addr)
	}
	return f, nil
}

// take marks a VF as used, unless its PF's VFs are being changed.
func (m *Manager) take(f kernel.Function) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resizing[f.PF] {
		return fmt.Errorf("the number of VFs of PF %s is being changed: try VF %s again", f.PF, f.Addr)
	}
	m.taken[f.Addr] = time.Now()
	return nil
}

func (m *Manager) letGo(addr kernel.PCIAddr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.taken, addr)
}

// beginResize keeps Inspect away from a PF's VFs, unless one was just asked for.
func (m *Manager) beginResize(pf kernel.PCIAddr, vfs []kernel.Function) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, vf := range vfs {
		if at, ok := m.taken[vf.Addr]; ok && time.Since(at) < takenFor {
			return fmt.Errorf("PF %s: the number of VFs is left alone while VF %s is being prepared", pf, vf.Addr)
		}
	}
	m.resizing[pf] = true
	return nil
}

func (m *Manager) endResize(pf kernel.PCIAddr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.resizing, pf)
}
