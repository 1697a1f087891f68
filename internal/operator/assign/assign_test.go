// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package assign_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/operator/assign"
)

func at(second int) time.Time { return time.Unix(1_700_000_000+int64(second), 0) }

func role(value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"role": value}}
}

// world is what a table is told, by name.
type world struct {
	nodes   map[string]map[string]string
	owners  map[string]string
	configs map[string]assign.Config
}

func (w world) table() *assign.Table {
	t := assign.New()
	for _, name := range slices.Sorted(maps.Keys(w.configs)) {
		t.SetConfig(w.configs[name])
	}
	for name, labels := range w.nodes {
		t.SetNode(name, labels)
	}
	for name, owner := range w.owners {
		t.SetOwner(name, owner)
	}
	return t
}

func TestTable(t *testing.T) {
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "role", Operator: "Foo"}}}
	two := map[string]map[string]string{"n1": {"role": "x"}, "n2": nil}
	for _, c := range []struct {
		name    string
		world   world
		nodes   map[string]string // node: state and configuration
		configs map[string]string // configuration: state, nodes, message
	}{
		{
			name: "nil and empty select all",
			world: world{nodes: two, configs: map[string]assign.Config{
				"a": {Name: "a", Selector: &metav1.LabelSelector{}},
			}},
			nodes:   map[string]string{"n1": "governed a", "n2": "governed a"},
			configs: map[string]string{"a": "governed [n1 n2]"},
		},
		{
			name: "T-60: the older goes first",
			world: world{nodes: two, configs: map[string]assign.Config{
				"z": {Name: "z", Created: at(0)},
				"b": {Name: "b", Created: at(1), Selector: role("x")},
			}},
			nodes:   map[string]string{"n1": "governed z", "n2": "governed z"},
			configs: map[string]string{"z": "governed [n1 n2]", "b": "conflicting [] z goes first and governs nodes that this configuration selects too: n1"},
		},
		{
			name: "T-60: of one age, the name does",
			world: world{nodes: two, configs: map[string]assign.Config{
				"b": {Name: "b", Selector: role("x")}, "a": {Name: "a"},
			}},
			nodes: map[string]string{"n1": "governed a", "n2": "governed a"},
		},
		{
			name: "a conflicting one occupies nothing",
			world: world{nodes: two, configs: map[string]assign.Config{
				"a": {Name: "a", Created: at(0), Selector: role("x")},
				"b": {Name: "b", Created: at(1)},
				"c": {Name: "c", Created: at(2), Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "role", Operator: "DoesNotExist"}}}},
			}},
			nodes:   map[string]string{"n1": "governed a", "n2": "governed c"},
			configs: map[string]string{"c": "governed [n2]"},
		},
		{
			name: "a conflicting one keeps what it had",
			world: world{nodes: two, owners: map[string]string{"n1": "b", "n2": "b"}, configs: map[string]assign.Config{
				"a": {Name: "a", Created: at(0), Selector: role("x")},
				"b": {Name: "b", Created: at(1)},
			}},
			nodes:   map[string]string{"n1": "governed a", "n2": "frozen b"},
			configs: map[string]string{"b": "conflicting [] a goes first and governs nodes that this configuration selects too: n1"},
		},
		{
			name: "T-65: a selector that cannot be read keeps its nodes, also from others",
			world: world{nodes: two, owners: map[string]string{"n1": "a"}, configs: map[string]assign.Config{
				"a": {Name: "a", Created: at(0), Selector: bad},
				"b": {Name: "b", Created: at(1), Selector: role("x")},
				"c": {Name: "c", Created: at(2), Selector: role("y")},
			}},
			nodes:   map[string]string{"n1": "frozen a", "n2": "unselected"},
			configs: map[string]string{"a": `wrong [] spec.nodeSelector: "Foo" is not a valid label selector operator`, "b": "conflicting [] a goes first and governs nodes that this configuration selects too: n1", "c": "governed []"},
		},
		{
			name: "an invalid spec changes no node",
			world: world{nodes: two, owners: map[string]string{"n1": "a"}, configs: map[string]assign.Config{
				"a": {Name: "a", Selector: role("x"), Invalid: errors.New("spec.spec.pools: bad")},
			}},
			nodes:   map[string]string{"n1": "frozen a", "n2": "unselected"},
			configs: map[string]string{"a": "wrong [] spec.spec.pools: bad"},
		},
		{
			name:  "a node configuration without a node",
			world: world{owners: map[string]string{"gone": "a"}, configs: map[string]assign.Config{"a": {Name: "a"}}},
			nodes: map[string]string{"gone": "unselected"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := c.world.table()
			for name, want := range c.nodes {
				d := table.Node(name)
				if got := strings.TrimSpace(d.State.String() + " " + d.Config); got != want {
					t.Errorf("node %s is %q, not %q", name, got, want)
				}
			}
			for name, want := range c.configs {
				s, ok := table.Config(name)
				if !ok {
					t.Fatalf("no configuration %s", name)
				}
				text := s.Message
				if s.Err != nil {
					text = s.Err.Error()
				}
				if got := strings.TrimSpace(fmt.Sprintf("%s %v %s", s.State, s.Nodes, text)); got != want {
					t.Errorf("configuration %s is %q, not %q", name, got, want)
				}
			}
		})
	}
}

