// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readiness is the agent's one state machine of what holds and what does not:
// /readyz, the debug socket and the publishing of the CNI conf ask it and nobody else.
//
// It owns the names of the conditions and their order, which is the order of start-up:
//
//	records_loaded      the records of the state directory were read: what is attached is known
//	caches_synced       the pods of the node and all networks were listed once
//	planner_listening   the planner socket answers
//	primary_conf        the pod network's own conf is there and whole
//	conf_published      Weft's conf stands in confDir, made from it
//	network_driver      where the network driver is on: it knows what was prepared before, and the
//	                    kubelet knows it; nothing waits for it
//
// Invariants: a condition that nobody has set does not hold; the node is ready when all
// hold; a condition may be acted upon when all before it hold (Reached): so the runtime
// is pointed at Weft, conf_published being the last, only when Weft can answer it. The
// order is about the first time: what was published stays, whatever stops holding later.
// After Stop nothing makes the node ready again.
//
// It takes values and gives values: no files, no sockets, no cluster, and no clock but
// the one it was given. A lost API server is none of its business unless somebody sets a
// condition for it; the agent does not, since pods go on without it.
//
// Implements: architecture 4.1 (STATUS), 4.4; spec/cni.md rule 11 and section 5 (readiness in one place).
package readiness

import (
	"slices"
	"sync"
	"time"
)

// The agent's conditions.
const (
	RecordsLoaded    = "records_loaded"
	CachesSynced     = "caches_synced"
	PlannerListening = "planner_listening"
	PrimaryConf      = "primary_conf"
	ConfPublished    = "conf_published"
	// NetworkDriver is there where the network driver is on, and comes last: nothing waits for it.
	NetworkDriver = "network_driver"
)

// Order lists the agent's conditions in the order of start-up.
func Order() []string {
	return []string{RecordsLoaded, CachesSynced, PlannerListening, PrimaryConf, ConfPublished}
}

// Condition is one condition as it stands.
type Condition struct {
	Name  string    `json:"name"`
	OK    bool      `json:"ok"`
	Why   string    `json:"why,omitempty"` // of one that does not hold
	Since time.Time `json:"since"`         // when OK last became what it is
}

// notYet is why a condition does not hold that nobody has set.
const notYet = "not yet"

// Machine holds the conditions. Its methods may be called from several goroutines.
type Machine struct {
	now func() time.Time

	mu      sync.Mutex
	all     []Condition
	stopped string
	changed chan struct{}
}

// New makes a machine of the named conditions, in their order, none of which holds.
func New(now func() time.Time, names ...string) *Machine {
	m := &Machine{now: now, changed: make(chan struct{})}
	for _, name := range names {
		m.add(name)
	}
	return m
}

// add makes a condition, which stands last, and gives its index.
func (m *Machine) add(name string) int {
	m.all = append(m.all, Condition{Name: name, Why: notYet, Since: m.now()})
	return len(m.all) - 1
}

// Set says whether a condition holds, and if not, why. A name that New was not given
// becomes a condition like the others, the last one.
func (m *Machine) Set(name string, ok bool, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.index(name)
	known := i >= 0
	if !known {
		i = m.add(name)
	}
	switch {
	case ok:
		why = ""
	case why == "":
		why = "does not hold"
	}
	c := &m.all[i]
	if known && c.OK == ok && c.Why == why {
		return
	}
	if c.OK != ok {
		c.OK, c.Since = ok, m.now()
	}
	c.Why = why
	m.tell()
}

// Stop makes the node not ready for good, for that reason: the agent is ending. The first
// reason stays.
func (m *Machine) Stop(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped == "" {
		m.stopped = "stopping: " + why
		m.tell()
	}
}

// Ready says whether all conditions hold, and if not, why not: one line each, in order.
func (m *Machine) Ready() (ready bool, reasons []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped != "" {
		reasons = append(reasons, m.stopped)
	}
	for _, c := range m.all {
		if !c.OK {
			reasons = append(reasons, c.Name+": "+c.Why)
		}
	}
	return len(reasons) == 0, reasons
}

// Reached says whether every condition before the named one holds and nothing is
// stopping: its turn has come. What follows it does not matter.
func (m *Machine) Reached(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.index(name)
	if m.stopped != "" || i < 0 {
		return false
	}
	return !slices.ContainsFunc(m.all[:i], func(c Condition) bool { return !c.OK })
}

// Conditions gives all as they stand, in order.
func (m *Machine) Conditions() []Condition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

// Changed gives a channel that the next change closes. Who waits takes it before looking,
// so that no change is missed.
func (m *Machine) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *Machine) index(name string) int {
	return slices.IndexFunc(m.all, func(c Condition) bool { return c.Name == name })
}

func (m *Machine) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}
