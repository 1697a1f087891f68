// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CreateNetns makes a network namespace, bound to a new file at path, with lo down in it.
func CreateNetns(path string) (*Netns, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return nil, fmt.Errorf("create network namespace: %w", err)
	}
	err = errors.Join(file.Close(), onThread(func() (bool, error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return true, err
		}
		// The thread stays in the new namespace, hence ends.
		return false, unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create network namespace %s: %w", path, err), os.Remove(path))
	}
	n, err := OpenNetns(path)
	if err != nil {
		return nil, errors.Join(err, RemoveNetns(path))
	}
	return n, nil
}

// RemoveNetns unbinds the namespace at path and removes the file. The kernel ends the
// namespace when nobody is in it any more.
func RemoveNetns(path string) error {
	// EINVAL: not bound, so only the file is left.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unbind network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// AddVeth makes a pair of connected links: name here, peer in other. Both are down.
func (n *Netns) AddVeth(name string, other *Netns, peer string) error {
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer,
		PeerNamespace: netlink.NsFd(int(other.file.Fd())),
	}
	if err := n.handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", name, err)
	}
	return nil
}

// AddBridge makes a bridge, which is down.
func (n *Netns) AddBridge(name string) error {
	if err := n.handle.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		return fmt.Errorf("add bridge %s: %w", name, err)
	}
	return nil
}

// RemoveLink deletes a link.
func (n *Netns) RemoveLink(name string) error {
	link, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.handle.LinkDel(link); err != nil {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// SetUp brings a link up, or takes it down.
func (n *Netns) SetUp(name string, up bool) error {
	link, err := n.link(name)
	if err != nil {
		return err
	}
	set := n.handle.LinkSetDown
	if up {
		set = n.handle.LinkSetUp
	}
	if err := set(link); err != nil {
		return fmt.Errorf("set link %s up=%t: %w", name, up, err)
	}
	return nil
}

// AddAddr gives a link an address. An IPv6 one is usable at once: nobody else is asked
// whether it is taken.
func (n *Netns) AddAddr(name string, prefix netip.Prefix) error {
	link, err := n.link(name)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}}
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := n.handle.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add address %s to %s: %w", prefix, name, err)
	}
	return nil
}

// ListenUDP opens a UDP socket inside the namespace that sends and receives through ifName only.
func (n *Netns) ListenUDP(ctx context.Context, ifName string, addr netip.AddrPort) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var bind error
		err := raw.Control(func(fd uintptr) { bind = unix.BindToDevice(int(fd), ifName) })
		return errors.Join(err, bind)
	}}
	network := "udp6"
	if FamilyOf(addr.Addr()) == IPv4 {
		network = "udp4"
	}
	var conn net.PacketConn
	err := n.do(func() (err error) {
		conn, err = config.ListenPacket(ctx, network, addr.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open socket on %s: %w", ifName, err)
	}
	return conn.(*net.UDPConn), nil
}

// CanMake tells whether the running kernel has links of a kind ("macvlan", "vlan", …). It
// tries in the namespace, which should be one that is thrown away.
func (n *Netns) CanMake(kind string) (bool, error) {
	const name = "weft-try"
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name}, LinkType: kind}
	if kind == "ipvlan" {
		link.ParentIndex = 1 // lo: the library asks for a parent before it asks the kernel
	}
	err := n.handle.LinkAdd(link)
	switch {
	case err == nil:
		return true, n.RemoveLink(name)
	case errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
		return true, nil // known: it only misses what it stands on
	}
	return false, fmt.Errorf("try a link of kind %s: %w", kind, err)
}