// TestResolved: a conflict ends with its cause, and the nodes that change are told.
func TestResolved(t *testing.T) {
	table := world{
		nodes: map[string]map[string]string{"n1": {"role": "x"}, "n2": {"role": "y"}},
		configs: map[string]assign.Config{
			"a": {Name: "a", Created: at(0), Selector: role("x")},
			"b": {Name: "b", Created: at(1), Selector: role("x")},
			"c": {Name: "c", Created: at(2), Selector: role("y")},
		},
	}.table()
	table.Changed()
	table.DeleteConfig("a")
	nodes, configs := table.Changed()
	if diff := gocmp.Diff([]string{"n1"}, nodes); diff != "" {
		t.Errorf("changed nodes (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff([]string{"a", "b"}, configs); diff != "" {
		t.Errorf("changed configurations (-want +got):\n%s", diff)
	}
	if d := table.Node("n1"); d.State != assign.Governed || d.Config != "b" {
		t.Errorf("n1 is %s %s", d.State, d.Config)
	}
}

// naive says the same as a table, by the rules as they are written down, from nothing each time.
func (w world) naive() (nodes, configs map[string]string) {
	order := slices.SortedFunc(maps.Values(w.configs), func(a, b assign.Config) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	selects := func(c assign.Config, n string) bool {
		labels, exists := w.nodes[n]
		if !exists {
			return false
		}
		if c.Selector == nil {
			return true
		}
		selector, err := metav1.LabelSelectorAsSelector(c.Selector)
		if err != nil {
			return w.owners[n] == c.Name
		}
		return selector.Matches(labelsOf(labels))
	}
	nodes, configs = map[string]string{}, map[string]string{}
	for n := range w.nodes {
		nodes[n] = "unselected"
	}
	occupied := map[string]bool{}
	for _, c := range order {
		free := true
		for n := range w.nodes {
			free = free && (!selects(c, n) || !occupied[n])
		}
		_, err := metav1.LabelSelectorAsSelector(c.Selector)
		wrong := c.Invalid != nil || err != nil
		switch {
		case !free:
			configs[c.Name] = "conflicting"
		case wrong:
			configs[c.Name] = "wrong"
		default:
			configs[c.Name] = "governed"
		}
		for n := range w.nodes {
			switch {
			case !selects(c, n):
			case !free && w.owners[n] == c.Name && nodes[n] == "unselected":
				nodes[n] = "frozen " + c.Name
			case free && wrong: // it governs the node, whoever had it before
				nodes[n], occupied[n] = "frozen "+c.Name, true
			case free:
				nodes[n], occupied[n] = "governed "+c.Name, true
			}
		}
	}
	return nodes, configs
}

type labelsOf map[string]string

func (l labelsOf) Has(k string) bool                   { _, ok := l[k]; return ok }
func (l labelsOf) Get(k string) string                 { return l[k] }
func (l labelsOf) Lookup(k string) (v string, ok bool) { v, ok = l[k]; return v, ok }

// TestProperty: whatever is told in whatever order, a table says what the rules say, and every node
// and configuration whose answer changed is among those that are called changed.
func TestProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := world{nodes: map[string]map[string]string{}, owners: map[string]string{}, configs: map[string]assign.Config{}}
		table := assign.New()
		beforeNodes, beforeConfigs := w.naive()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			step(t, w, table)
			nodes, configs := w.naive()
			dirtyNodes, dirtyConfigs := table.Changed()
			compare(t, "node", nodes, beforeNodes, dirtyNodes, func(name string) string {
				d := table.Node(name)
				return strings.TrimSpace(d.State.String() + " " + d.Config)
			})
			compare(t, "configuration", configs, beforeConfigs, dirtyConfigs, func(name string) string {
				s, _ := table.Config(name)
				return s.State.String()
			})
			beforeNodes, beforeConfigs = nodes, configs
		}
		if got, want := answers(table, w), answers(w.table(), w); !gocmp.Equal(got, want) {
			t.Fatalf("another order gives another answer:\n%s", gocmp.Diff(want, got))
		}
	})
}

func step(t *rapid.T, w world, table *assign.Table) {
	names := []string{"n1", "n2", "n3", "n4"}
	configs := []string{"a", "b", "c", "d"}
	n, c := rapid.SampledFrom(names).Draw(t, "node"), rapid.SampledFrom(configs).Draw(t, "configuration")
	switch rapid.IntRange(0, 4).Draw(t, "what") {
	case 0:
		w.nodes[n] = map[string]string{"role": rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "role")}
		table.SetNode(n, w.nodes[n])
	case 1:
		delete(w.nodes, n)
		table.DeleteNode(n)
	case 2:
		w.owners[n] = rapid.SampledFrom(append(configs, "")).Draw(t, "owner")
		table.SetOwner(n, w.owners[n])
	case 3:
		in := assign.Config{Name: c, Created: at(rapid.IntRange(0, 2).Draw(t, "age"))}
		switch rapid.IntRange(0, 4).Draw(t, "selector") {
		case 0:
		case 1:
			in.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "role", Operator: "Foo"}}}
		default:
			in.Selector = role(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "role"))
		}
		if rapid.IntRange(0, 4).Draw(t, "valid") == 0 {
			in.Invalid = errors.New("invalid")
		}
		w.configs[c] = in
		table.SetConfig(in)
	case 4:
		delete(w.configs, c)
		table.DeleteConfig(c)
	}
}

