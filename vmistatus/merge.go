// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"cmp"
	"fmt"
	"slices"
)

// Merge computes status.interfaces. It is pure; see the package's invariants.
func Merge(in Input) Result {
	if in.Domain == nil {
		return kept(in.Previous)
	}
	m := &merger{Input: in, primary: -1}
	m.tables[0] = precedence(in.Policy, false)
	m.tables[1] = precedence(in.Policy, true)
	m.index()
	m.seed()
	m.restore()
	m.matchGuest()
	m.addMultus()
	m.addGuestOnly()
	m.resolve()
	m.limitSize()
	return m.result
}

// merger is one merge under way.
type merger struct {
	Input
	tables   [2]table // without and with masquerade
	primary  int      // index of the primary network's interface in the spec; -1: there is none
	entries  []entry
	specs    names    // of the spec's interfaces
	before   names    // of the previous entries
	records  []record // the guest's
	recalled bool     // they are what the previous status has of it
	read     int      // of the pod interface caches

	pod      addresses
	guest    addresses
	chosen   []*address // of pod and guest
	over     int        // how many of those that would be chosen were left out
	texts    []string   // what the entries' addresses are cut from
	origins  []Origin
	rejected []Rejection
	result   Result
}

// entry is an entry before its values are chosen.
type entry struct {
	name       string
	nic        *NIC
	guest      group
	spec       int // index in the spec, -1 if it is not there
	before     int // index in the previous status, -1 if it is not there
	kind       Kind
	masquerade bool
	multus     bool
}

// kept is the status as it was, in memory of its own.
func kept(previous []Interface) Result {
	var r Result
	for i := range previous {
		e := previous[i]
		e.IPs = slices.Clone(e.IPs)
		r.Interfaces = append(r.Interfaces, e)
		x := Explanation{Kind: KeptEntry, Addresses: make([]Origin, len(e.IPs))}
		for f := range x.Fields {
			x.Fields[f] = Origin{FromBefore, NoDomain}
		}
		for i := range x.Addresses {
			x.Addresses[i] = Origin{FromBefore, NoDomain}
		}
		r.Explain = append(r.Explain, x)
	}
	return r
}

func (m *merger) warn(code Code, name, format string, args ...any) {
	const most = 512 // bytes: the reasons that parsers give quote what they read
	m.result.Warnings = append(m.result.Warnings, Warning{code, clip(name), bound(fmt.Sprintf(format, args...), most)})
}

// index finds the spec's interfaces and the previous entries by name.
func (m *merger) index() {
	m.specs.expect(len(m.Interfaces))
	for i := range m.Interfaces {
		if name := m.Interfaces[i].Name; m.specs.find(name) < 0 {
			m.specs.add(name, i)
		}
	}
	m.before.expect(len(m.Previous))
	for i := range m.Previous {
		name := m.Previous[i].Name
		if name == "" {
			continue
		}
		// Of several entries of one name always the same is taken, wherever it stands.
		if j := m.before.find(name); j < 0 {
			m.before.add(name, i)
		} else if compareInterfaces(&m.Previous[i], &m.Previous[j]) < 0 {
			m.before.replace(j, name, i)
		}
	}
	if n := LookupDefault(m.Networks); n != nil {
		m.primary = m.specs.find(n.Name)
	}
}

// names are indices by name. A few are looked for one by one, which costs less than a map, and
// stand in the merger itself.
type names struct {
	few   [few / 2]named
	count int
	next  int            // behind the one that was found last: most are asked for in the order that they stand in
	many  map[string]int // instead
}

type named struct {
	name string
	at   int
}

// expect makes room for so many names.
func (n *names) expect(count int) {
	if count > len(n.few) {
		n.many = make(map[string]int, count)
	}
}

// find is -1 for a name that is not there.
func (n *names) find(name string) int {
	for i := n.next; i < n.count; i++ {
		if n.few[i].name == name {
			n.next = i + 1
			return n.few[i].at
		}
	}
	for i := range n.few[:min(n.next, n.count)] {
		if n.few[i].name == name {
			n.next = i + 1
			return n.few[i].at
		}
	}
	if i, ok := n.many[name]; ok {
		return i
	}
	return -1
}

// add adds a name that is not there yet.
func (n *names) add(name string, at int) {
	if n.many != nil {
		n.many[name] = at
		return
	}
	n.few[n.count] = named{name, at}
	n.count++
}

// replace gives a name that is there another index.
func (n *names) replace(was int, name string, at int) {
	if n.many != nil {
		n.many[name] = at
		return
	}
	n.few[slices.Index(n.few[:n.count], named{name, was})].at = at
}

// entry makes one. What only the guest knows has no name.
func (m *merger) entry(kind Kind, name string) entry {
	e := entry{kind: kind, name: name, spec: -1, before: -1}
	if kind != GuestEntry {
		e.spec, e.before = m.specs.find(name), m.before.find(name)
	}
	e.masquerade = e.spec >= 0 && m.Interfaces[e.spec].Masquerade != nil
	return e
}

// rules say whom an entry's fields are asked of.
func (m *merger) rules(e *entry) *[NumFields]sources {
	if e.masquerade {
		return &m.tables[1][e.kind]
	}
	return &m.tables[0][e.kind]
}

