// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/weftnet/weft/internal/host/kernel"
)

// add puts a link into the namespace. It keeps its index unless that is taken there.
func (n *namespace) add(l *link) *link {
	if _, taken := n.links[l.Index]; taken || l.Index == 0 {
		for n.next++; n.links[n.next] != nil; n.next++ {
		}
		l.Index = n.next
	}
	n.links[l.Index] = l
	return l
}

// named finds a link by name or alternative name.
func (n *namespace) named(name string) *link {
	for _, l := range n.links {
		if l.Name == name || slices.Contains(l.AltNames, name) {
			return l
		}
	}
	return nil
}

func (n *namespace) of(addr kernel.PCIAddr) *link {
	for _, l := range n.links {
		if l.PCI == addr && addr != "" {
			return l
		}
	}
	return nil
}

// free is the first name of a kind that nobody has.
func (n *namespace) free(prefix string, number int) string {
	for ; n.named(prefix+strconv.Itoa(number)) != nil; number++ {
	}
	return prefix + strconv.Itoa(number)
}

// clash tells whether a link other than l has the name.
func (n *namespace) clash(name string, l *link) error {
	other := n.named(name)
	if other == nil || other == l {
		return nil
	}
	return &kernel.ClashError{Name: name, AltName: other.Name != name}
}

func (m *Machine) namespace(ns kernel.Namespace) (*namespace, error) {
	n, ok := m.namespaces[ns.Path]
	if !ok || ns.ID != 0 && ns.ID != n.id {
		return nil, fmt.Errorf("open network namespace %s: %w", ns.Path, fs.ErrNotExist)
	}
	return n, nil
}

func clone(l *link) kernel.Link {
	c := l.Link
	c.AltNames, c.MAC, c.Addrs = slices.Clone(c.AltNames), slices.Clone(c.MAC), slices.Clone(c.Addrs)
	c.Uppers = slices.Clone(c.Uppers)
	c.Running = c.Up
	return c
}

// Links is as of kernel.Machine.
func (m *Machine) Links(ns kernel.Namespace) ([]kernel.Link, error) {
	if err := m.call("Links", ns.Path); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespace(ns)
	if err != nil {
		return nil, err
	}
	var all []kernel.Link
	for _, index := range slices.Sorted(maps.Keys(n.links)) {
		all = append(all, clone(n.links[index]))
	}
	return all, nil
}

// Link is as of kernel.Machine.
func (m *Machine) Link(ns kernel.Namespace, name string) (kernel.Link, error) {
	if err := m.call("Link", ns.Path, name); err != nil {
		return kernel.Link{}, err
	}
	return m.find(ns, "link "+name, func(n *namespace) *link { return n.named(name) })
}

// LinkByIndex is as of kernel.Machine.
func (m *Machine) LinkByIndex(ns kernel.Namespace, index int) (kernel.Link, error) {
	if err := m.call("LinkByIndex", ns.Path, strconv.Itoa(index)); err != nil {
		return kernel.Link{}, err
	}
	return m.find(ns, fmt.Sprintf("link %d", index), func(n *namespace) *link { return n.links[index] })
}

// LinkOf is as of kernel.Machine.
func (m *Machine) LinkOf(ns kernel.Namespace, addr kernel.PCIAddr) (kernel.Link, error) {
	if err := m.call("LinkOf", ns.Path, string(addr)); err != nil {
		return kernel.Link{}, err
	}
	return m.find(ns, "link of "+string(addr), func(n *namespace) *link { return n.of(addr) })
}

func (m *Machine) find(ns kernel.Namespace, what string, f func(*namespace) *link) (kernel.Link, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespace(ns)
	if err != nil {
		return kernel.Link{}, err
	}
	if l := f(n); l != nil {
		return clone(l), nil
	}
	return kernel.Link{}, fmt.Errorf("find %s: %w", what, kernel.ErrNoLink)
}

// with changes one link, and tells who watches.
func (m *Machine) with(ns kernel.Namespace, index int, f func(*namespace, *link) error) error {
	defer m.tell()
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespace(ns)
	if err != nil {
		return err
	}
	l, ok := n.links[index]
	if !ok {
		return fmt.Errorf("find link %d: %w", index, kernel.ErrNoLink)
	}
	return f(n, l)
}

// Move is as of kernel.Machine.
func (m *Machine) Move(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error) {
	if err := m.call("Move", from.Path, to.Path, name); err != nil {
		return kernel.Link{}, err
	}
	var moved kernel.Link
	err := m.with(from, index, func(source *namespace, l *link) error {
		target, err := m.namespace(to)
		if err != nil {
			return err
		}
		if source == target {
			return fmt.Errorf("move link %s: it is there already", l.Name)
		}
		if err := validName(name); err != nil {
			return fmt.Errorf("move link %s: %w", l.Name, err)
		}
		for _, n := range append([]string{name}, l.AltNames...) {
			if err := target.clash(n, l); err != nil {
				return fmt.Errorf("move link %s: %w", l.Name, err)
			}
		}
		l.Up, l.Name, l.Addrs, l.Master, l.Uppers = false, name, nil, "", nil
		delete(source.links, l.Index)
		target.add(l)
		moved = clone(l)
		return nil
	})
	return moved, err
}

// SetUp is as of kernel.Machine.
func (m *Machine) SetUp(ns kernel.Namespace, index int, up bool) error {
	if err := m.call("SetUp", ns.Path, strconv.Itoa(index), strconv.FormatBool(up)); err != nil {
		return err
	}
	return m.with(ns, index, func(_ *namespace, l *link) error {
		m.setUp(l, up)
		return nil
	})
}

