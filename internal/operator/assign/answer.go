// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Decision is what becomes of a node.
type Decision struct {
	Node   string
	Exists bool // as a node
	State  State
	// Config governs the node, or holds it frozen.
	Config string
	// Owner is the configuration that its node configuration was made by.
	Owner string
	// Selecting are all configurations that select it, those that go first in front.
	Selecting []Verdict
}

// Verdict is what becomes of a configuration.
type Verdict struct {
	Config string
	State  State
	// Err says what is wrong with it; a conflicting one can be wrong as well.
	Err error
	// With is the configuration that a conflicting one is in conflict with first.
	With string
}

// Summary is a Verdict with what a configuration's status tells.
type Summary struct {
	Verdict
	// Nodes are those that it governs, sorted.
	Nodes []string
	// Message says what a conflict is about: the other configuration, and the nodes that both select.
	Message string
}

// maxNamed bounds the nodes that a message names.
const maxNamed = 10

// Changed gives the nodes and configurations, sorted, about which the answers may have changed
// since the last call.
func (t *Table) Changed() (nodes, configs []string) {
	nodes = slices.Sorted(maps.Keys(t.dirtyNodes))
	configs = slices.Sorted(maps.Keys(t.dirtyConfigs))
	for _, name := range nodes {
		if n := t.nodes[name]; n != nil {
			n.dirty = false
		}
	}
	clear(t.dirtyNodes)
	clear(t.dirtyConfigs)
	for _, c := range t.order {
		c.dirty = false
	}
	return nodes, configs
}

// Node gives the decision about a node, which need not exist.
func (t *Table) Node(name string) Decision {
	d := Decision{Node: name, State: Unselected}
	n := t.nodes[name]
	if n == nil {
		return d
	}
	d.Exists, d.Owner = n.exists, n.owner
	selecting := t.selecting(n)
	if len(selecting) > 0 {
		d.Selecting = make([]Verdict, 0, len(selecting))
	}
	for _, c := range selecting {
		d.Selecting = append(d.Selecting, c.verdict())
		switch {
		case c.conflicting && n.owner == c.Name && d.State == Unselected, !c.conflicting && c.wrong != nil:
			d.State, d.Config = Frozen, c.Name
		case !c.conflicting:
			d.State, d.Config = Governed, c.Name
		}
	}
	return d
}

// selecting gives the configurations that select a node, in their order.
func (t *Table) selecting(n *node) []*config {
	in := slices.Clone(n.in)
	slices.SortFunc(in, earlier)
	return in
}

func (c *config) verdict() Verdict {
	v := Verdict{Config: c.Name, State: Governed, Err: c.wrong}
	switch {
	case c.conflicting:
		v.State, v.With = Conflicting, c.with.Name
	case c.wrong != nil:
		v.State = Wrong
	}
	return v
}

// Config gives the summary of a configuration, and whether there is one of that name.
func (t *Table) Config(name string) (Summary, bool) {
	c := t.configs[name]
	if c == nil {
		return Summary{}, false
	}
	s := Summary{Verdict: c.verdict()}
	switch s.State {
	case Governed:
		for n := range t.places.of(c.selected) {
			s.Nodes = append(s.Nodes, n.name)
		}
		slices.Sort(s.Nodes)
	case Conflicting:
		s.Message = t.conflict(c)
	case Unselected, Frozen, Wrong:
	}
	return s, true
}

// conflict says what the conflict is about.
func (t *Table) conflict(c *config) string {
	var first []string // the names that are told, sorted
	both := 0
	for n := range t.places.of(c.selected) {
		if !c.with.selected.has(n.place) {
			continue
		}
		both++
		if len(first) == maxNamed && n.name > first[maxNamed-1] {
			continue
		}
		at, _ := slices.BinarySearch(first, n.name)
		first = slices.Insert(first, at, n.name)
		first = first[:min(len(first), maxNamed)]
	}
	text := strings.Join(first, ", ")
	if more := both - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s goes first and governs nodes that this configuration selects too: %s", c.with.Name, text)
}
