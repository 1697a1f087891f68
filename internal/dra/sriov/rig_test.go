// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a node's PCI network functions and their links, with the kernel's rules for numbers of VFs.
type node struct {
	mu        sync.Mutex
	functions map[kernel.PCIAddr]kernel.Function
	links     map[kernel.PCIAddr]kernel.Link // those in the host's network namespace
	vfs       map[kernel.PCIAddr]kernel.VF
	scan      error // what Functions gives besides
	gone      bool  // there is no sysfs
	delay     time.Duration
	driver    string                      // of VFs that are made
	refuse    map[kernel.PCIAddr]error    // what SetNumVFs says
	stuck     map[kernel.PCIAddr]chan any // where SetNumVFs waits
	noVLAN    error                       // what SetVF says
	noMAC     error                       // what Restore says to another MAC
	writes    []string                    // what was changed, in order
	watchers  map[*func()]bool
	pending   sync.WaitGroup
}

func newNode() *node {
	return &node{
		functions: map[kernel.PCIAddr]kernel.Function{}, links: map[kernel.PCIAddr]kernel.Link{},
		vfs: map[kernel.PCIAddr]kernel.VF{}, refuse: map[kernel.PCIAddr]error{},
		stuck: map[kernel.PCIAddr]chan any{}, watchers: map[*func()]bool{}, driver: "mlx5_core",
	}
}

// fixture is F of the cases.
func fixture() *node {
	n := newNode()
	n.addPF("0000:03:00.0", "ens1f0", 8)
	n.makeVFs("0000:03:00.0", 4)
	return n
}

func (n *node) addPF(addr kernel.PCIAddr, name string, total int) {
	n.functions[addr] = kernel.Function{
		Addr: addr, Class: 0x020000, Vendor: "0x15b3", Device: "0x101d", Driver: "mlx5_core", VFID: -1, TotalVFs: total,
		NUMANode: -1, PCIeRoot: "pci0000:00", Netdevs: []string{name},
	}
	n.links[addr] = kernel.Link{Name: name, Index: len(n.links) + 2, PCI: addr, Up: true, Kind: "device", MTU: 1500}
}

// vfAddr is the address of a PF's VF: 0000:03:00.2 is the first of 0000:03:00.0.
func vfAddr(pf kernel.PCIAddr, id int) kernel.PCIAddr {
	return kernel.PCIAddr(fmt.Sprintf("%s%02x.%d", string(pf)[:8], (id+2)/8, (id+2)%8))
}

func (n *node) makeVFs(pf kernel.PCIAddr, count int) {
	f := n.functions[pf]
	f.NumVFs = count
	n.functions[pf] = f
	for id := range count {
		addr := vfAddr(pf, id)
		n.functions[addr] = kernel.Function{
			Addr: addr, Class: 0x020000, Vendor: "0x15b3", Device: "0x101e", Driver: n.driver, PF: pf, VFID: id,
			NUMANode: -1, PCIeRoot: "pci0000:00",
		}
		n.vfs[addr] = kernel.VF{ID: id}
		if n.delay == 0 {
			n.addLink(addr)
			continue
		}
		n.pending.Go(func() {
			<-time.After(n.delay)
			n.change(func() { n.addLink(addr) })
		})
	}
}

// addLink gives a VF that has a driver its link.
func (n *node) addLink(addr kernel.PCIAddr) {
	f, ok := n.functions[addr]
	if !ok || f.Driver == "" || isVFIO(f.Driver) || len(f.Netdevs) != 0 {
		return
	}
	name := fmt.Sprintf("%sv%d", n.functions[f.PF].Netdevs[0], f.VFID)
	f.Netdevs = []string{name}
	n.functions[addr] = f
	n.links[addr] = kernel.Link{
		Name: name, Index: len(n.links) + 100, PCI: addr, MTU: 1500, Kind: "device",
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(f.VFID)},
	}
}

