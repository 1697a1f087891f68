// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"cmp"
	"slices"
)

// matchGuest finds each entry's group of guest records by its MAC.
func (m *merger) matchGuest() {
	m.records = prepare(m.believed())
	macs := make([]hwaddr, 0, few)
	for i := range m.entries {
		macs = append(macs, m.macOf(&m.entries[i]))
	}
	// What the domain has comes before what is only remembered of it.
	for _, restored := range []bool{false, true} {
		for i := range m.entries {
			e := &m.entries[i]
			if (e.kind == RestoredEntry) != restored {
				continue
			}
			g := find(m.records, macs[i])
			switch {
			case len(g) == 0:
				if len(m.records) > 0 && !macs[i].nothing() {
					m.warn(UnmatchedNIC, e.name, "the guest agent reports no interface with the MAC of %s", m.label(e))
				}
			case !g[0].taken:
				g[0].taken = true
				e.guest = g
			}
		}
	}
	m.lintMACs(macs)
}

// macOf is the MAC that an entry will have.
func (m *merger) macOf(e *entry) hwaddr {
	for _, s := range m.rules(e)[MAC] {
		if v := m.ask(s, MAC, e); v != "" {
			return parseMAC(v)
		}
	}
	return hwaddr{}
}

// believed are the guest's records that count.
func (m *merger) believed() []GuestInterface {
	d := m.Domain
	guest := d.Guest
	if d.GuestErr != nil && d.Agent != AgentDisconnected {
		m.warn(SourceUnreadable, "", "the guest agent's answer cannot be used: %v; its last good one is kept", d.GuestErr)
	}
	// Who has begun to look, or looks from another node, does not know yet what the guest said.
	if guest == nil && d.Agent != AgentDisconnected && (d.GuestErr != nil || d.Agent == AgentSilent) {
		guest, m.recalled = m.remembered(), true
	}
	switch {
	case d.Agent == AgentDisconnected:
		if len(guest) > 0 {
			m.warn(StaleAgent, "", "the guest agent is away: what it reported was dropped")
		}
		return nil
	case d.Agent == AgentSilent && len(guest) > 0:
		m.warn(StaleAgent, "", "the guest agent does not answer: what it reported may be old")
	case d.Channel == "disconnected" && len(guest) > 0:
		m.warn(StaleAgent, "", "the guest agent's channel is disconnected: what it reported may be old")
	}
	return guest
}

// remembered is what the previous status has of the guest. A record without a name leaves no
// mark in a status, so that it would be another one at the next merge.
func (m *merger) remembered() []GuestInterface {
	var guest []GuestInterface
	for i := range m.Previous {
		if p := &m.Previous[i]; p.InterfaceName != "" && ContainsInfoSource(p.InfoSource, SourceGuestAgent) {
			guest = append(guest, GuestInterface{Name: p.InterfaceName, MAC: p.MAC, IPs: p.IPs})
		}
	}
	return guest
}

// lintMACs warns of interfaces of the domain that the guest's records cannot tell apart.
func (m *merger) lintMACs(macs []hwaddr) {
	for i := range macs {
		if macs[i].nothing() {
			continue
		}
		if j := slices.Index(macs[:i], macs[i]); j >= 0 {
			m.warn(SharedMAC, m.entries[i].name, "%s has the MAC of %s: the guest's records of it go to the first", m.label(&m.entries[i]), m.label(&m.entries[j]))
		}
	}
}

// lintAddresses warns where the guest contradicts the pod.
func (m *merger) lintAddresses(e *entry) {
	if len(e.guest) == 0 || len(m.pod.list) == 0 {
		return
	}
	if len(m.guest.list) == 0 && !e.masquerade {
		then := "the pod's are not shown"
		if m.Policy == PodAuthoritative {
			then = "the pod's are shown"
		}
		m.warn(NoGuestAddress, e.name, "the guest has no address on %s: %s", m.label(e), then)
	}
	if e.masquerade {
		return // the guest's address is never the pod's there
	}
	for _, v4 := range []bool{true, false} {
		if m.guest.disjoint(&m.pod, v4) {
			m.warn(AddressConflict, e.name, "the guest has %s on %s, the pod has %s", m.guest.text(v4), m.label(e), m.pod.text(v4))
		}
	}
}

// addGuestOnly adds the most useful of what only the guest knows.
func (m *merger) addGuestOnly() {
	rest := make([]group, 0, few)
	for g := range groups(m.records) {
		if !g[0].taken {
			g[0].global = g.global()
			rest = append(rest, g)
		}
	}
	slices.SortFunc(rest, compareUse)
	if over := len(rest) - MaxGuestOnly; over > 0 {
		m.warn(GuestOnlyLimit, "", "the guest reports %d more interfaces than the %d that are listed", over, MaxGuestOnly)
		rest = rest[:MaxGuestOnly]
	}
	if m.recalled && len(m.entries) == 0 && m.Policy == PodAuthoritative {
		// The first entry has no address, so it is the one that was written without.
		if i := slices.IndexFunc(rest, group.bare); i > 0 {
			first := rest[i]
			copy(rest[1:], rest[:i])
			rest[0] = first
		}
	}
	for _, g := range rest {
		e := m.entry(GuestEntry, "")
		e.guest = g
		m.entries = append(m.entries, e)
	}
}

// label is what a warning calls an entry.
func (m *merger) label(e *entry) string {
	if e.name == "" && len(e.guest) > 0 {
		return cmp.Or(clip(e.guest.name()), clip(e.guest.mac()), "an interface without a name")
	}
	return clip(e.name)
}
