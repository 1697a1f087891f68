// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	// Dropped is when what the guest reported counts no more, since its agent is away; zero: it is not.
	Dropped time.Time
	// Err is why libvirt cannot be asked now. Domain is then what was known before, marked as old.
	Err error

	asking bool // the agent is still to be asked: what is known of the guest is of before
}

// Read asks once for a machine. Of before, what is not read well this time is kept, and marked.
// An error is libvirt's; what is wrong with the XML or the agent is in the snapshot.
func (c *Conn) Read(ctx context.Context, d Domain, before Snapshot, now time.Time) (Snapshot, error) {
	s, err := c.readDomain(ctx, d, before, now)
	if err != nil || !s.asking {
		return s, err
	}
	ctx, cancel := agentLimited(ctx, usualAgent)
	defer cancel()
	_ = c.readGuest(ctx, d, &s) // that the connection ended by it is in the snapshot
	return s, nil
}

const (
	channelConnected    = "connected"
	channelDisconnected = "disconnected"
)

// readDomain asks libvirt, without asking the agent: who does not answer hides nothing of this.
func (c *Conn) readDomain(ctx context.Context, d Domain, before Snapshot, now time.Time) (Snapshot, error) {
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
	switch {
	case s.State == Paused:
		s.Domain.Agent = vmistatus.AgentSilent
	case s.State != Running || s.Domain.Channel == channelDisconnected:
		s.Domain.Agent = vmistatus.AgentDisconnected // the caller knows since when
	case s.Domain.Channel == channelConnected || s.Domain.Err != nil:
		s.asking, s.Domain.Agent = true, vmistatus.AgentSilent
		if before.Domain != nil && before.Domain.Agent != vmistatus.AgentUnknown {
			s.Domain.Agent, s.Domain.GuestErr = before.Domain.Agent, before.Domain.GuestErr
		}
	} // else there is no agent
	return s, nil
}

// readGuest asks the agent. An error says that the connection ended by that.
func (c *Conn) readGuest(ctx context.Context, d Domain, s *Snapshot) error {
	guest, err := c.Guest(ctx, d)
	domain := *s.Domain // of which others have been told
	domain.GuestErr = err
	s.Domain, s.asking = &domain, false
	if err != nil {
		domain.Agent = vmistatus.AgentSilent
		return c.guard.fault()
	}
	domain.Guest, domain.Agent, s.GuestAt = guest, vmistatus.AgentConnected, s.At
	return nil
}

// agentLimited bounds a question to an agent: libvirt itself waits for its answer for ever, unless it
// was told otherwise.
func agentLimited(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest agent does not answer within %s", limit))
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

// agentAway says that the agent says nothing, or nothing that can be used, and not because the
// machine rests.
func (s Snapshot) agentAway() bool {
	return s.Domain != nil && s.State != Paused &&
		(s.Err != nil || s.Domain.Agent == vmistatus.AgentDisconnected || s.State == Off || s.Domain.GuestErr != nil)
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

// hasAddress says that the guest reported an address that others can reach, on an interface that the
// domain has: a guest has bridges of its own as well.
func (s Snapshot) hasAddress() bool {
	if s.Domain == nil {
		return false
	}
	for _, g := range s.Domain.Guest {
		own := func(n vmistatus.NIC) bool { return vmistatus.SameMAC(n.MAC, g.MAC) }
		if len(s.Domain.HostDevices) == 0 && !slices.ContainsFunc(s.Domain.Interfaces, own) {
			continue // of a device the domain tells no MAC
		}
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
