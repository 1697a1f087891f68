// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

const (
	kind       = "dummy" // what the kernel calls such links
	markPrefix = "weft-"
	markSuffix = "-dummy"
	mtu        = 1500 // the kernel's for a new one
)

// saved is Inspect's answer: by what the claim's link will be known.
type saved struct {
	Mark string           `json:"mark,omitempty"`
	MAC  net.HardwareAddr `json:"mac,omitempty"`
}

// newSaved chooses a mark and a MAC address: locally administered, unicast.
func newSaved() saved {
	b := make([]byte, 10)
	_, _ = rand.Read(b) // never fails
	b[0] = b[0]&^1 | 2
	return saved{MAC: b[:6], Mark: markPrefix + hex.EncodeToString(b[6:])}
}

func parseSaved(data device.Saved) (saved, error) {
	var s saved
	if len(data) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return saved{}, fmt.Errorf("read the saved state of a dummy link: %w", err)
	}
	return s, nil
}

// altName is the mark that the link keeps; it differs from the name that the link is made under, or
// it could not be given before that is given up.
func (s saved) altName() string { return s.Mark + markSuffix }

// isMark knows the mark of any claim's link.
func isMark(name string) bool {
	return strings.HasPrefix(name, markPrefix) && strings.HasSuffix(name, markSuffix)
}

// is says whether a link is the claim's. Without Inspect's answer, as of a claim that another driver
// prepared, it must have the name and the MAC address that the claim's status tells.
func (s saved) is(d Device, link kernel.Link) bool {
	switch {
	case link.Kind != kind:
		return false
	case s.Mark == "":
		return link.Name == d.IfName && d.HWAddr != "" && strings.EqualFold(link.MAC.String(), d.HWAddr)
	}
	return link.Name == s.Mark || slices.Contains(link.AltNames, s.altName()) ||
		len(s.MAC) != 0 && slices.Equal(link.MAC, s.MAC)
}

func (s saved) find(d Device, links []kernel.Link) (kernel.Link, error) {
	for _, link := range links {
		if s.is(d, link) {
			return link, nil
		}
	}
	return kernel.Link{}, fmt.Errorf("find the link of %s: %w", d.IfName, kernel.ErrNoLink)
}

// home is what the link is to be on the host.
func (s saved) home(d Device) kernel.LinkState {
	if s.Mark == "" {
		mac, err := net.ParseMAC(d.HWAddr)
		if err != nil {
			mac = nil // unknown: any will do
		}
		return kernel.LinkState{Name: d.IfName, MAC: mac, MTU: cmp.Or(d.MTU, mtu)}
	}
	return kernel.LinkState{Name: d.IfName, AltNames: []string{s.altName()}, MAC: s.MAC, MTU: mtu}
}

// foreign is the link that has a name, unless it is the claim's.
func (s saved) foreign(d Device, links []kernel.Link) error {
	for _, link := range links {
		if s.is(d, link) {
			continue
		}
		if link.Name == d.IfName || slices.Contains(link.AltNames, d.IfName) {
			return fmt.Errorf("make dummy link %s: the host has a link of that name (%s, kind %s, index %d) that is not this claim's",
				d.IfName, link.Name, link.Kind, link.Index)
		}
	}
	return nil
}

// Inspect chooses the mark of the link, and refuses a name that a link of the host has.
func (m *Manager) Inspect(dev device.Device, _ v2alpha1.DeviceConfig) (device.Saved, error) {
	d, _, err := read(dev, nil)
	if err != nil {
		return nil, err
	}
	links, err := m.conf.Kernel.Links(kernel.Namespace{})
	if err != nil {
		return nil, err
	}
	s := newSaved()
	if err := s.foreign(d, links); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

// Setup makes the link, or completes one that was begun.
func (m *Manager) Setup(
	_ context.Context, dev device.Device, _ v2alpha1.DeviceConfig, data device.Saved,
) (device.Device, error) {
	d, s, err := read(dev, data)
	if err != nil {
		return nil, err
	}
	host := kernel.Namespace{}
	links, err := m.conf.Kernel.Links(host)
	if err != nil {
		return nil, err
	}
	if err := s.foreign(d, links); err != nil {
		return nil, err
	}
	link, err := s.find(d, links)
	if errors.Is(err, kernel.ErrNoLink) {
		if link, err = m.add(s, d); err != nil {
			return nil, err
		}
	}
	if link, err = m.complete(s, d, link); err != nil {
		return nil, err
	}
	return Device{IfName: d.IfName, HWAddr: link.MAC.String(), MTU: link.MTU, Flags: flags(link)}, nil
}

// add makes the link under its mark. Without Inspect's answer there is none, nor a way to find the
// link again but the MAC address that the claim's status will tell.
func (m *Manager) add(s saved, d Device) (kernel.Link, error) {
	link, err := m.conf.Kernel.AddDummy(kernel.Namespace{}, cmp.Or(s.Mark, d.IfName))
	if err != nil {
		return kernel.Link{}, fmt.Errorf("make dummy link %s: %w", d.IfName, err)
	}
	return link, nil
}

// complete gives the link MAC address and mark; the name comes last, so that nobody ever sees a link
// of that name without the mark.
func (m *Manager) complete(s saved, d Device, link kernel.Link) (kernel.Link, error) {
	host := kernel.Namespace{}
	want := s.home(d)
	want.Up = link.Up
	if len(want.MAC) == 0 {
		want.MAC = link.MAC
	}
	if made := link.Name; made == s.Mark {
		want.Name = made
	}
	done, err := m.conf.Kernel.Restore(host, link.Index, want)
	if err == nil && want.Name != d.IfName {
		err = m.conf.Kernel.Rename(host, link.Index, d.IfName)
		done.Name = d.IfName
	}
	if err != nil {
		return kernel.Link{}, errors.Join(fmt.Errorf("complete dummy link %s: %w", d.IfName, err),
			m.conf.Kernel.Remove(host, link.Index))
	}
	return done, nil
}

// Free removes the claim's link from the host, and no other.
func (m *Manager) Free(
	_ context.Context, dev device.Device, _ v2alpha1.DeviceConfig, data device.Saved,
) error {
	d, s, err := read(dev, data)
	if err != nil {
		return err
	}
	defer m.Rescan()
	host := kernel.Namespace{}
	links, err := m.conf.Kernel.Links(host)
	if err != nil {
		return err
	}
	link, err := s.find(d, links)
	if errors.Is(err, kernel.ErrNoLink) {
		return nil // never made, or gone with its sandbox or a reboot
	}
	err = m.conf.Kernel.Remove(host, link.Index)
	if err != nil && !errors.Is(err, kernel.ErrNoLink) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove dummy link %s: %w", d.IfName, err)
	}
	return nil
}

// flags writes a link's flags as Go's net package does; every dummy link can broadcast.
func flags(link kernel.Link) string {
	all := net.FlagBroadcast
	if link.Up {
		all |= net.FlagUp
	}
	if link.Running {
		all |= net.FlagRunning
	}
	return all.String()
}
