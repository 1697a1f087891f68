// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
)

// With does with a namespace what somebody else would do.
func With(ns Namespace, f func(*Netns, *netlink.Handle) error) error {
	return inside(ns, func(n *Netns) error { return f(n, n.handle) })
}

// MoveUnchecked is Move when somebody takes the name after it was looked for.
func MoveUnchecked(from Namespace, index int, to Namespace, name string) (Link, error) {
	var moved Link
	err := change(from, index, func(source *Netns, l netlink.Link) error {
		return inside(to, func(target *Netns) (err error) {
			moved, err = source.moveUnchecked(l, target, name)
			return err
		})
	})
	return moved, err
}

// Parsers of outside bytes.
var (
	OfDevices   = ofDevices
	ParseVirtfn = parseVirtfn
	ParseNumber = parseNumber
	ParseUevent = parseUevent
	ParseVFs    = parseVFs
	PCIeRoot    = pcieRoot
	Rank        = rank
)

// SysfsOf opens a sysfs that a test made.
func SysfsOf(dir string) (*Machine, error) {
	m, err := Open(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	return m, nil
}

// SocketIn opens a socket inside a namespace.
func SocketIn(ns Namespace, open func() (int, error)) (fd int, err error) {
	err = inside(ns, func(n *Netns) error {
		return n.do(func() (err error) {
			fd, err = open()
			return err
		})
	})
	return fd, err
}
