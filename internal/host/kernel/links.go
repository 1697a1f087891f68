// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network interface as the kernel shows it.
type Link struct {
	Name     string
	AltNames []string
	Index    int
	MAC      net.HardwareAddr // empty for links that have none
	MTU      int
	Up       bool    // administratively up
	Running  bool    // up and with a carrier
	Kind     string  // "veth", "bridge", …; "device" for one without a kind (lo, a physical one)
	PCI      PCIAddr // of the function that it belongs to; "" when it is no PCI device
	Addrs    []netip.Prefix

	// What else of the namespace stands on it; only Links and Machine.LinkOf tell.
	Master string   // the bridge, bond or VRF that it is a port of
	Uppers []string // links on top of it: VLANs, macvlans
}

// Links lists the namespace's interfaces in the order of their index, with the addresses of
// both families (link-local ones too) in the kernel's order.
func (n *Netns) Links() ([]Link, error) { return n.links(n.handle.LinkList) }

func (n *Netns) links(list func() ([]netlink.Link, error)) ([]Link, error) {
	links, err := dump(list)
	if err != nil {
		return nil, fmt.Errorf("list links of %s: %w", n.path, err)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return n.handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", n.path, err)
	}
	all := make([]Link, 0, len(links))
	for _, l := range links {
		all = append(all, n.toLink(l, addrs))
	}
	stack(all, links)
	slices.SortFunc(all, func(a, b Link) int { return a.Index - b.Index })
	return all, nil
}

// stack fills in which links of a namespace stand on which others, from the same list. Two that name
// each other are a pair, as of veth, and neither stands on the other.
func stack(all []Link, links []netlink.Link) {
	at, below := map[int]int{}, map[int]int{}
	for i, l := range links {
		attrs := l.Attrs()
		at[attrs.Index] = i
		if attrs.ParentIndex != 0 && attrs.NetNsID < 0 {
			below[attrs.Index] = attrs.ParentIndex
		}
	}
	for i, l := range links {
		attrs := l.Attrs()
		if master, ok := at[attrs.MasterIndex]; ok && attrs.MasterIndex != 0 {
			all[i].Master = all[master].Name
		}
		parent, ok := at[below[attrs.Index]]
		if ok && below[attrs.Index] != 0 && below[links[parent].Attrs().Index] != attrs.Index {
			all[parent].Uppers = append(all[parent].Uppers, attrs.Name)
		}
	}
}

func (n *Netns) toLink(l netlink.Link, addrs []netlink.Addr) Link {
	attrs := l.Attrs()
	link := Link{
		Name: attrs.Name, AltNames: attrs.AltNames, Index: attrs.Index, MAC: attrs.HardwareAddr, MTU: attrs.MTU,
		Up: attrs.Flags&net.FlagUp != 0, Kind: l.Type(), PCI: n.pciOf(l),
		Running: attrs.RawFlags&(unix.IFF_UP|unix.IFF_LOWER_UP) == unix.IFF_UP|unix.IFF_LOWER_UP,
	}
	slices.Sort(link.AltNames)
	for _, a := range addrs {
		if a.LinkIndex != attrs.Index || a.IPNet == nil {
			continue
		}
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ones, _ := a.Mask.Size()
			link.Addrs = append(link.Addrs, netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	return link
}

// pciOf is the PCI function that a link belongs to. Kernels before 5.14 do not tell; there the
// driver does.
func (n *Netns) pciOf(l netlink.Link) PCIAddr {
	attrs := l.Attrs()
	name := attrs.ParentDev
	if attrs.ParentDevBus != "pci" {
		if name != "" || l.Type() != "device" || attrs.Flags&net.FlagLoopback != 0 {
			return ""
		}
		name = n.busInfo(attrs.Name)
	}
	addr, err := ParsePCIAddr(name)
	if err != nil {
		return ""
	}
	return addr
}

// busInfo asks a link's driver where its device is; "" when it does not say.
func (n *Netns) busInfo(name string) string {
	fd := -1
	err := n.do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return "" // a link without a driver that answers
	}
	return unix.ByteSliceToString(info.Bus_info[:])
}

// link finds one interface by name.
func (n *Netns) link(name string) (netlink.Link, error) {
	l, err := n.handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %s in %s: %w", name, n.path, err)
	}
	return l, nil
}
