// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Limits of what the adapters read. A guest, or a launcher that a guest took over, sends what it
// likes: whatever is beyond them costs no memory.
const (
	maxText      = 8 << 20 // bytes of a domain's XML
	maxElements  = 1 << 16 // of a domain; one of a thousand interfaces has a fifth of them
	maxDevices   = 1024    // interfaces of a domain, and as many SR-IOV devices
	maxGuestText = 1 << 20 // bytes of an agent's answer
	maxRecords   = 4096    // interfaces of a guest
	maxGuestIPs  = 2048    // addresses of a record, as with libvirt; more are not looked at
	maxSkipped   = 16      // elements that are told one by one
)

// Elements of which something is read of a domain; everything else may be anything.
type (
	hostDevXML struct {
		Alias *libvirtxml.DomainAlias `xml:"alias"`
	}
	channelXML struct {
		Target *libvirtxml.DomainChannelTargetVirtIO `xml:"target"`
	}
)

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
	if len(text) > maxText {
		return &Domain{Err: fmt.Errorf("domain XML has %d bytes, more than %d", len(text), maxText)}
	}
	r := domainReader{Decoder: xml.NewDecoder(bytes.NewReader(text)), into: &Domain{}}
	if err := r.domain(); err != nil {
		return &Domain{Err: fmt.Errorf("domain XML: %w", err)}
	}
	if r.untold > 0 {
		r.into.Skipped = append(r.into.Skipped, fmt.Sprintf("%d more elements", r.untold))
	}
	return r.into
}

// domainReader reads a domain element by element, so that only what is kept of it takes memory.
type domainReader struct {
	*xml.Decoder
	into     *Domain
	elements int
	untold   int // elements that were skipped beyond those that are told
}

func (r *domainReader) domain() error {
	var path []string // as far as it is looked at
	for depth := 0; ; {
		token, err := r.Token()
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if r.elements++; r.elements > maxElements {
				return fmt.Errorf("there are more than %d elements", maxElements)
			}
			if depth == 0 && t.Name.Local != "domain" {
				return fmt.Errorf("expected element type <domain> but have <%s>", clip(t.Name.Local))
			}
			if depth == 2 && path[1] == "devices" {
				if done, err := r.device(&t); err != nil {
					return err
				} else if done {
					continue
				}
			}
			if depth < 2 {
				path = append(path[:depth], t.Name.Local)
			}
			depth++
		case xml.EndElement:
			if depth--; depth == 0 {
				return nil
			}
		}
	}
}

// device reads a device of a kind that matters, as a whole.
func (r *domainReader) device(start *xml.StartElement) (done bool, err error) {
	switch start.Name.Local {
	case "interface":
		var x interfaceXML
		err = r.DecodeElement(&x, start)
		r.addNIC(&x)
	case "hostdev":
		var x hostDevXML
		err = r.DecodeElement(&x, start)
		r.addHostDevice(&x)
	case "channel":
		var x channelXML
		err = r.DecodeElement(&x, start)
		if x.Target != nil && x.Target.Name == "org.qemu.guest_agent.0" {
			r.into.Channel = x.Target.State
		}
	default:
		return false, nil
	}
	return true, err
}

func (r *domainReader) skip(format string, args ...any) {
	if len(r.into.Skipped) == maxSkipped {
		r.untold++
		return
	}
	r.into.Skipped = append(r.into.Skipped, fmt.Sprintf(format, args...))
}

func (r *domainReader) addHostDevice(x *hostDevXML) {
	if x.Alias == nil || len(r.into.HostDevices) == maxDevices {
		return
	}
	if name, ok := strings.CutPrefix(strings.TrimPrefix(x.Alias.Name, "ua-"), "sriov-"); ok && name != "" {
		r.into.HostDevices = append(r.into.HostDevices, HostDevice{Name: name})
	}
}

func (r *domainReader) addNIC(x *interfaceXML) {
	n := NIC{Queues: 1, LinkState: "up"}
	if x.MAC != nil {
		n.MAC = x.MAC.Address
	}
	if x.Alias != nil {
		n.Name = strings.TrimPrefix(x.Alias.Name, "ua-")
	}
	if n.Name == "" {
		r.skip("an interface with the MAC %q has no alias", clip(n.MAC))
		return
	}
	if len(r.into.Interfaces) == maxDevices {
		r.skip("interface %s is beyond the first %d", clip(n.Name), maxDevices)
		return
	}
	if x.Link != nil && x.Link.State == "down" {
		n.LinkState = "down"
	}
	if x.Driver != nil && x.Driver.Queues != "" {
		q, err := strconv.ParseUint(x.Driver.Queues, 10, 31)
		if err != nil {
			r.skip("the queues %q of interface %s are no number", clip(x.Driver.Queues), clip(n.Name))
		}
		n.Queues = int32(max(1, min(q, math.MaxInt32)))
	}
	r.into.Interfaces = append(r.into.Interfaces, n)
}

// guestJSON is a record of the agent's guest-network-get-interfaces.
type guestJSON struct {
	Name string   `json:"name"`
	MAC  string   `json:"hardware-address"`
	IPs  guestIPs `json:"ip-addresses"`
}

// guestIPs are a record's addresses.
type guestIPs []string

// UnmarshalJSON reads the addresses one by one.
func (l *guestIPs) UnmarshalJSON(text []byte) error {
	*l = nil
	return eachJSON(text, func(dec *json.Decoder) error {
		var a struct {
			IP string `json:"ip-address"`
		}
		if err := dec.Decode(&a); err != nil {
			return err
		}
		if *l = append(*l, a.IP); len(*l) == maxGuestIPs {
			return errEnough
		}
		return nil
	})
}

// errEnough ends the reading of a list, well.
var errEnough = errors.New("enough is read") //nolint:gochecknoglobals // a sentinel

// eachJSON calls for each element of a list, which it decodes. Null is an empty list.
func eachJSON(text []byte, element func(*json.Decoder) error) error {
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, err := dec.Token(); err != nil {
		return err
	} else if open != json.Delim('[') {
		return errors.New("it is no list")
	}
	for dec.More() {
		if err := element(dec); errors.Is(err, errEnough) {
			return nil
		} else if err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is text after the list")
	}
	return nil
}

// FromGuest reads the list that the agent's guest-network-get-interfaces returns, also inside of
// the agent's {"return": …}. It is nil for null, and never nil for a list.
func FromGuest(text []byte) ([]GuestInterface, error) {
	if len(text) > maxGuestText {
		return nil, fmt.Errorf("guest interfaces have %d bytes, more than %d", len(text), maxGuestText)
	}
	text = bytes.TrimSpace(text)
	if len(text) > 0 && text[0] == '{' {
		var wrapped struct {
			Return json.RawMessage `json:"return"`
		}
		if err := json.Unmarshal(text, &wrapped); err != nil {
			return nil, fmt.Errorf("guest interfaces: %w", err)
		}
		if wrapped.Return == nil {
			return nil, errors.New("guest interfaces: an object without return")
		}
		text = wrapped.Return
	}
	if bytes.Equal(text, []byte("null")) {
		return nil, nil
	}
	guest := []GuestInterface{}
	err := eachJSON(text, func(dec *json.Decoder) error {
		if len(guest) == maxRecords {
			return fmt.Errorf("there are more than %d", maxRecords)
		}
		var r guestJSON
		if err := dec.Decode(&r); err != nil {
			return err
		}
		guest = append(guest, GuestInterface{Name: r.Name, MAC: r.MAC, IPs: r.IPs})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("guest interfaces: %w", err)
	}
	return guest, nil
}
