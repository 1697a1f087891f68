// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Limits of what the adapters read.
const (
	maxText    = 8 << 20 // bytes of a domain's XML or of an agent's answer
	maxDevices = 1024    // interfaces of a domain, and as many SR-IOV devices
	maxRecords = 4096    // interfaces of a guest
	maxSkipped = 16      // elements that are told one by one
)

// domainXML is what is read of a domain; everything else may be anything.
type domainXML struct {
	XMLName    xml.Name       `xml:"domain"`
	Interfaces []interfaceXML `xml:"devices>interface"`
	HostDevs   []struct {
		Alias *libvirtxml.DomainAlias `xml:"alias"`
	} `xml:"devices>hostdev"`
	Channels []struct {
		Target *libvirtxml.DomainChannelTargetVirtIO `xml:"target"`
	} `xml:"devices>channel"`
}

type interfaceXML struct {
	Alias  *libvirtxml.DomainAlias         `xml:"alias"`
	MAC    *libvirtxml.DomainInterfaceMAC  `xml:"mac"`
	Link   *libvirtxml.DomainInterfaceLink `xml:"link"`
	Driver *struct {
		Queues string `xml:"queues,attr"`
	} `xml:"driver"`
}

// FromXML reads a libvirt domain. What cannot be read is in the result's Err, one element that
// cannot be used in its Skipped; nothing is known of the guest yet.
func FromXML(text []byte) *Domain {
	var x domainXML
	if err := unmarshalXML(text, &x); err != nil {
		return &Domain{Err: err}
	}
	d := &Domain{}
	for i := range x.Interfaces {
		d.addNIC(&x.Interfaces[i])
	}
	for _, h := range x.HostDevs {
		if h.Alias == nil {
			continue
		}
		if name, ok := strings.CutPrefix(strings.TrimPrefix(h.Alias.Name, "ua-"), "sriov-"); ok && name != "" && len(d.HostDevices) < maxDevices {
			d.HostDevices = append(d.HostDevices, HostDevice{Name: name})
		}
	}
	for _, c := range x.Channels {
		if c.Target != nil && c.Target.Name == "org.qemu.guest_agent.0" {
			d.Channel = c.Target.State
		}
	}
	if n := len(d.Skipped) - maxSkipped; n > 0 {
		d.Skipped = append(d.Skipped[:maxSkipped], fmt.Sprintf("%d more elements", n))
	}
	return d
}

func unmarshalXML(text []byte, into any) error {
	if len(text) > maxText {
		return fmt.Errorf("domain XML has %d bytes, more than %d", len(text), maxText)
	}
	dec := xml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("domain XML: %w", err)
	}
	return nil
}

func (d *Domain) addNIC(x *interfaceXML) {
	n := NIC{Queues: 1, LinkState: "up"}
	if x.MAC != nil {
		n.MAC = x.MAC.Address
	}
	if x.Alias != nil {
		n.Name = strings.TrimPrefix(x.Alias.Name, "ua-")
	}
	if n.Name == "" {
		d.Skipped = append(d.Skipped, fmt.Sprintf("an interface with the MAC %q has no alias", clip(n.MAC)))
		return
	}
	if len(d.Interfaces) == maxDevices {
		d.Skipped = append(d.Skipped, fmt.Sprintf("interface %s is beyond the first %d", clip(n.Name), maxDevices))
		return
	}
	if x.Link != nil && x.Link.State == "down" {
		n.LinkState = "down"
	}
	if x.Driver != nil && x.Driver.Queues != "" {
		q, err := strconv.ParseUint(x.Driver.Queues, 10, 31)
		if err != nil {
			d.Skipped = append(d.Skipped, fmt.Sprintf("the queues %q of interface %s are no number", clip(x.Driver.Queues), clip(n.Name)))
		}
		n.Queues = int32(max(1, min(q, math.MaxInt32)))
	}
	d.Interfaces = append(d.Interfaces, n)
}

// guestJSON is a record of the agent's guest-network-get-interfaces.
type guestJSON struct {
	Name string `json:"name"`
	MAC  string `json:"hardware-address"`
	IPs  []struct {
		IP string `json:"ip-address"`
	} `json:"ip-addresses"`
}

// FromGuest reads the list that the agent's guest-network-get-interfaces returns, also inside of
// the agent's {"return": …}. It is nil for null, and never nil for a list.
func FromGuest(text []byte) ([]GuestInterface, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("guest interfaces have %d bytes, more than %d", len(text), maxText)
	}
	if t := bytes.TrimSpace(text); len(t) > 0 && t[0] == '{' {
		var wrapped struct {
			Return json.RawMessage `json:"return"`
		}
		if err := json.Unmarshal(t, &wrapped); err != nil {
			return nil, fmt.Errorf("guest interfaces: %w", err)
		}
		if wrapped.Return == nil {
			return nil, errors.New("guest interfaces: an object without return")
		}
		text = wrapped.Return
	}
	var list []guestJSON
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("guest interfaces: %w", err)
	}
	if list == nil {
		return nil, nil
	}
	if len(list) > maxRecords {
		return nil, fmt.Errorf("guest interfaces: %d, more than %d", len(list), maxRecords)
	}
	guest := make([]GuestInterface, len(list))
	for i := range list {
		g := &guest[i]
		g.Name, g.MAC = list[i].Name, list[i].MAC
		for _, ip := range list[i].IPs {
			g.IPs = append(g.IPs, ip.IP)
		}
	}
	return guest, nil
}
