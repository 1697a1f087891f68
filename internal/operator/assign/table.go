// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Config is what matters of a cluster configuration.
type Config struct {
	Name     string
	Created  time.Time
	Selector *metav1.LabelSelector // nil and empty select every node
	// Invalid says what is wrong with the spec; nil when nothing is.
	Invalid error
}

// State is what became of a node or a configuration. The zero value is invalid.
type State int

// The states.
const (
	// Unselected: of a node that no configuration governs, or holds frozen.
	Unselected State = iota + 1
	// Governed: of a node, by a configuration whose spec it gets; of a configuration that may.
	Governed
	// Frozen: of a node whose configuration stays as it is, since its own is conflicting or wrong.
	Frozen
	// Conflicting: of a configuration that selects a node which an earlier one governs.
	Conflicting
	// Wrong: of a configuration whose selector or spec is invalid.
	Wrong
)

func (s State) String() string {
	switch s {
	case Unselected:
		return "unselected"
	case Governed:
		return "governed"
	case Frozen:
		return "frozen"
	case Conflicting:
		return "conflicting"
	case Wrong:
		return "wrong"
	}
	return fmt.Sprintf("state %d", int(s))
}

// Table holds what was said about nodes and configurations.
type Table struct {
	nodes   map[string]*node
	places  places
	configs map[string]*config
	order   []*config // by priority
	ids     int       // those given so far
	free    []int     // those that are free again

	dirtyNodes, dirtyConfigs map[string]struct{}
}

type node struct {
	name   string
	place  int
	exists bool // as a node: otherwise only its configuration is there
	labels labels.Set
	owner  string    // the configuration that its node configuration was made by
	in     []*config // those that select it
	dirty  bool
}

type config struct {
	Config
	selector    labels.Selector // nil: cannot be read
	wrong       error
	selected    set
	id          int
	overlap     []int // how many nodes another one, by its id, selects as well
	dirty       bool
	conflicting bool
	with        *config // the first that it is in conflict with
}

// New gives an empty table.
func New() *Table {
	return &Table{
		nodes: map[string]*node{}, configs: map[string]*config{},
		dirtyNodes: map[string]struct{}{}, dirtyConfigs: map[string]struct{}{},
	}
}

func (t *Table) node(name string) *node {
	n := t.nodes[name]
	if n == nil {
		n = &node{name: name}
		t.places.add(n)
		t.nodes[name] = n
	}
	return n
}

// SetNode says that there is a node with these labels, which the table keeps and does not change.
func (t *Table) SetNode(name string, set map[string]string) {
	n := t.node(name)
	n.exists, n.labels = true, set
	t.touchNode(n)
	t.reselect(n)
}

// DeleteNode says that there is no such node.
func (t *Table) DeleteNode(name string) {
	if n := t.nodes[name]; n != nil {
		n.exists, n.labels = false, nil
		t.touchNode(n)
		t.reselect(n)
		t.drop(n)
	}
}

// SetOwner says which configuration the node configuration of that name was made by; "" when
// there is none, or it was written by hand.
func (t *Table) SetOwner(name, owner string) {
	n := t.node(name)
	t.touchNode(n)
	if n.owner != owner {
		n.owner = owner
		t.reselect(n)
	}
	t.drop(n)
}

// drop forgets a node of which nothing is known.
func (t *Table) drop(n *node) {
	if !n.exists && n.owner == "" {
		delete(t.nodes, n.name)
		t.places.remove(n)
	}
}

// SetConfig says that there is such a configuration.
func (t *Table) SetConfig(in Config) {
	c := t.configs[in.Name]
	if c == nil {
		c = t.newConfig()
		t.configs[in.Name] = c
	} else {
		t.order = slices.DeleteFunc(t.order, func(o *config) bool { return o == c })
	}
	c.Config = in
	c.selector, c.wrong = parse(in)
	at, _ := slices.BinarySearchFunc(t.order, c, earlier)
	t.order = slices.Insert(t.order, at, c)
	t.mark(c)
	for _, n := range t.nodes {
		t.selects(c, n, c.wants(n))
	}
	t.touch(c) // its spec may have changed
	t.judge()
}

// newConfig gives a configuration an id, and every other one room to count its overlap with it.
func (t *Table) newConfig() *config {
	c := &config{}
	if last := len(t.free) - 1; last >= 0 {
		c.id, t.free = t.free[last], t.free[:last]
	} else {
		c.id = t.ids
		t.ids++
	}
	c.overlap = make([]int, t.ids)
	for _, o := range t.order {
		o.overlap = append(o.overlap, make([]int, t.ids-len(o.overlap))...)
	}
	return c
}

func parse(in Config) (labels.Selector, error) {
	if in.Selector == nil {
		return labels.Everything(), in.Invalid
	}
	selector, err := metav1.LabelSelectorAsSelector(in.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.nodeSelector: %w", err)
	}
	return selector, in.Invalid
}

func earlier(a, b *config) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// DeleteConfig says that there is no such configuration.
func (t *Table) DeleteConfig(name string) {
	c := t.configs[name]
	if c == nil {
		return
	}
	t.touch(c)
	for n := range t.places.of(c.selected) {
		t.selects(c, n, false)
	}
	delete(t.configs, name)
	t.order = slices.DeleteFunc(t.order, func(o *config) bool { return o == c })
	t.free = append(t.free, c.id)
	t.dirtyConfigs[name] = struct{}{}
	for _, n := range t.nodes {
		if n.owner == name {
			t.touchNode(n)
		}
	}
	t.judge()
}

func (c *config) wants(n *node) bool {
	switch {
	case !n.exists:
		return false
	case c.selector == nil:
		return n.owner == c.Name
	}
	return c.selector.Matches(n.labels)
}

// reselect asks every configuration about a node.
func (t *Table) reselect(n *node) {
	changed := false
	for _, c := range t.order {
		changed = t.selects(c, n, c.wants(n)) || changed
	}
	if changed {
		t.judge()
	}
}

// selects notes whether a configuration selects a node, and what that overlaps with.
func (t *Table) selects(c *config, n *node, yes bool) (changed bool) {
	if c.selected.has(n.place) == yes {
		return false
	}
	c.selected.put(n.place, yes)
	step := -1
	if yes {
		step = 1
	} else {
		n.in = slices.DeleteFunc(n.in, func(o *config) bool { return o == c })
	}
	for _, o := range n.in {
		c.overlap[o.id] += step
		o.overlap[c.id] += step
		t.mark(o)
	}
	if yes {
		n.in = append(n.in, c)
	}
	t.touchNode(n)
	t.mark(c)
	return true
}

// touchNode notes that the answer about a node may have changed.
func (t *Table) touchNode(n *node) {
	if !n.dirty {
		n.dirty = true
		t.dirtyNodes[n.name] = struct{}{}
	}
}

// mark notes that the answer about a configuration may have changed.
func (t *Table) mark(c *config) {
	if !c.dirty {
		c.dirty = true
		t.dirtyConfigs[c.Name] = struct{}{}
	}
}

// touch marks the nodes of a configuration.
func (t *Table) touch(c *config) {
	for n := range t.places.of(c.selected) {
		t.touchNode(n)
	}
}

// judge says anew who is in conflict with whom.
func (t *Table) judge() {
	for i, c := range t.order {
		var with *config
		for _, o := range t.order[:i] {
			if !o.conflicting && c.overlap[o.id] > 0 {
				with = o
				break
			}
		}
		if c.conflicting == (with != nil) && c.with == with {
			continue
		}
		c.conflicting, c.with = with != nil, with
		t.mark(c)
		t.touch(c)
	}
}
