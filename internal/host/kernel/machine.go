// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Machine is what the host's kernel has of PCI network functions, links and network namespaces.
// It keeps nothing but the open sysfs, and may be used from several goroutines.
type Machine struct {
	sysfs *os.Root
}

// Open opens the machine whose sysfs is at sysfsRoot ("/sys", or where a container has it).
func Open(sysfsRoot string) (*Machine, error) {
	root, err := os.OpenRoot(sysfsRoot)
	if err != nil {
		return nil, fmt.Errorf("open sysfs: %w", err)
	}
	return &Machine{sysfs: root}, nil
}

// Close lets go of sysfs.
func (m *Machine) Close() error { return m.sysfs.Close() }

// own is the network namespace of the process. That of its first thread would not do: Go parks that
// thread in another namespace if it cannot return from there.
const own = "/proc/thread-self/ns/net"

// open opens a namespace, and makes sure that it is the one that is meant.
func open(ns Namespace) (*Netns, error) {
	path := ns.Path
	if path == "" {
		path = own
	}
	n, err := OpenNetns(path)
	if errors.Is(err, unix.EINVAL) { // the file is there, and no namespace is bound to it
		return nil, fmt.Errorf("open network namespace %s: %w", path, fs.ErrNotExist)
	}
	if err != nil || ns.ID == 0 {
		return n, err
	}
	id, err := namespaceID(int(n.file.Fd()))
	if err == nil && id != ns.ID {
		err = fmt.Errorf("open network namespace %s: another one is there now (%d, not %d): %w", path, id, ns.ID, fs.ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func namespaceID(fd int) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("stat network namespace: %w", err)
	}
	return stat.Ino, nil
}

// NamespaceID tells the inode of the network namespace at path. errors.Is(err, fs.ErrNotExist)
// tells that there is nothing, or no network namespace.
func (m *Machine) NamespaceID(path string) (uint64, error) {
	n, err := open(Namespace{Path: path})
	if err != nil {
		return 0, err
	}
	id, err := namespaceID(int(n.file.Fd()))
	return id, errors.Join(err, n.Close())
}

// inside opens a namespace for as long as f takes.
func inside(ns Namespace, f func(*Netns) error) error {
	n, err := open(ns)
	if err != nil {
		return err
	}
	return errors.Join(f(n), n.Close())
}

// Links lists a namespace's links by index.
func (m *Machine) Links(ns Namespace) ([]Link, error) {
	var all []Link
	err := inside(ns, func(n *Netns) (err error) {
		all, err = n.links(n.plain)
		return err
	})
	return all, err
}

// Link finds a link by its name, or by an alternative one; ErrNoLink: there is none.
func (m *Machine) Link(ns Namespace, name string) (Link, error) {
	return find(ns, "link "+name, func(n *Netns) (netlink.Link, error) { return n.handle.LinkByName(name) })
}

// LinkByIndex finds a link by its index; ErrNoLink: there is none.
func (m *Machine) LinkByIndex(ns Namespace, index int) (Link, error) {
	return find(ns, fmt.Sprintf("link %d", index), func(n *Netns) (netlink.Link, error) { return n.handle.LinkByIndex(index) })
}

// plain lists links without what they keep of VFs, for which a driver may ask its device.
func (n *Netns) plain() ([]netlink.Link, error) {
	request, err := n.request(unix.RTM_GETLINK, unix.NLM_F_DUMP, 0)
	if err != nil {
		return nil, err
	}
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	all := make([]netlink.Link, len(answers))
	for i, a := range answers {
		if all[i], err = netlink.LinkDeserialize(nil, a); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func find(ns Namespace, what string, f func(*Netns) (netlink.Link, error)) (Link, error) {
	var found Link
	err := inside(ns, func(n *Netns) error {
		l, err := f(n)
		if err != nil {
			return fmt.Errorf("find %s: %w", what, noLink(err))
		}
		found, err = n.describe(l)
		return err
	})
	return found, err
}

// noLink makes the library's word for a missing link ours.
func noLink(err error) error {
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing || errors.Is(err, unix.ENODEV) {
		return ErrNoLink
	}
	return err
}

// describe adds the addresses of one link.
func (n *Netns) describe(l netlink.Link) (Link, error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return n.handle.AddrList(l, unix.AF_UNSPEC) })
	if err != nil {
		return Link{}, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, noLink(err))
	}
	return n.toLink(l, addrs), nil
}

// LinkOf finds the link of a PCI function: of several (a switch's representors belong to the
// physical function as well) the uplink in the host's namespace, elsewhere the oldest.
// ErrNoLink: there is none.
func (m *Machine) LinkOf(ns Namespace, addr PCIAddr) (Link, error) {
	all, err := m.Links(ns)
	if err != nil {
		return Link{}, err
	}
	var found []Link
	for _, l := range all {
		if l.PCI == addr && addr != "" {
			found = append(found, l)
		}
	}
	if len(found) > 1 && ns.Path == "" {
		names, err := m.netdevs(addr)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Link{}, err
		}
		for _, l := range found {
			if len(names) > 0 && l.Name == names[0] {
				return l, nil
			}
		}
	}
	if len(found) == 0 {
		return Link{}, fmt.Errorf("find the link of %s: %w", addr, ErrNoLink)
	}
	return found[0], nil
}
