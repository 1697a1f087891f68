// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import "slices"

// chooseAddresses decides which addresses of the pod and of the guest an entry has.
func (m *merger) chooseAddresses(e *entry, out *Interface, why *Explanation) {
	m.pod.reset()
	m.guest.reset()
	m.chosen = m.chosen[:0]
	m.over = 0
	m.rejected = nil
	first := len(m.origins)
	asked := m.rules(e)[Addresses]
	known := true
	if slices.Contains(asked[:], FromPod) {
		known = m.readPod(e)
	}
	if len(e.guest) > 0 {
		m.readGuest(e)
	}
	switch {
	case len(e.guest) == 0:
		m.take(&m.pod, PodAlone)
	case e.kind == GuestEntry && e == &m.entries[0] && m.Policy == PodAuthoritative:
		// The first entry's address is the one that others dial.
		m.rejectAll(&m.guest, true, GuestNotAsked)
		m.rejectAll(&m.guest, false, GuestNotAsked)
	case e.kind == GuestEntry:
		m.takeFamily(&m.guest, true, FirstSource)
		m.takeFamily(&m.guest, false, FirstSource)
	case m.Policy == PodAuthoritative:
		m.podFirst(known && slices.Contains(asked[:], FromAgent))
	default:
		m.byFamily(true)
		m.byFamily(false)
	}
	m.lintAddresses(e)
	m.limitAddresses(e)
	start := len(m.texts)
	for i := range m.chosen {
		m.texts = append(m.texts, m.chosen[i].text())
	}
	if len(m.texts) > start {
		// Cut so that appending to one entry's addresses cannot write another's.
		out.IPs = m.texts[start:len(m.texts):len(m.texts)]
		out.IP = out.IPs[0]
		why.Addresses = m.origins[first:len(m.origins):len(m.origins)]
		why.Fields[Addresses] = why.Addresses[0]
	} else if len(m.pod.list) > 0 {
		why.Fields[Addresses] = Origin{FromAgent, GuestClears}
	} else if len(m.guest.list) > 0 {
		why.Fields[Addresses] = Origin{FromPod, GuestNotAsked}
	}
	why.Rejected = m.rejected
}

// readPod gathers what the pod has; it is false when that is not known.
func (m *merger) readPod(e *entry) bool {
	if e.spec < 0 {
		return true
	}
	read, there := m.PodCache[e.name]
	if there {
		m.read++
	}
	if read.Err == nil {
		m.addPod(read.PodIP, read.PodIPs, address{source: FromPod})
		return true
	}
	m.warn(SourceUnreadable, e.name, "the pod interface cache of %s cannot be read: %v; addresses of the status are kept", e.name, read.Err)
	if e.before >= 0 {
		p := &m.Previous[e.before]
		m.addPod(p.IP, p.IPs, address{source: FromBefore, stale: true})
	}
	return len(m.pod.list) > 0
}

// unreadElsewhere warns of unreadable files of interfaces that the domain does not have.
func (m *merger) unreadElsewhere() {
	if len(m.PodCache) == m.read {
		return
	}
	for i := range m.Interfaces {
		name := m.Interfaces[i].Name
		err := m.PodCache[name].Err
		if err == nil || m.specs.find(name) != i || slices.ContainsFunc(m.entries, func(e entry) bool { return e.spec == i && e.kind != MultusEntry }) {
			continue
		}
		m.warn(SourceUnreadable, name, "the pod interface cache of %s cannot be read: %v", name, err)
	}
}

func (m *merger) addPod(preferred string, all []string, from address) {
	for i := -1; i < len(all); i++ {
		s := preferred
		if i >= 0 {
			s = all[i]
		}
		if s == "" || i >= 0 && s == preferred {
			continue
		}
		ip, ok := parseIP(s)
		if !ok {
			m.reject(s, Origin{from.source, NotAnAddress})
			continue
		}
		m.pod.add(ip, s, from)
	}
}

// readGuest gathers what the guest has, the naming record's addresses first.
func (m *merger) readGuest(e *entry) {
	for i := range e.guest {
		for _, s := range e.guest[i].IPs {
			ip, ok := m.pod.known(s)
			if !ok {
				ip, ok = parseIP(s)
			}
			switch {
			case !ok:
				m.reject(s, Origin{FromAgent, NotAnAddress})
			case e.masquerade && ip.IsLinkLocalUnicast():
				m.reject(s, Origin{FromAgent, LinkLocalDropped})
			default:
				m.guest.add(ip, s, address{source: FromAgent})
			}
		}
	}
}

