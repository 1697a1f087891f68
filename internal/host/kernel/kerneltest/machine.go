// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/weftnet/weft/internal/host/kernel"
)

// Machine is a machine in memory: PCI network functions, links and network namespaces, with the
// methods of kernel.Machine and the kernel's rules for them (each is a row of the rules' table,
// which runs on this, on a kernel, and on real virtual functions). It needs no privileges and may
// be used from several goroutines and inside a synctest bubble.
//
// What it does by itself (a driver's links, what is left of a namespace) is done when the call
// that caused it returns; a real kernel may take its time.
type Machine struct {
	mu         sync.Mutex
	functions  map[kernel.PCIAddr]*function
	namespaces map[string]*namespace // by path; the host's is ""
	lastID     uint64
	watchers   map[*func()]bool
	faults     []*fault
	blocks     map[string]<-chan struct{}
	counts     map[string]int
	calls      []string
}

// function is a PCI function. Netdevs and NumVFs of its kernel.Function are not used: they follow
// from links and functions.
type function struct {
	kernel.Function
	name  string // of its link, when the driver makes it
	mac   net.HardwareAddr
	late  bool // a PF whose VFs get their links by Appear only
	awake bool // a late VF that has appeared

	vf    kernel.VF        // what the PF keeps of a VF; its MAC is what the PF set or the VF told
	fixed net.HardwareAddr // of a VF: the MAC that the PF set
}

type namespace struct {
	path  string
	id    uint64
	links map[int]*link
	next  int // the last index that was given
}

type link struct {
	kernel.Link
}

// hostID is the inode of the first namespace of a real machine.
const hostID = 4026531840

// NewMachine is a machine with nothing but the host's network namespace and its lo.
func NewMachine() *Machine {
	m := &Machine{
		functions: map[kernel.PCIAddr]*function{}, namespaces: map[string]*namespace{}, lastID: hostID - 1,
		watchers: map[*func()]bool{}, blocks: map[string]<-chan struct{}{}, counts: map[string]int{},
	}
	m.AddNamespace("")
	return m
}

// AddPF adds a physical function with its driver, and its link, which is up. A total of 0 makes it
// a network function without SR-IOV. What else it is to be is changed by ChangeFunction.
func (m *Machine) AddPF(addr kernel.PCIAddr, name string, totalVFs int) {
	m.change(func() {
		f := &function{Function: kernel.Function{
			Addr: addr, Class: 0x020000, Vendor: "0x8086", Device: "0x10c9", Driver: "igb", VFID: -1,
			TotalVFs: totalVFs, NUMANode: -1, PCIeRoot: "pci" + string(addr[:5]) + "00",
		}, name: name, mac: macOf(addr)}
		m.functions[addr] = f
		m.host().add(f.newLink(name)).Up = true
	})
}

// VFAddr is the address of a PF's VF, as igb gives it: 0x80 behind, in steps of 2.
func VFAddr(pf kernel.PCIAddr, vf int) kernel.PCIAddr {
	var domain, bus, dev, fn int
	if _, err := fmt.Sscanf(string(pf), "%x:%x:%x.%x", &domain, &bus, &dev, &fn); err != nil {
		panic(fmt.Sprintf("PCI address %q: %v", pf, err))
	}
	routing := bus<<8 | dev<<3 | fn
	routing += 0x80 + 2*vf
	return kernel.PCIAddr(fmt.Sprintf("%04x:%02x:%02x.%x", domain, routing>>8, routing>>3&0x1f, routing&7))
}

// macOf makes up an address that no other function has.
func macOf(addr kernel.PCIAddr) net.HardwareAddr {
	sum := uint32(2166136261)
	for _, b := range []byte(addr) {
		sum = (sum ^ uint32(b)) * 16777619
	}
	return net.HardwareAddr{2, 0, byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}
}

// ChangeFunction changes what a function is: its vendor, IOMMU group, NUMA node.
func (m *Machine) ChangeFunction(addr kernel.PCIAddr, f func(*kernel.Function)) {
	m.change(func() { f(&m.mustFunction(addr).Function) })
}

// ChangeLink changes a link as somebody else would, without any rule: its address, its
// alternative names. It panics when there is no such link.
func (m *Machine) ChangeLink(ns kernel.Namespace, name string, f func(*kernel.Link)) {
	m.change(func() { f(&m.mustNamespace(ns).named(name).Link) })
}

// AddLink adds a virtual link that somebody else made, and gives it an index.
func (m *Machine) AddLink(ns kernel.Namespace, l kernel.Link) kernel.Link {
	var added kernel.Link
	m.change(func() {
		if l.Kind == "" {
			l.Kind = "veth"
		}
		if l.MTU == 0 {
			l.MTU = 1500
		}
		added = clone(m.mustNamespace(ns).add(&link{Link: l}))
	})
	return added
}

