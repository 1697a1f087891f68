// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VF reads what a PF keeps of one of its VFs, through the PF's link in the host's namespace.
// ErrNoLink: the PF has no link there; fs.ErrNotExist: there is no such PF, or no such VF.
func (m *Machine) VF(pf PCIAddr, vf int) (VF, error) {
	var state VF
	err := m.uplink(pf, func(n *Netns, l netlink.Link) (err error) {
		state, err = n.vf(l, vf)
		return err
	})
	if err != nil {
		return VF{}, fmt.Errorf("read VF %d of %s: %w", vf, pf, err)
	}
	return state, nil
}

// VFs reads what a PF keeps of all its VFs, at once, by their numbers.
func (m *Machine) VFs(pf PCIAddr) (map[int]VF, error) {
	all := map[int]VF{}
	err := m.uplink(pf, func(n *Netns, l netlink.Link) error {
		vfs, err := n.vfs(l)
		for _, vf := range vfs {
			all[vf.ID] = vf
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the VFs of %s: %w", pf, err)
	}
	return all, nil
}

// SetVF changes what a PF keeps of one of its VFs. Only what differs is written, but for the
// address: what a PF shows is what it set or what the VF chose, so that reading does not tell
// whether it is set. It takes effect when the VF comes up the next time. What was written is read
// back.
func (m *Machine) SetVF(pf PCIAddr, vf int, change VFChange) error {
	err := change.Validate()
	if err == nil {
		err = m.uplink(pf, func(n *Netns, l netlink.Link) error { return n.setVF(l, vf, change) })
	}
	if err != nil {
		return fmt.Errorf("set VF %d of %s: %w", vf, pf, err)
	}
	return nil
}

// renames bounds how often a PF's link is looked for again because it was renamed meanwhile.
const renames = 3

// uplink finds a PF's link by what it is, whatever it is called now.
func (m *Machine) uplink(pf PCIAddr, f func(*Netns, netlink.Link) error) error {
	if err := m.one(pf, func(r *reader) error { _, err := r.class(); return err }); err != nil {
		return err
	}
	return inside(Namespace{}, func(n *Netns) error {
		for range renames {
			names, err := m.netdevs(pf)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				break
			}
			l, err := n.handle.LinkByName(names[0])
			if err == nil && n.pciOf(l) == pf {
				return f(n, l)
			}
			if err != nil && !errors.Is(noLink(err), ErrNoLink) {
				return err
			}
		}
		return ErrNoLink
	})
}

// vf asks a PF's driver for one VF.
func (n *Netns) vf(l netlink.Link, id int) (VF, error) {
	vfs, err := n.vfs(l)
	if err != nil {
		return VF{}, err
	}
	if i := slices.IndexFunc(vfs, func(v VF) bool { return v.ID == id }); i >= 0 {
		return vfs[i], nil
	}
	return VF{}, fs.ErrNotExist
}

// vfs asks a PF's driver for all VFs.
func (n *Netns) vfs(l netlink.Link) (all []VF, err error) {
	request, err := n.request(unix.RTM_GETLINK, unix.NLM_F_ACK, l.Attrs().Index)
	if err != nil {
		return nil, err
	}
	const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_VF|skipStats)))
	answers, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, noLink(err)
	}
	for _, a := range answers {
		if len(a) < unix.SizeofIfInfomsg {
			continue
		}
		vfs, err := parseVFs(a[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		all = append(all, vfs...)
	}
	return all, nil
}

// parseVFs reads the VFs in a link's attributes. The library's reading takes "the driver does not
// know" (all bits) for true.
func parseVFs(attrs []byte) ([]VF, error) {
	var all []VF
	err := eachAttr(attrs, func(kind uint16, list []byte) error {
		if kind != unix.IFLA_VFINFO_LIST {
			return nil
		}
		return eachAttr(list, func(_ uint16, info []byte) error {
			vf := VF{ID: len(all)}
			err := eachAttr(info, func(kind uint16, data []byte) error {
				vf.take(kind, data)
				return nil
			})
			all = append(all, vf)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the VFs of a link: %w", err)
	}
	return all, nil
}

var errAttr = errors.New("attribute is cut off")

// eachAttr calls f with each netlink attribute: a length with its header, a type, the value, and
// what fills it up to a multiple of four. The library's reader trusts the lengths.
func eachAttr(data []byte, f func(kind uint16, value []byte) error) error {
	const header, align, typeMask = 4, 4, 0x3fff // what else the kernel says with the type
	for len(data) >= header {
		size := int(binary.NativeEndian.Uint16(data))
		if size < header || size > len(data) {
			return errAttr
		}
		if err := f(binary.NativeEndian.Uint16(data[2:])&typeMask, data[header:size]); err != nil {
			return err
		}
		data = data[min(len(data), (size+align-1)/align*align):]
	}
	return nil
}

// take takes over one attribute of a VF. Each starts with the VF's number.
func (v *VF) take(kind uint16, data []byte) {
	const macAt, macLen = 4, 6
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(data[4*i:]) }
	flag := func() *bool {
		if w := word(1); w <= 1 {
			return new(w == 1)
		}
		return nil
	}
	switch {
	case kind == nl.IFLA_VF_MAC && len(data) >= macAt+macLen:
		v.ID, v.MAC = int(word(0)), net.HardwareAddr(slices.Clone(data[macAt:macAt+macLen]))
	case kind == nl.IFLA_VF_VLAN && len(data) >= 12:
		v.ID, v.VLAN, v.QoS = int(word(0)), int(word(1)), int(word(2))
	case kind == nl.IFLA_VF_SPOOFCHK && len(data) >= 8:
		v.Spoof = flag()
	case kind == nl.IFLA_VF_TRUST && len(data) >= 8:
		v.Trust = flag()
	}
}

func (n *Netns) setVF(l netlink.Link, id int, change VFChange) error {
	is, err := n.vf(l, id)
	if err != nil {
		return err
	}
	want := change.of(is)
	if change.MAC != nil {
		if err := n.handle.LinkSetVfHardwareAddr(l, id, change.MAC); err != nil {
			return fmt.Errorf("address %s: %w", change.MAC, err)
		}
	}
	if want.VLAN != is.VLAN || want.QoS != is.QoS {
		if err := n.handle.LinkSetVfVlanQos(l, id, want.VLAN, want.QoS); err != nil {
			return fmt.Errorf("VLAN %d, QoS %d: %w", want.VLAN, want.QoS, err)
		}
	}
	if differ(is.Spoof, change.Spoof) {
		if err := n.handle.LinkSetVfSpoofchk(l, id, *change.Spoof); err != nil {
			return fmt.Errorf("spoof check %t: %w", *change.Spoof, err)
		}
	}
	if differ(is.Trust, change.Trust) {
		if err := n.handle.LinkSetVfTrust(l, id, *change.Trust); err != nil {
			return fmt.Errorf("trust %t: %w", *change.Trust, err)
		}
	}
	return n.verifyVF(l, id, want, change)
}

// verifyVF reads back.
func (n *Netns) verifyVF(l netlink.Link, id int, want VF, change VFChange) error {
	is, err := n.vf(l, id)
	switch {
	case err != nil:
		return fmt.Errorf("read back: %w", err)
	case is.VLAN != want.VLAN || is.QoS != want.QoS:
		return fmt.Errorf("VLAN %d, QoS %d was accepted, and it has VLAN %d, QoS %d", want.VLAN, want.QoS, is.VLAN, is.QoS)
	case fixes(change.MAC) && is.MAC.String() != change.MAC.String():
		return fmt.Errorf("address %s was accepted, and it has %s", change.MAC, is.MAC)
	case is.Spoof != nil && differ(is.Spoof, change.Spoof):
		return fmt.Errorf("spoof check %t was accepted, and it has %t", *change.Spoof, *is.Spoof)
	case is.Trust != nil && differ(is.Trust, change.Trust):
		return fmt.Errorf("trust %t was accepted, and it has %t", *change.Trust, *is.Trust)
	}
	return nil
}

// fixes tells whether a VF may have no other address then: all zero takes that back.
func fixes(mac net.HardwareAddr) bool {
	return slices.ContainsFunc(mac, func(b byte) bool { return b != 0 })
}

func differ(is, want *bool) bool { return want != nil && (is == nil || *is != *want) }

// of gives the VLAN and QoS that a VF is to have.
func (c VFChange) of(is VF) VF {
	if c.VLAN != nil {
		if is.VLAN = *c.VLAN; is.VLAN == 0 {
			is.QoS = 0
		}
	}
	if c.QoS != nil {
		is.QoS = *c.QoS
	}
	return is
}