// away takes a link out of the host's network namespace.
func (n *node) away(addr kernel.PCIAddr) {
	n.update(addr, func(f *kernel.Function) { f.Netdevs = nil })
	delete(n.links, addr)
}

func (n *node) update(addr kernel.PCIAddr, f func(*kernel.Function)) {
	function := n.functions[addr]
	f(&function)
	n.functions[addr] = function
}

func (n *node) updateLink(addr kernel.PCIAddr, f func(*kernel.Link)) {
	link := n.links[addr]
	f(&link)
	n.links[addr] = link
}

// change changes the node as somebody else would, and tells who watches.
func (n *node) change(f func()) {
	n.mu.Lock()
	f()
	watchers := slices.Collect(maps.Keys(n.watchers))
	n.mu.Unlock()
	for _, w := range watchers {
		(*w)()
	}
}

func (n *node) removeVFs(pf kernel.PCIAddr) {
	for addr, f := range n.functions {
		if f.PF == pf {
			delete(n.functions, addr)
			delete(n.links, addr)
			delete(n.vfs, addr)
		}
	}
	n.update(pf, func(f *kernel.Function) { f.NumVFs = 0 })
}

func (n *node) Functions() ([]kernel.Function, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return nil, fs.ErrNotExist
	}
	return slices.SortedFunc(maps.Values(n.functions), func(a, b kernel.Function) int { return cmp.Compare(a.Addr, b.Addr) }), n.scan
}

func (n *node) Function(addr kernel.PCIAddr) (kernel.Function, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, ok := n.functions[addr]
	if !ok {
		return f, fs.ErrNotExist
	}
	return f, nil
}

func (n *node) SetNumVFs(pf kernel.PCIAddr, count int) error {
	n.mu.Lock()
	stuck := n.stuck[pf]
	n.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	var err error
	n.change(func() {
		f := n.functions[pf]
		n.writes = append(n.writes, fmt.Sprintf("numvfs %s %d", pf, count))
		switch {
		case n.refuse[pf] != nil:
			err = n.refuse[pf]
		case count > f.TotalVFs:
			err = syscall.EINVAL
		case count != 0 && f.NumVFs != 0:
			err = syscall.EBUSY
		case count == 0:
			n.removeVFs(pf)
		default:
			n.makeVFs(pf, count)
		}
	})
	return err
}

func (n *node) Link(_ kernel.Namespace, name string) (kernel.Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		if l.Name == name || slices.Contains(l.AltNames, name) {
			return l, nil
		}
	}
	return kernel.Link{}, fmt.Errorf("find %s: %w", name, kernel.ErrNoLink)
}

func (n *node) LinkOf(ns kernel.Namespace, addr kernel.PCIAddr) (kernel.Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, ok := n.links[addr]
	if !ok || ns != (kernel.Namespace{}) {
		return kernel.Link{}, kernel.ErrNoLink
	}
	return l, nil
}

func (n *node) Restore(_ kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr, l := range n.links {
		if l.Index != index {
			continue
		}
		if n.noMAC != nil && l.MAC.String() != want.MAC.String() {
			return l, n.noMAC
		}
		n.writes = append(n.writes, "restore "+want.Name)
		var clash error
		for other, o := range n.links {
			if other != addr && o.Name == want.Name {
				want.Name, clash = l.Name, &kernel.ClashError{Name: want.Name}
			}
		}
		l.Name, l.AltNames, l.MAC, l.MTU, l.Up, l.Addrs = want.Name, want.AltNames, want.MAC, want.MTU, want.Up, nil
		n.links[addr] = l
		n.update(addr, func(f *kernel.Function) { f.Netdevs = []string{l.Name} })
		return l, clash
	}
	return kernel.Link{}, kernel.ErrNoLink
}

func (n *node) VF(pf kernel.PCIAddr, id int) (kernel.VF, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.links[pf]; !ok {
		return kernel.VF{}, kernel.ErrNoLink
	}
	return n.vfs[vfAddr(pf, id)], nil
}