// seed makes the entries that the domain has.
func (m *merger) seed() {
	d := m.Domain
	m.entries = make([]entry, 0, max(len(d.Interfaces)+len(d.HostDevices), len(m.Interfaces))+MaxGuestOnly+1)
	if d.Err != nil {
		m.warn(SourceUnreadable, "", "the domain cannot be read: %v; what the status has of it is kept", d.Err)
		for i := range m.Previous {
			p := &m.Previous[i]
			if p.Name != "" && m.before.find(p.Name) == i && ContainsInfoSource(p.InfoSource, SourceDomain) {
				m.entries = append(m.entries, m.entry(StaleEntry, p.Name))
			}
		}
	} else {
		for i := range d.Interfaces {
			if d.Interfaces[i].Name == "" {
				m.warn(DeviceSkipped, "", "an interface with the MAC %q has no alias", clip(d.Interfaces[i].MAC))
				continue
			}
			e := m.entry(NICEntry, d.Interfaces[i].Name)
			e.nic = &d.Interfaces[i]
			m.entries = append(m.entries, e)
		}
		for i := range d.HostDevices {
			m.entries = append(m.entries, m.entry(SRIOVEntry, d.HostDevices[i].Name))
		}
	}
	m.skipped()
	slices.SortFunc(m.entries, m.compareEntries)
	m.dropTwins()
}

// skipped tells what an adapter left out, in an order of its own.
func (m *merger) skipped() {
	slices.SortFunc(m.result.Warnings, compareWarnings)
	if len(m.Domain.Skipped) == 0 {
		return
	}
	texts := slices.Clone(m.Domain.Skipped)
	slices.Sort(texts)
	for _, text := range texts {
		m.warn(DeviceSkipped, "", "%s", text)
	}
}

// compareEntries orders what the domain has: the primary network, the interfaces in the order of
// the spec, SR-IOV devices in that order; what the spec does not have comes last.
func (m *merger) compareEntries(a, b entry) int {
	if first := m.isPrimary(&a); first != m.isPrimary(&b) {
		if first {
			return -1
		}
		return 1
	}
	if c := cmp.Compare(a.kind, b.kind); c != 0 {
		return c
	}
	if c := cmp.Compare(uint(a.spec), uint(b.spec)); c != 0 { // -1 is the largest
		return c
	}
	if c := natural(a.name, b.name); c != 0 || a.nic == nil {
		return c
	}
	return cmp.Or(cmp.Compare(a.nic.MAC, b.nic.MAC), cmp.Compare(a.nic.Queues, b.nic.Queues), cmp.Compare(a.nic.LinkState, b.nic.LinkState))
}

func (m *merger) isPrimary(e *entry) bool { return e.spec >= 0 && e.spec == m.primary }

// dropTwins keeps the first of several entries of one name, as a status may have it.
func (m *merger) dropTwins() {
	kept := 0
	for i := range m.entries {
		e := &m.entries[i]
		if e.spec < 0 {
			m.cutName(e)
		}
		if anyNamed(m.entries[:kept], e.name) {
			m.warn(DeviceSkipped, e.name, "%s stands in the domain twice", clip(e.name))
			continue
		}
		if kept < i {
			m.entries[kept] = *e
		}
		kept++
	}
	m.entries = m.entries[:kept]
}

func anyNamed(entries []entry, name string) bool {
	for i := range entries {
		if entries[i].name == name {
			return true
		}
	}
	return false
}

// cutName cuts a name that is not in the spec. The status may have the entry by either.
func (m *merger) cutName(e *entry) {
	name := e.name
	if e.name = m.cut(name, Name, name); e.name == name {
		return
	}
	if i := m.before.find(e.name); i >= 0 {
		e.before = i
	}
}

// restore puts the primary network back while the domain does not show it: the pod is still there.
func (m *merger) restore() {
	if m.primary < 0 || len(m.entries) > 0 && m.isPrimary(&m.entries[0]) {
		return
	}
	e := m.entry(RestoredEntry, m.Interfaces[m.primary].Name)
	if e.before >= 0 || m.carries(&e) {
		m.entries = slices.Insert(m.entries, 0, e)
	}
}

// carries says whether an entry's network has multus-status.
func (m *merger) carries(e *entry) bool {
	if m.Multus != nil && m.Multus.Err == nil {
		return slices.Contains(m.Multus.Names, e.name)
	}
	return e.before >= 0 && ContainsInfoSource(m.Previous[e.before].InfoSource, SourceMultusStatus)
}

// addMultus marks the entries that Multus reports and adds those that only it reports.
func (m *merger) addMultus() {
	if m.Multus != nil && m.Multus.Err != nil {
		m.warn(SourceUnreadable, "", "the pod's network-status cannot be read: %v; what the status has of it is kept", m.Multus.Err)
	}
	have := 0
	for i := range m.entries {
		m.entries[i].multus = m.carries(&m.entries[i])
		if m.entries[i].spec >= 0 {
			have++
		}
	}
	if have == len(m.Interfaces) {
		return
	}
	domain := m.entries
	for i := range m.Interfaces {
		name := m.Interfaces[i].Name
		if m.specs.find(name) != i || slices.ContainsFunc(domain, func(e entry) bool { return e.spec == i }) {
			continue
		}
		if e := m.entry(MultusEntry, name); m.carries(&e) {
			e.multus = true
			m.entries = append(m.entries, e)
		}
	}
}
