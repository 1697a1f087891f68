// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// change finds a link by its index and changes it.
func change(ns Namespace, index int, f func(*Netns, netlink.Link) error) error {
	return inside(ns, func(n *Netns) error {
		l, err := n.handle.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("find link %d in %s: %w", index, n.path, noLink(err))
		}
		return f(n, l)
	})
}

// SetUp brings a link up, or takes it down.
func (m *Machine) SetUp(ns Namespace, index int, up bool) error {
	return change(ns, index, func(n *Netns, l netlink.Link) error { return n.setUp(l, up) })
}

func (n *Netns) setUp(l netlink.Link, up bool) error {
	set := n.handle.LinkSetDown
	if up {
		set = n.handle.LinkSetUp
	}
	if err := set(l); err != nil {
		return fmt.Errorf("set link %s up=%t: %w", l.Attrs().Name, up, noLink(err))
	}
	return nil
}

// Rename gives a link another name; *ClashError: it is taken.
func (m *Machine) Rename(ns Namespace, index int, name string) error {
	return change(ns, index, func(n *Netns, l netlink.Link) error {
		err := n.rename(l, name)
		if errors.Is(err, unix.EBUSY) { // before Linux 6.2, a link that is up
			if err := n.setUp(l, false); err != nil {
				return err
			}
			return errors.Join(n.rename(l, name), n.setUp(l, true))
		}
		return err
	})
}

func (n *Netns) rename(l netlink.Link, name string) error {
	old := l.Attrs().Name
	if old == name {
		return nil
	}
	err := n.handle.LinkSetName(l, name)
	if errors.Is(err, unix.EEXIST) {
		err = n.taken(name)
	}
	if err != nil {
		return fmt.Errorf("rename link %s to %q: %w", old, name, noLink(err))
	}
	return nil
}

// taken says how a name is taken.
func (n *Netns) taken(name string) error {
	other, err := n.handle.LinkByName(name)
	return &ClashError{Name: name, AltName: err == nil && other.Attrs().Name != name}
}

// Restore makes a link what it was: its names, its own address, its MTU, whether it is up. What
// want leaves empty (but for alternative names) stays. The network addresses that it was given
// go. Every part is tried; where a name is taken the link keeps the one that it has, and the error
// is (or joins) a *ClashError.
func (m *Machine) Restore(ns Namespace, index int, want LinkState) (Link, error) {
	var restored Link
	err := inside(ns, func(n *Netns) error {
		l, err := n.handle.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("find link %d in %s: %w", index, n.path, noLink(err))
		}
		err = n.restore(l, want)
		if l, again := n.handle.LinkByIndex(index); again != nil {
			return errors.Join(err, noLink(again))
		} else if restored, again = n.describe(l); again != nil {
			return errors.Join(err, again)
		}
		if err == nil {
			err = differs(restored, want)
		}
		return err
	})
	if err != nil {
		return restored, fmt.Errorf("restore link %d: %w", index, err)
	}
	return restored, nil
}

func (n *Netns) restore(l netlink.Link, want LinkState) error {
	is, err := n.describe(l)
	if err != nil {
		return err
	}
	errs := []error{n.dropAddrs(l), n.dropAltNames(l, want.AltNames)}
	name := want.Name != "" && want.Name != is.Name
	mac := want.MAC != nil && want.MAC.String() != is.MAC.String()
	if (name || mac) && is.Up { // drivers, and kernels before 6.2, want that
		errs = append(errs, n.setUp(l, false))
		is.Up = false
	}
	if name {
		errs = append(errs, n.rename(l, want.Name))
	}
	if mac {
		errs = append(errs, wrap("set address "+want.MAC.String(), n.handle.LinkSetHardwareAddr(l, want.MAC)))
	}
	if want.MTU != 0 && want.MTU != is.MTU {
		errs = append(errs, wrap(fmt.Sprintf("set MTU %d", want.MTU), n.handle.LinkSetMTU(l, want.MTU)))
	}
	for _, alt := range want.AltNames {
		if slices.Contains(is.AltNames, alt) {
			continue
		}
		err := n.handle.LinkAddAltName(l, alt)
		if errors.Is(err, unix.EEXIST) {
			err = n.taken(alt)
		}
		errs = append(errs, wrap("add alternative name "+alt, err))
	}
	if is.Up != want.Up {
		errs = append(errs, n.setUp(l, want.Up))
	}
	return errors.Join(errs...)
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// dropAddrs removes the addresses that the link was given. The kernel's own, by which IPv6 works
// on the wire, come and go with the link's being up.
func (n *Netns) dropAddrs(l netlink.Link) error {
	addrs, err := dump(func() ([]netlink.Addr, error) { return n.handle.AddrList(l, unix.AF_UNSPEC) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var errs []error
	for _, a := range addrs {
		if a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() {
			continue
		}
		err := n.handle.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: a.IP, Mask: a.Mask}})
		if !errors.Is(err, unix.EADDRNOTAVAIL) { // a secondary one goes with its primary
			errs = append(errs, wrap("remove address "+a.IP.String(), err))
		}
	}
	return errors.Join(errs...)
}

func (n *Netns) dropAltNames(l netlink.Link, want []string) error {
	var errs []error
	for _, alt := range l.Attrs().AltNames {
		if !slices.Contains(want, alt) {
			errs = append(errs, wrap("remove alternative name "+alt, n.handle.LinkDelAltName(l, alt)))
		}
	}
	return errors.Join(errs...)
}

// differs reads back what was set. The own address is left out: a VF that comes up may learn
// another one from its PF.
func differs(is Link, want LinkState) error {
	switch {
	case want.Name != "" && is.Name != want.Name:
		return fmt.Errorf("it is called %s", is.Name)
	case want.MTU != 0 && is.MTU != want.MTU:
		return fmt.Errorf("its MTU is %d", is.MTU)
	case is.Up != want.Up:
		return fmt.Errorf("it has up=%t", is.Up)
	}
	return nil
}

// AddDummy makes a link that leads nowhere, down; fs.ErrExist: another link has the name.
func (m *Machine) AddDummy(ns Namespace, name string) (Link, error) {
	var added Link
	err := inside(ns, func(n *Netns) error {
		err := n.handle.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}})
		if err != nil {
			return fmt.Errorf("add dummy %s: %w", name, err)
		}
		l, err := n.handle.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find dummy %s: %w", name, noLink(err))
		}
		added, err = n.describe(l)
		return err
	})
	return added, err
}

// Remove deletes a link. The kernel refuses that for a physical one (EOPNOTSUPP).
func (m *Machine) Remove(ns Namespace, index int) error {
	return change(ns, index, func(n *Netns, l netlink.Link) error {
		if err := n.handle.LinkDel(l); err != nil {
			return fmt.Errorf("remove link %s: %w", l.Attrs().Name, noLink(err))
		}
		return nil
	})
}