func (n *node) VFs(pf kernel.PCIAddr) (map[int]kernel.VF, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.links[pf]; !ok {
		return nil, kernel.ErrNoLink
	}
	all := map[int]kernel.VF{}
	for addr, vf := range n.vfs {
		if n.functions[addr].PF == pf {
			all[vf.ID] = vf
		}
	}
	return all, nil
}

func (n *node) SetVF(pf kernel.PCIAddr, id int, change kernel.VFChange) error {
	before, err := n.VF(pf, id)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if before.VLAN == *change.VLAN && before.QoS == *change.QoS {
		return nil
	}
	if n.noVLAN != nil {
		return n.noVLAN
	}
	n.writes = append(n.writes, fmt.Sprintf("vlan %s %d/%d", vfAddr(pf, id), *change.VLAN, *change.QoS))
	before.VLAN, before.QoS = *change.VLAN, *change.QoS
	n.vfs[vfAddr(pf, id)] = before
	return nil
}

func (n *node) Watch(ctx context.Context, changed func()) error {
	n.mu.Lock()
	n.watchers[&changed] = true
	n.mu.Unlock()
	<-ctx.Done()
	n.mu.Lock()
	delete(n.watchers, &changed)
	n.mu.Unlock()
	return ctx.Err()
}

func (n *node) written() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.writes)
}

// made is a Provisioned in memory.
type made struct {
	mu sync.Mutex
	n  map[kernel.PCIAddr]int
}

func (m *made) Made(pf kernel.PCIAddr) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n[pf], nil
}

func (m *made) SetMade(pf kernel.PCIAddr, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n[pf] = n
	return nil
}

// rig runs a manager on a node, inside a synctest bubble.
type rig struct {
	*Manager
	t    testing.TB
	node *node
	made *made

	mu        sync.Mutex
	published [][]device.Device
	problems  map[string]string
	reports   int
	used      map[kernel.PCIAddr]string
}

func newRig(t testing.TB, n *node, ifaces ...v2alpha1.SRIOVInterface) *rig {
	t.Helper()
	r := &rig{t: t, node: n, made: &made{n: map[kernel.PCIAddr]int{}}, problems: map[string]string{}, used: map[kernel.PCIAddr]string{}}
	r.Manager = New(Config{
		Spec: v2alpha1.SRIOVConfig{Enabled: true, Ifaces: ifaces}, Kernel: n, Provisioned: r.made,
		Log: slog.New(slog.DiscardHandler),
		Report: func(pf string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reports++
			if delete(r.problems, pf); err != nil {
				r.problems[pf] = err.Error()
			}
		},
		InUse: func(addr kernel.PCIAddr) (bool, string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.used[addr] != "", r.used[addr]
		},
	})
	return r
}

// run starts the manager; it ends with the test, or when what is given back is called.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error)
	go func() {
		done <- r.Run(ctx, func(d []device.Device) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.published = append(r.published, d)
		})
	}()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
		r.node.pending.Wait()
	})
}

// last is the inventory that was published last, as name=kernelIfName.
func (r *rig) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.published) == 0 {
		return "nothing"
	}
	var all []string
	for _, d := range r.published[len(r.published)-1] {
		all = append(all, d.Name()+"="+d.(Device).KernelIfaceName)
	}
	return strings.Join(all, " ")
}

func (r *rig) problem(pf string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems[pf]
}

func (r *rig) use(addr kernel.PCIAddr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[addr] = why
}

func (r *rig) count() (published, reports int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.published), r.reports
}

const fourVFs = "0000-03-00-2=ens1f0v0 0000-03-00-3=ens1f0v1 0000-03-00-4=ens1f0v2 0000-03-00-5=ens1f0v3"

func withAddr(s string) func(*kernel.Link) {
	return func(l *kernel.Link) { l.Up, l.Addrs = true, []netip.Prefix{netip.MustParsePrefix(s)} }
}

var errRefused = errors.New("refused")