func (m *merger) reject(value string, why Origin) {
	if m.Explain && len(m.rejected) < MaxAddresses {
		m.rejected = append(m.rejected, Rejection{Addresses, clip(value), why})
	}
}

func (m *merger) rejectAll(a *addresses, v4 bool, rule Rule) {
	if !m.Explain {
		return
	}
	for i := range a.list {
		if a.list[i].ip.Is4() == v4 {
			m.reject(a.list[i].text(), Origin{a.list[i].source, rule})
		}
	}
}

// rejectNames tells the names of the records that came after the one that names the entry.
func (m *merger) rejectNames(e *entry, why *Explanation) {
	if !m.Explain || len(e.guest) == 0 {
		return
	}
	for i := range e.guest {
		r := &e.guest[i]
		if r.base() != e.guest.name() && len(why.Rejected) < 2*MaxAddresses {
			why.Rejected = append(why.Rejected, Rejection{InterfaceName, clip(r.base()), Origin{FromAgent, LaterRecord}})
		}
	}
}

// take uses all addresses in their own order.
func (m *merger) take(a *addresses, rule Rule) {
	for i := range a.list {
		m.choose(&a.list[i], rule)
	}
	m.leaveOut(a, true)
	m.leaveOut(a, false)
}

func (m *merger) takeFamily(a *addresses, v4 bool, rule Rule) {
	for i := range a.list {
		if a.list[i].ip.Is4() == v4 {
			m.choose(&a.list[i], rule)
		}
	}
	m.leaveOut(a, v4)
}

// leaveOut notes what there was no room for of a family that is used.
func (m *merger) leaveOut(a *addresses, v4 bool) {
	n := a.over6
	if v4 {
		n = a.over4
	}
	if n == 0 {
		return
	}
	m.over += n
	for i := range a.over {
		if a.over[i].ip.Is4() == v4 {
			m.rejectOver(&a.over[i])
		}
	}
}

func (m *merger) rejectOver(a *address) {
	if m.Explain {
		m.reject(a.text(), Origin{a.source, OverLimit})
	}
}

func (m *merger) choose(a *address, rule Rule) {
	if a.stale {
		rule = KeptStale
	}
	m.chosen = append(m.chosen, a)
	m.origins = append(m.origins, Origin{a.source, rule})
}

// byFamily is the rule of family-merge.
func (m *merger) byFamily(v4 bool) {
	pod, guest := m.pod.count(v4), m.guest.count(v4)
	switch {
	case pod > 0 && guest > 0:
		m.takeFamily(&m.pod, v4, PodWins)
		m.rejectAll(&m.guest, v4, PodWins)
	case pod > 0:
		m.rejectAll(&m.pod, v4, GuestClears)
	default:
		m.takeFamily(&m.guest, v4, GuestFills)
	}
}

// podFirst is the rule of pod-authoritative; ask says whether the guest may give addresses at all.
func (m *merger) podFirst(ask bool) {
	rule := GuestNotAsked
	switch {
	case len(m.pod.list) > 0:
		m.take(&m.pod, PodIsAuthority)
		rule = PodIsAuthority
	case ask:
		m.takeFamily(&m.guest, true, GuestAlone)
		m.takeFamily(&m.guest, false, GuestAlone)
		return
	}
	m.rejectAll(&m.guest, true, rule)
	m.rejectAll(&m.guest, false, rule)
}

// limitAddresses keeps as many addresses as an entry may have, some of each family.
func (m *merger) limitAddresses(e *entry) {
	if n := len(m.chosen); n > MaxAddresses {
		m.over += n - MaxAddresses
		v4 := 0
		for i := range m.chosen {
			if m.chosen[i].ip.Is4() {
				v4++
			}
		}
		room4 := min(v4, max(MaxAddresses-(n-v4), MaxAddresses/2))
		room6 := MaxAddresses - room4
		k, base := 0, len(m.origins)-n
		for i := range m.chosen {
			room := &room6
			if m.chosen[i].ip.Is4() {
				room = &room4
			}
			if *room == 0 {
				m.rejectOver(m.chosen[i])
				continue
			}
			*room--
			m.chosen[k], m.origins[base+k] = m.chosen[i], m.origins[base+i]
			k++
		}
		m.chosen, m.origins = m.chosen[:k], m.origins[:base+k]
	}
	if m.over > 0 {
		m.warn(AddressLimit, e.name, "%s has more than %d addresses: %d were left out", m.label(e), MaxAddresses, m.over)
	}
}