// setUp brings a link up or down. A VF learns the address that its PF set when it comes up.
func (m *Machine) setUp(l *link, up bool) {
	if f := m.functions[l.PCI]; f != nil && up && !l.Up && len(f.fixed) != 0 && !*f.vf.Trust {
		l.MAC = slices.Clone(f.fixed)
	}
	if !up {
		l.Addrs = slices.DeleteFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() })
	}
	l.Up = up
}

// Rename is as of kernel.Machine.
func (m *Machine) Rename(ns kernel.Namespace, index int, name string) error {
	if err := m.call("Rename", ns.Path, strconv.Itoa(index), name); err != nil {
		return err
	}
	return m.with(ns, index, func(n *namespace, l *link) error { return n.rename(l, name) })
}

func (n *namespace) rename(l *link, name string) error {
	if l.Name == name {
		return nil
	}
	err := validName(name)
	if err == nil {
		err = n.clash(name, l)
	}
	if err == nil && slices.Contains(l.AltNames, name) {
		err = &kernel.ClashError{Name: name, AltName: true} // its own: the kernel does not care
	}
	if err != nil {
		return fmt.Errorf("rename link %s: %w", l.Name, err)
	}
	l.Name = name
	return nil
}

func validName(name string) error {
	const most = 15
	if name == "" || len(name) > most || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r") {
		return fmt.Errorf("name %q: %w", name, syscall.EINVAL)
	}
	return nil
}

// Restore is as of kernel.Machine.
func (m *Machine) Restore(ns kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error) {
	if err := m.call("Restore", ns.Path, want.Name); err != nil {
		return kernel.Link{}, err
	}
	var restored kernel.Link
	err := m.with(ns, index, func(n *namespace, l *link) error {
		l.Addrs = slices.DeleteFunc(l.Addrs, func(p netip.Prefix) bool { return !kept(p) })
		errs := []error{n.restoreNames(l, want)}
		if want.MAC != nil && want.MAC.String() != l.MAC.String() {
			errs = append(errs, m.setMAC(l, want))
		}
		if want.MTU != 0 {
			l.MTU = want.MTU
		}
		m.setUp(l, want.Up)
		restored = clone(l)
		return errors.Join(errs...)
	})
	return restored, err
}

// kept tells whether an address is the kernel's own.
func kept(p netip.Prefix) bool { return p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() }

func (n *namespace) restoreNames(l *link, want kernel.LinkState) error {
	var errs []error
	l.AltNames = slices.DeleteFunc(l.AltNames, func(s string) bool { return !slices.Contains(want.AltNames, s) })
	if want.Name != "" {
		errs = append(errs, n.rename(l, want.Name))
	}
	for _, alt := range want.AltNames {
		if slices.Contains(l.AltNames, alt) {
			continue
		}
		if other := n.named(alt); other != nil {
			errs = append(errs, &kernel.ClashError{Name: alt, AltName: other.Name != alt})
			continue
		}
		l.AltNames = append(l.AltNames, alt)
	}
	slices.Sort(l.AltNames)
	return errors.Join(errs...)
}

// setMAC sets a link's own address, which a VF may only do while its PF fixed none, or trusts it.
func (m *Machine) setMAC(l *link, want kernel.LinkState) error {
	f := m.functions[l.PCI]
	if f != nil && f.PF != "" {
		if len(f.fixed) != 0 && !*f.vf.Trust && f.fixed.String() != want.MAC.String() {
			return fmt.Errorf("set address %s of %s: %w", want.MAC, l.Name, syscall.EADDRNOTAVAIL)
		}
		f.vf.MAC = slices.Clone(want.MAC)
	}
	l.MAC = slices.Clone(want.MAC)
	return nil
}

// AddDummy is as of kernel.Machine.
func (m *Machine) AddDummy(ns kernel.Namespace, name string) (kernel.Link, error) {
	if err := m.call("AddDummy", ns.Path, name); err != nil {
		return kernel.Link{}, err
	}
	defer m.tell()
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespace(ns)
	if err != nil {
		return kernel.Link{}, err
	}
	err = validName(name)
	if err == nil && n.named(name) != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return kernel.Link{}, fmt.Errorf("add dummy %s: %w", name, err)
	}
	l := n.add(&link{Link: kernel.Link{Name: name, MTU: 1500, Kind: "dummy"}})
	l.MAC = macOf(kernel.PCIAddr(fmt.Sprintf("%s %s %d", ns.Path, name, l.Index)))
	return clone(l), nil
}

// Remove is as of kernel.Machine.
func (m *Machine) Remove(ns kernel.Namespace, index int) error {
	if err := m.call("Remove", ns.Path, strconv.Itoa(index)); err != nil {
		return err
	}
	return m.with(ns, index, func(n *namespace, l *link) error {
		if l.Kind == "device" {
			return fmt.Errorf("remove link %s: %w", l.Name, syscall.EOPNOTSUPP)
		}
		delete(n.links, index)
		return nil
	})
}

// NamespaceID is as of kernel.Machine.
func (m *Machine) NamespaceID(path string) (uint64, error) {
	if err := m.call("NamespaceID", path); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.namespace(kernel.Namespace{Path: path})
	if err != nil {
		return 0, err
	}
	return n.id, nil
}

func byAddr(a, b kernel.Function) int { return cmp.Compare(a.Addr, b.Addr) }
