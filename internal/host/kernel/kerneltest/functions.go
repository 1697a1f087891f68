// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/weftnet/weft/internal/host/kernel"
)

// vfio is the driver that hands a function to programs: with it there is no link.
const vfio = "vfio-pci"

func (f *function) newLink(name string) *link {
	return &link{Link: kernel.Link{Name: name, MAC: slices.Clone(f.mac), MTU: 1500, Kind: "device", PCI: f.Addr}}
}

// probe gives a function whose driver makes one its link, in the host's namespace.
func (m *Machine) probe(f *function) {
	if f.Driver == "" || strings.HasPrefix(f.Driver, "vfio") || m.linkOf(f.Addr) != nil {
		return
	}
	if pf := m.functions[f.PF]; pf != nil && pf.late && !f.awake {
		return
	}
	name := f.name
	if m.host().named(name) != nil {
		name = m.host().free("eth", 0)
	}
	m.host().add(f.newLink(name))
	if f.PF != "" && len(f.fixed) == 0 {
		f.vf.MAC = slices.Clone(f.mac)
	}
}

// unlink takes a function's link away, wherever it is.
func (m *Machine) unlink(addr kernel.PCIAddr) {
	for _, n := range m.namespaces {
		if l := n.of(addr); l != nil {
			delete(n.links, l.Index)
		}
	}
}

func (m *Machine) linkOf(addr kernel.PCIAddr) *link {
	for _, n := range m.namespaces {
		if l := n.of(addr); l != nil {
			return l
		}
	}
	return nil
}

// Bind gives a function that has no driver one. vfio-pci takes only what is in an IOMMU group.
func (m *Machine) Bind(addr kernel.PCIAddr, driver string) error {
	var err error
	m.change(func() {
		f := m.mustFunction(addr)
		switch {
		case f.Driver != "":
			err = syscall.EBUSY
		case driver == vfio && f.IOMMUGroup == "":
			err = syscall.EINVAL
		default:
			f.Driver = driver
			m.probe(f)
		}
	})
	if err != nil {
		return fmt.Errorf("bind %s to %s: %w", addr, driver, err)
	}
	return nil
}

// Unbind takes a function's driver, and with it the link, wherever that is. A PF loses its VFs, too.
func (m *Machine) Unbind(addr kernel.PCIAddr) error {
	var err error
	m.change(func() {
		f := m.mustFunction(addr)
		if f.Driver == "" {
			err = fmt.Errorf("unbind %s: %w", addr, syscall.ENODEV)
			return
		}
		f.Driver = ""
		m.unlink(addr)
		m.removeVFs(addr)
	})
	return err
}

func (m *Machine) removeVFs(pf kernel.PCIAddr) {
	for addr, f := range m.functions {
		if f.PF == pf {
			m.unlink(addr)
			delete(m.functions, addr)
		}
	}
}

func (m *Machine) numVFs(pf *function) int {
	n := 0
	for _, f := range m.functions {
		if f.PF == pf.Addr {
			n++
		}
	}
	return n
}

// shown is what sysfs shows of a function.
func (m *Machine) shown(f *function) kernel.Function {
	s := f.Function
	s.NumVFs, s.Netdevs = m.numVFs(f), nil
	if l := m.host().of(f.Addr); l != nil {
		s.Netdevs = []string{l.Name}
	}
	return s
}

// Functions is as of kernel.Machine.
func (m *Machine) Functions() ([]kernel.Function, error) {
	m.mu.Lock()
	var all []kernel.Function
	for _, f := range m.functions {
		all = append(all, m.shown(f))
	}
	m.mu.Unlock()
	slices.SortFunc(all, byAddr)
	return all, m.call("Functions") // a fault is one of single functions: the list is good all the same
}