func compare(t *rapid.T, what string, want, before map[string]string, dirty []string, answer func(string) string) {
	for name, state := range want {
		if got := answer(name); got != state {
			t.Fatalf("%s %s is %q, not %q", what, name, got, state)
		}
		if state != before[name] && !slices.Contains(dirty, name) {
			t.Fatalf("%s %s went from %q to %q and is not called changed", what, name, before[name], state)
		}
	}
}

func answers(table *assign.Table, w world) (all []any) {
	for _, n := range slices.Sorted(maps.Keys(w.nodes)) {
		d := table.Node(n)
		all = append(all, d.Node, d.State, d.Config, len(d.Selecting))
	}
	for _, c := range slices.Sorted(maps.Keys(w.configs)) {
		s, _ := table.Config(c)
		all = append(all, s.Config, s.State, s.With, s.Message, s.Nodes)
	}
	return all
}

// TestMessageIsBounded: however many nodes a conflict is about, the first ten are named.
func TestMessageIsBounded(t *testing.T) {
	w := world{nodes: map[string]map[string]string{}, configs: map[string]assign.Config{
		"a": {Name: "a", Created: at(0)}, "b": {Name: "b", Created: at(1), Selector: role("x")},
	}}
	for i := range 13 { // one of which only the first selects
		w.nodes[fmt.Sprintf("n%02d", i)] = map[string]string{"role": map[bool]string{true: "y", false: "x"}[i == 4]}
	}
	s, _ := w.table().Config("b")
	const want = "a goes first and governs nodes that this configuration selects too: " +
		"n00, n01, n02, n03, n05, n06, n07, n08, n09, n10 and 2 more"
	if s.Message != want {
		t.Errorf("%q", s.Message)
	}
}

// TestClockSkew: only the timestamps count, not who was seen first, nor what time it is here. One that
// comes later and is older, as from a server whose clock is behind, goes first.
func TestClockSkew(t *testing.T) {
	ahead := time.Now().Add(365 * 24 * time.Hour)
	table := world{nodes: map[string]map[string]string{"n1": nil}, configs: map[string]assign.Config{
		"ahead": {Name: "ahead", Created: ahead},
	}}.table()
	if d := table.Node("n1"); d.State != assign.Governed || d.Config != "ahead" {
		t.Errorf("alone, one of the future has %+v", d)
	}
	table.Changed()
	table.SetConfig(assign.Config{Name: "behind", Created: time.Time{}})
	nodes, configs := table.Changed()
	if d := table.Node("n1"); d.Config != "behind" || !slices.Equal(nodes, []string{"n1"}) || !slices.Equal(configs, []string{"ahead", "behind"}) {
		t.Errorf("the older one came: %+v, changed are %q, %q", d, nodes, configs)
	}
	if s, _ := table.Config("ahead"); s.State != assign.Conflicting || s.With != "behind" {
		t.Errorf("the other one is %+v", s)
	}
	table.DeleteConfig("behind")
	if d := table.Node("n1"); d.Config != "ahead" {
		t.Errorf("the older one went: %+v", d)
	}
}

// fleet is 5,000 nodes and 50 configurations, each of which selects its hundred.
func fleet() world {
	w := world{nodes: map[string]map[string]string{}, configs: map[string]assign.Config{}}
	for i := range 5000 {
		w.nodes[fmt.Sprintf("node-%04d", i)] = map[string]string{"role": fmt.Sprint(i % 50), "zone": fmt.Sprint(i % 3)}
	}
	for i := range 50 {
		name := fmt.Sprintf("config-%02d", i)
		w.configs[name] = assign.Config{Name: name, Created: at(i), Selector: role(fmt.Sprint(i))}
	}
	return w
}

func BenchmarkFleet(b *testing.B) { benchmark(b, fleet()) }

// BenchmarkAllConflicting: each configuration selects all nodes.
func BenchmarkAllConflicting(b *testing.B) {
	w := fleet()
	for name, c := range w.configs {
		c.Selector = nil
		w.configs[name] = c
	}
	benchmark(b, w)
}

func benchmark(b *testing.B, w world) {
	b.Helper()
	for b.Loop() {
		table := w.table()
		nodes, configs := table.Changed()
		for _, n := range nodes {
			table.Node(n)
		}
		for _, c := range configs {
			table.Config(c)
		}
	}
}

func BenchmarkOneNode(b *testing.B) {
	table := fleet().table()
	table.Changed()
	for i := 0; b.Loop(); i++ {
		table.SetNode("node-0007", map[string]string{"role": fmt.Sprint(i % 50)})
		nodes, _ := table.Changed()
		for _, n := range nodes {
			table.Node(n)
		}
	}
}
