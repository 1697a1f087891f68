// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"slices"
	"strings"
)

type fault struct {
	method, arg string
	err         error
	left        int // how often it will still happen; -1: for ever
}

func (f *fault) matches(method string, args []string) bool {
	return f.left != 0 && f.method == method && (f.arg == "" || slices.Contains(args, f.arg))
}

// Fail makes calls of a method fail before they do anything: the next n of them, or, without n,
// all that come. "Move" is every call of Move; "Move net1" are those with an argument net1 (a name,
// the path of a namespace, a PCI address, an index). A nil error ends what was said of exactly that.
func (m *Machine) Fail(method string, err error, n ...int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &fault{err: err, left: -1}
	f.method, f.arg, _ = strings.Cut(method, " ")
	if len(n) != 0 {
		f.left = n[0]
	}
	m.faults = slices.DeleteFunc(m.faults, func(o *fault) bool { return o.method == f.method && o.arg == f.arg })
	if err != nil {
		m.faults = append(m.faults, f)
	}
}

// Block makes calls of a method wait, before they do anything, until the channel is closed.
// It names calls as Fail does.
func (m *Machine) Block(method string, until <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks[method] = until
}

// Count says how often a method was called.
func (m *Machine) Count(method string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[method]
}

// Calls lists the calls so far that were to change something, in order: "Move  /run/netns/a net1" (the
// empty path is the host's).
func (m *Machine) Calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

// call counts a call, lets it wait, and gives its fault.
func (m *Machine) call(method string, args ...string) error {
	m.mu.Lock()
	m.counts[method]++
	switch method {
	case "SetNumVFs", "Move", "SetUp", "Rename", "Restore", "AddDummy", "Remove", "SetVF":
		m.calls = append(m.calls, strings.Join(append([]string{method}, args...), " "))
	}
	var waits []<-chan struct{}
	for name, until := range m.blocks {
		what, arg, _ := strings.Cut(name, " ")
		if what == method && (arg == "" || slices.Contains(args, arg)) {
			waits = append(waits, until)
		}
	}
	m.mu.Unlock()
	for _, until := range waits {
		<-until
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.faults {
		if f.matches(method, args) {
			f.left = max(f.left-1, -1)
			return f.err
		}
	}
	return nil
}
