// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kerneltest_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

const pf = kernel.PCIAddr("0000:03:00.0")

func machine(t *testing.T) *kerneltest.Machine {
	t.Helper()
	m := kerneltest.NewMachine()
	m.AddPF(pf, "ens1f0", 7)
	if err := m.SetNumVFs(pf, 4); err != nil {
		t.Fatal(err)
	}
	return m
}

// A VF goes into a pod and comes back by a whole life, and the machine is what it was.
func TestThereAndBack(t *testing.T) {
	m := machine(t)
	before := m.Snapshot()
	pod := m.AddNamespace("/run/netns/a")
	l, err := m.LinkOf(kernel.Namespace{}, kerneltest.VFAddr(pf, 1))
	if err != nil {
		t.Fatal(err)
	}
	moved, err := m.Move(kernel.Namespace{}, l.Index, pod, "net1")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetUp(pod, moved.Index, true); err != nil {
		t.Fatal(err)
	}
	m.DestroyNamespace(pod.Path)
	home, err := m.LinkOf(kernel.Namespace{}, l.PCI)
	if err != nil || home.Name != "net1" {
		t.Fatal(home, err)
	}
	if _, err := m.Restore(kernel.Namespace{}, home.Index, kernel.StateOf(l)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, m.Snapshot()); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	m := machine(t)
	wrong := errors.New("wrong")
	_, free := m.Link(kernel.Namespace{}, "ens1f0")
	m.Fail("Link ens1f0", wrong, 1)
	_, other := m.Link(kernel.Namespace{}, "lo")
	_, first := m.Link(kernel.Namespace{}, "ens1f0")
	_, second := m.Link(kernel.Namespace{}, "ens1f0")
	m.Fail("Link", wrong)
	_, third := m.Link(kernel.Namespace{}, "lo")
	m.Fail("Link", nil)
	_, fourth := m.Link(kernel.Namespace{}, "lo")
	want := []error{nil, nil, wrong, nil, wrong, nil}
	for i, err := range []error{free, other, first, second, third, fourth} {
		if !errors.Is(err, want[i]) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if n := m.Count("Link"); n != 6 {
		t.Error(n)
	}
}
