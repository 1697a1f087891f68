// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

// resolve chooses every value of every entry.
func (m *merger) resolve() {
	n := len(m.entries)
	m.result.Interfaces = make([]Interface, n)
	m.result.Explain = make([]Explanation, n)
	m.texts = make([]string, 0, 2*n)
	m.origins = make([]Origin, 0, 2*n)
	const usual = 4 // addresses of an interface; more grow a list of its own
	room := make([]address, 2*usual)
	m.pod.list, m.guest.list = room[:0:usual], room[usual:usual]
	m.chosen = make([]*address, 0, usual)
	for i := range m.entries {
		e, out, why := &m.entries[i], &m.result.Interfaces[i], &m.result.Explain[i]
		why.Kind = e.kind
		m.chooseAddresses(e, out, why)
		out.Name, why.Fields[Name] = m.text(e, Name)
		out.MAC, why.Fields[MAC] = m.text(e, MAC)
		out.PodInterfaceName, why.Fields[PodInterfaceName] = m.text(e, PodInterfaceName)
		out.InterfaceName, why.Fields[InterfaceName] = m.text(e, InterfaceName)
		out.LinkState, why.Fields[LinkState] = m.text(e, LinkState)
		out.QueueCount, why.Fields[QueueCount] = m.queues(e)
		named := len(e.guest) > 0 && (e.kind == GuestEntry || e.guest.name() != "")
		out.InfoSource = infoSource(e.kind <= StaleEntry, named, e.multus)
		if out.InfoSource != "" {
			why.Fields[InfoSource] = Origin{FromSources, MadeOfSources}
		}
		m.rejectNames(e, why)
	}
	m.unreadElsewhere()
}

// text asks the sources of a field one after the other.
func (m *merger) text(e *entry, f Field) (string, Origin) {
	for _, s := range m.rules(e)[f] {
		if s == NoSource {
			break
		}
		v := m.ask(s, f, e)
		if v == "" {
			continue
		}
		if f != Name { // which was cut before
			v = m.cut(e.name, f, v)
		}
		return v, Origin{s, ruleOf(e.kind, s, f)}
	}
	return "", Origin{}
}

// cut is as much of a value as a status may have.
func (m *merger) cut(name string, f Field, v string) string {
	short := clip(v)
	if short != v {
		m.warn(NameLimit, name, "%s %s… of %d bytes was cut", f, short[:min(len(short), 16)], len(v))
	}
	return short
}

// ruleOf is why the first source of the table was used.
func ruleOf(kind Kind, s Source, f Field) Rule {
	if s == FromBefore && f != PodInterfaceName && (kind == StaleEntry || kind == RestoredEntry) {
		return KeptStale
	}
	return FirstSource
}

// ask is the text that a source has for a field.
func (m *merger) ask(s Source, f Field, e *entry) string {
	if f == Name {
		return e.name
	}
	switch s {
	case FromDomain:
		return e.nic.text(f)
	case FromSpec:
		if f == MAC && e.spec >= 0 {
			return m.Interfaces[e.spec].MacAddress
		}
	case FromAgent:
		return e.guest.text(f)
	case FromBefore:
		if e.before >= 0 {
			return textOf(&m.Previous[e.before], f)
		}
	default: // the pod and Multus have no texts
	}
	return ""
}

// text is what the domain has for a field; a device that is no NIC has nothing.
func (n *NIC) text(f Field) string {
	switch {
	case n == nil:
	case f == MAC:
		return n.MAC
	case f == LinkState:
		return n.LinkState
	}
	return ""
}

// text is what the guest has for a field.
func (g group) text(f Field) string {
	switch {
	case len(g) == 0:
	case f == MAC:
		return g.mac()
	case f == InterfaceName:
		return g.name()
	}
	return ""
}

// textOf is what a status has for a field.
func textOf(e *Interface, f Field) string {
	switch f {
	case MAC:
		return e.MAC
	case PodInterfaceName:
		return e.PodInterfaceName
	case LinkState:
		return e.LinkState
	default:
		return ""
	}
}

func (m *merger) queues(e *entry) (int32, Origin) {
	for _, s := range m.rules(e)[QueueCount] {
		n := int32(0)
		switch {
		case s == FromDomain:
			n = e.nic.Queues
		case s == FromBefore && e.before >= 0:
			n = m.Previous[e.before].QueueCount
		}
		if n > 0 {
			return n, Origin{s, ruleOf(e.kind, s, QueueCount)}
		}
	}
	return 0, Origin{}
}
