// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

// identity says which attachment of a pod is meant; equal ones are told apart by their order.
type identity struct {
	network, asked string
	selected       bool
}

// match finds for each slot what a running pod has of it. The networks of the annotation are
// known by what it says, since this runs before all of them have been read.
func (p *planner) match() {
	if len(p.in.Attached) == 0 || len(p.slots) == 0 {
		return
	}
	have := map[identity][]*Attached{}
	for i := range p.in.Attached[1:] {
		a := &p.in.Attached[1+i]
		id := identity{a.Network, a.Asked, a.Selected}
		have[id] = append(have[id], a)
	}
	for i := range p.slots[1:] {
		s := &p.slots[1+i]
		id := identity{s.Network, s.Asked, s.Selected}
		if s.Selected {
			id.network = s.request.Namespace + "/" + s.request.Name
		}
		if all := have[id]; len(all) > 0 {
			s.attached, have[id] = all[0], all[1:]
		}
	}
}

// held are the interfaces that the attachments keep of which the slots know nothing: those of
// the configuration's own networks, which a change of the pod's leaves alone.
func (p *planner) held(taken map[string]string) {
	matched := map[*Attached]bool{}
	for i := range p.slots {
		matched[p.slots[i].attached] = true
	}
	for i := range p.in.Attached {
		if a := &p.in.Attached[i]; i > 0 && !a.Selected && !matched[a] {
			taken[a.IfName] = "the attachment of " + a.Network
		}
	}
}