// Function is as of kernel.Machine.
func (m *Machine) Function(addr kernel.PCIAddr) (kernel.Function, error) {
	if err := m.call("Function", string(addr)); err != nil {
		return kernel.Function{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.functions[addr]
	if !ok {
		return kernel.Function{}, fmt.Errorf("read PCI function %s: %w", addr, fs.ErrNotExist)
	}
	return m.shown(f), nil
}

// SetNumVFs is as of kernel.Machine.
func (m *Machine) SetNumVFs(pf kernel.PCIAddr, n int) error {
	if err := m.call("SetNumVFs", string(pf), fmt.Sprint(n)); err != nil {
		return err
	}
	defer m.tell()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.setNumVFs(pf, n); err != nil {
		return fmt.Errorf("set number of VFs of %s to %d: %w", pf, n, err)
	}
	return nil
}

func (m *Machine) setNumVFs(addr kernel.PCIAddr, n int) error {
	pf, ok := m.functions[addr]
	switch {
	case !ok || pf.TotalVFs == 0:
		return fs.ErrNotExist
	case n < 0:
		return syscall.EINVAL
	case n > pf.TotalVFs:
		return syscall.ERANGE
	case n == m.numVFs(pf):
		return nil
	case pf.Driver == "":
		return fs.ErrNotExist
	case n == 0:
		m.removeVFs(addr)
		return nil
	case m.numVFs(pf) != 0:
		return syscall.EBUSY
	}
	for id := range n {
		vf := VFAddr(addr, id)
		f := &function{Function: kernel.Function{
			Addr: vf, Class: pf.Class, Vendor: pf.Vendor, Device: "0x10ca", Driver: pf.Driver + "vf", PF: addr, VFID: id,
			NUMANode: pf.NUMANode, PCIeRoot: pf.PCIeRoot,
		}, name: fmt.Sprintf("%sv%d", pf.name, id), mac: macOf(vf)}
		if pf.IOMMUGroup != "" {
			f.IOMMUGroup = fmt.Sprintf("%s%d", pf.IOMMUGroup, id)
		}
		f.vf = kernel.VF{ID: id, Trust: new(false), Spoof: new(true)}
		m.functions[vf] = f
		m.probe(f)
	}
	return nil
}

// vf finds a VF by way of its PF's link, which must be in the host's namespace.
func (m *Machine) vf(pf kernel.PCIAddr, id int) (*function, error) {
	if _, ok := m.functions[pf]; !ok {
		return nil, fs.ErrNotExist
	}
	if m.host().of(pf) == nil {
		return nil, kernel.ErrNoLink
	}
	for _, f := range m.functions {
		if f.PF == pf && f.VFID == id {
			return f, nil
		}
	}
	return nil, fs.ErrNotExist
}

// VF is as of kernel.Machine.
func (m *Machine) VF(pf kernel.PCIAddr, vf int) (kernel.VF, error) {
	if err := m.call("VF", string(pf), fmt.Sprint(vf)); err != nil {
		return kernel.VF{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.vf(pf, vf)
	if err != nil {
		return kernel.VF{}, fmt.Errorf("read VF %d of %s: %w", vf, pf, err)
	}
	return f.kept(), nil
}

// kept is a copy of what the PF keeps of a VF.
func (f *function) kept() kernel.VF {
	s := f.vf
	s.MAC, s.Trust, s.Spoof = slices.Clone(s.MAC), new(*s.Trust), new(*s.Spoof)
	return s
}

// VFs is as of kernel.Machine.
func (m *Machine) VFs(pf kernel.PCIAddr) (map[int]kernel.VF, error) {
	if err := m.call("VFs", string(pf)); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.vf(pf, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the VFs of %s: %w", pf, err)
	}
	all := map[int]kernel.VF{}
	for _, f := range m.functions {
		if f.PF == pf {
			all[f.VFID] = f.kept()
		}
	}
	return all, nil
}

// SetVF is as of kernel.Machine.
func (m *Machine) SetVF(pf kernel.PCIAddr, vf int, change kernel.VFChange) error {
	if err := m.call("SetVF", string(pf), fmt.Sprint(vf)); err != nil {
		return err
	}
	defer m.tell()
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.vf(pf, vf)
	if err == nil {
		err = errors.Join(change.Validate(), err)
	}
	if err != nil {
		return fmt.Errorf("set VF %d of %s: %w", vf, pf, err)
	}
	if change.VLAN != nil {
		if f.vf.VLAN = *change.VLAN; f.vf.VLAN == 0 {
			f.vf.QoS = 0
		}
	}
	if change.QoS != nil {
		f.vf.QoS = *change.QoS
	}
	if change.Trust != nil {
		f.vf.Trust = new(*change.Trust)
	}
	if change.Spoof != nil {
		f.vf.Spoof = new(*change.Spoof)
	}
	if change.MAC != nil {
		f.vf.MAC, f.fixed = slices.Clone(change.MAC), nil
		if strings.Trim(change.MAC.String(), "0:") != "" {
			f.fixed = slices.Clone(change.MAC)
		}
	}
	return nil
}
