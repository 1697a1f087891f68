// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Move takes a link down, into another namespace, and gives it a name there. It loses its
// addresses; its index is the same unless that is taken. When the name, or one of its alternative
// names, is taken there, the error is a *ClashError, and the link is where and what it was.
//
// One message to the kernel does both, so that the old name is never looked at over there. But the
// kernel looks for the new one after the move, if the old one was free: hence it is looked for
// before, and the move undone when somebody was quicker.
func (m *Machine) Move(from Namespace, index int, to Namespace, name string) (Link, error) {
	var moved Link
	err := inside(from, func(source *Netns) error {
		return inside(to, func(target *Netns) (err error) {
			moved, err = move(source, index, target, name)
			return err
		})
	})
	return moved, err
}

func move(source *Netns, index int, target *Netns, name string) (Link, error) {
	l, err := source.handle.LinkByIndex(index)
	if err != nil {
		return Link{}, fmt.Errorf("find link %d in %s: %w", index, source.path, noLink(err))
	}
	if here, err := same(source, target); here || err != nil {
		return Link{}, errors.Join(err, errSameNamespace)
	}
	if err := target.clash(l, name); err != nil {
		return Link{}, fmt.Errorf("move link %s: %w", l.Attrs().Name, err)
	}
	return source.moveUnchecked(l, target, name)
}

var errSameNamespace = errors.New("a link is moved from one namespace to another")

func same(a, b *Netns) (bool, error) {
	first, err := namespaceID(int(a.file.Fd()))
	if err != nil {
		return false, err
	}
	second, err := namespaceID(int(b.file.Fd()))
	return first == second, err
}

// clash tells whether a link that is not in n could not be called name there.
func (n *Netns) clash(l netlink.Link, name string) error {
	all, err := dump(n.plain)
	if err != nil {
		return fmt.Errorf("list links of %s: %w", n.path, err)
	}
	for _, want := range append([]string{name}, l.Attrs().AltNames...) {
		for _, other := range all {
			attrs := other.Attrs()
			if attrs.Name == want || slices.Contains(attrs.AltNames, want) {
				return &ClashError{Name: want, AltName: attrs.Name != want}
			}
		}
	}
	return nil
}

func (n *Netns) moveUnchecked(l netlink.Link, target *Netns, name string) (Link, error) {
	attrs := l.Attrs()
	wasUp := attrs.RawFlags&unix.IFF_UP != 0
	if err := n.handle.LinkSetDown(l); err != nil {
		return Link{}, fmt.Errorf("take link %s down: %w", attrs.Name, noLink(err))
	}
	if err := n.send(attrs.Index, target, name, 0); err != nil {
		err = target.explain(l, name, err)
		return Link{}, errors.Join(fmt.Errorf("move link %s: %w", attrs.Name, err), n.undo(l, target, wasUp))
	}
	there, err := target.handle.LinkByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("find link %s where it was moved: %w", name, noLink(err))
	}
	return target.describe(there)
}

// explain finds out whom a move clashed with.
func (n *Netns) explain(l netlink.Link, name string, err error) error {
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if clash := n.clash(l, name); clash != nil {
		return clash
	}
	return &ClashError{Name: name} // it went meanwhile
}

// send moves a link and gives it a name; index asks for that one (0: the kernel may choose).
func (n *Netns) send(link int, target *Netns, name string, index int) error {
	request, err := n.request(unix.RTM_SETLINK, unix.NLM_F_ACK, link)
	if err != nil {
		return err
	}
	request.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(target.file.Fd()))))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if index != 0 {
		request.AddData(nl.NewRtAttr(unix.IFLA_NEW_IFINDEX, nl.Uint32Attr(uint32(index))))
	}
	_, err = request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// undo brings a link that was to be moved to what it was. It is in the target if its new name was
// found taken after the move, under the old one then.
func (n *Netns) undo(l netlink.Link, target *Netns, wasUp bool) error {
	attrs := l.Attrs()
	if _, err := n.handle.LinkByIndex(attrs.Index); err != nil {
		if !errors.Is(noLink(err), ErrNoLink) {
			return fmt.Errorf("look for link %s where it was: %w", attrs.Name, err)
		}
		there, err := target.handle.LinkByName(attrs.Name)
		if err != nil {
			return fmt.Errorf("look for link %s where it was moved: %w", attrs.Name, noLink(err))
		}
		if err := target.send(there.Attrs().Index, n, attrs.Name, attrs.Index); err != nil {
			return fmt.Errorf("move link %s back: %w", attrs.Name, err)
		}
	}
	if !wasUp {
		return nil
	}
	if err := n.handle.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring link %s up again: %w", attrs.Name, err)
	}
	return nil
}