// RenamePF gives the link of a function in the host's namespace another name.
func (m *Machine) RenamePF(addr kernel.PCIAddr, name string) {
	m.change(func() {
		f := m.mustFunction(addr)
		f.name = name
		m.host().of(addr).Name = name
	})
}

// AddNamespace makes a network namespace with lo in it.
func (m *Machine) AddNamespace(path string) kernel.Namespace {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastID++
	ns := &namespace{path: path, id: m.lastID, links: map[int]*link{}}
	ns.add(&link{Link: kernel.Link{Name: "lo", MTU: 65536, Kind: "device"}})
	m.namespaces[path] = ns
	return kernel.Namespace{Path: path, ID: ns.id}
}

// DestroyNamespace ends a namespace. Links of PCI functions come home, down and without
// addresses, under the name that they had in it, or as dev<index> when that is taken; alternative
// names that are taken are lost. Virtual links end.
func (m *Machine) DestroyNamespace(path string) {
	m.change(func() {
		ns := m.mustNamespace(kernel.Namespace{Path: path})
		delete(m.namespaces, path)
		host := m.host()
		for _, index := range slices.Sorted(maps.Keys(ns.links)) {
			l := ns.links[index]
			if l.PCI == "" {
				continue
			}
			l.AltNames = slices.DeleteFunc(l.AltNames, func(n string) bool { return host.named(n) != nil })
			if host.named(l.Name) != nil {
				l.Name = host.free("dev", index)
			}
			l.Up, l.Running, l.Addrs = false, false, nil
			host.add(l)
		}
	})
}

// Late makes the VFs of a PF that are made from now on get no link before Appear.
func (m *Machine) Late(pf kernel.PCIAddr) { m.change(func() { m.mustFunction(pf).late = true }) }

// Appear gives one late VF its link, as far as it has a driver for that.
func (m *Machine) Appear(vf kernel.PCIAddr) {
	m.change(func() {
		f := m.mustFunction(vf)
		f.awake = true
		m.probe(f)
	})
}

// Snapshot is the machine as text, by what it is about, for comparison with go-cmp. The index of
// a link is not in it, since that does not always outlive a move.
func (m *Machine) Snapshot() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]string{}
	for addr, f := range m.functions {
		all["function "+string(addr)] = fmt.Sprintf("driver=%q numvfs=%d", f.Driver, m.numVFs(f))
		if f.PF != "" {
			all["vf "+string(addr)] = fmt.Sprintf("mac=%s vlan=%d qos=%d trust=%t spoof=%t",
				f.vf.MAC, f.vf.VLAN, f.vf.QoS, *f.vf.Trust, *f.vf.Spoof)
		}
	}
	for path, ns := range m.namespaces {
		if path == "" {
			path = "host"
		}
		all["namespace "+path] = "live"
		for _, l := range ns.links {
			slices.Sort(l.AltNames)
			all["link "+path+" "+l.Name] = fmt.Sprintf("alt=%s mac=%s mtu=%d up=%t pci=%q addrs=%v",
				strings.Join(l.AltNames, ","), l.MAC, l.MTU, l.Up, l.PCI, l.Addrs)
		}
	}
	return all
}

// change changes the machine and tells who watches it.
func (m *Machine) change(f func()) {
	m.mu.Lock()
	func() {
		defer m.mu.Unlock() // f panics when a test asks for what is not there
		f()
	}()
	m.tell()
}

func (m *Machine) tell() {
	m.mu.Lock()
	watchers := slices.Collect(maps.Keys(m.watchers))
	m.mu.Unlock()
	for _, w := range watchers {
		(*w)()
	}
}

// Watch calls changed once, and after every change, until ctx ends.
func (m *Machine) Watch(ctx context.Context, changed func()) error {
	if err := m.call("Watch"); err != nil {
		return err
	}
	m.mu.Lock()
	m.watchers[&changed] = true
	m.mu.Unlock()
	changed()
	<-ctx.Done()
	m.mu.Lock()
	delete(m.watchers, &changed)
	m.mu.Unlock()
	return nil
}

func (m *Machine) host() *namespace { return m.namespaces[""] }

func (m *Machine) mustFunction(addr kernel.PCIAddr) *function {
	f, ok := m.functions[addr]
	if !ok {
		panic(fmt.Sprintf("no PCI function %s", addr))
	}
	return f
}

func (m *Machine) mustNamespace(ns kernel.Namespace) *namespace {
	n, err := m.namespace(ns)
	if err != nil {
		panic(err)
	}
	return n
}
