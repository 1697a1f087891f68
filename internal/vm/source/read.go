// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/weftnet/weft/vmistatus"
)

// Snapshot is what is known of a machine at one time. Nobody changes it or what it points at.
type Snapshot struct {
	// Domain with what its guest reported; nil: nothing was ever read.
	Domain *vmistatus.Domain
	State  State
	// At is when libvirt last answered for the machine; GuestAt when its agent last did.
	At, GuestAt time.Time
	// Err is why libvirt cannot be asked now. Domain is then what was known before, marked as old.
	Err error
}

// Read asks once for a machine. Of before, what is not read well this time is kept, and marked.
// An error is libvirt's; what is wrong with the XML or the agent is in the snapshot.
func (c *Conn) Read(ctx context.Context, d Domain, before Snapshot, now time.Time) (Snapshot, error) {
	s := Snapshot{At: now, GuestAt: before.GuestAt}
	var err error
	if s.State, err = c.State(ctx, d); err != nil {
		return before, err
	}
	text, err := c.XML(ctx, d)
	if err != nil {
		return before, err
	}
	s.Domain = vmistatus.FromXML(text)
	if before.Domain != nil {
		s.Domain.Guest = before.Domain.Guest
	}
	return s, c.readGuest(ctx, d, &s)
}

const (
	channelConnected    = "connected"
	channelDisconnected = "disconnected"
)

func (c *Conn) readGuest(ctx context.Context, d Domain, s *Snapshot) error {
	switch {
	case s.State == Paused:
		s.Domain.Agent = vmistatus.AgentSilent
		return nil
	case s.State != Running || s.Domain.Channel == channelDisconnected:
		s.Domain.Agent = vmistatus.AgentDisconnected // the caller knows since when
		return nil
	case s.Domain.Channel != channelConnected && s.Domain.Err == nil:
		return nil // there is no agent
	}
	guest, err := c.Guest(ctx, d)
	switch {
	case err == nil:
		s.Domain.Guest, s.Domain.Agent, s.GuestAt = guest, vmistatus.AgentConnected, s.At
	case c.guard.fault() != nil:
		return err // libvirt does not answer any more
	default:
		s.Domain.GuestErr, s.Domain.Agent = err, vmistatus.AgentSilent
	}
	return nil
}

// aged is the snapshot as it is once libvirt cannot be asked.
func (s Snapshot) aged(err error) Snapshot {
	s.Err = err
	if s.Domain == nil {
		return s
	}
	d := *s.Domain
	d.Err, d.Agent = err, vmistatus.AgentSilent
	s.Domain = &d
	return s
}

// agentAway says that the agent can say nothing, and not because the machine rests.
func (s Snapshot) agentAway() bool {
	return s.Domain != nil && s.State != Paused && (s.Err != nil || s.Domain.Agent == vmistatus.AgentDisconnected || s.State == Off)
}

// agentless is the snapshot without the agent: believed still, or not any more.
func (s Snapshot) agentless(gone bool) Snapshot {
	if s.Domain == nil {
		return s
	}
	d := *s.Domain
	d.Agent = vmistatus.AgentSilent
	if gone {
		d.Agent = vmistatus.AgentDisconnected
	}
	s.Domain = &d
	return s
}

// hasAddress says that the guest reported an address that others can reach.
func (s Snapshot) hasAddress() bool {
	if s.Domain == nil {
		return false
	}
	for _, g := range s.Domain.Guest {
		for _, text := range g.IPs {
			if ip, err := netip.ParseAddr(text); err == nil && ip.IsGlobalUnicast() {
				return true
			}
		}
	}
	return false
}

// ErrNoDomain says that libvirt runs no machine of that name (yet).
var ErrNoDomain = errors.New("libvirt runs no such machine") //nolint:gochecknoglobals // a sentinel

// Find finds a running machine by its name.
func (c *Conn) Find(ctx context.Context, name string) (Domain, error) {
	all, err := c.Domains(ctx)
	if err != nil {
		return Domain{}, err
	}
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
	}
	return Domain{}, fmt.Errorf("%w: %s", ErrNoDomain, name)
}
