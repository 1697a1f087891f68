// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// T-38 and T-47 on the machine that obeys the kernel's rules: made, moved into a pod under another
// name, gone with its namespace, made again with the same address, given back, removed.
func TestMachineLife(t *testing.T) {
	m := kerneltest.NewMachine()
	host, pod := kernel.Namespace{}, m.AddNamespace("/run/netns/a")
	m.AddLink(host, kernel.Link{Name: "br0", Kind: "bridge"})
	before := m.Snapshot()
	r := New(Config{Spec: v2alpha1.DummyConfig{Enabled: true, Count: 3}, Kernel: m, Log: slog.New(slog.DiscardHandler)})
	config := v2alpha1.DeviceConfig{PodIfName: "net1"}
	d := Device{IfName: "dummy1"}
	saved, err := r.Inspect(d, config)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, m.Snapshot()); diff != "" {
		t.Errorf("inspect changed something: %s", diff)
	}
	dev, err := r.Setup(t.Context(), d, config, saved)
	if err != nil {
		t.Fatal(err)
	}
	move := func(from, to kernel.Namespace, name string) {
		t.Helper()
		link, err := r.Link(from, dev, saved)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Move(from, link.Index, to, name); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Link(from, dev, saved); !errors.Is(err, kernel.ErrNoLink) {
			t.Errorf("still where it was: %v", err)
		}
	}
	move(host, pod, "net1")
	m.DestroyNamespace(pod.Path)
	pod = m.AddNamespace(pod.Path)
	again, err := r.Setup(t.Context(), dev, config, saved)
	if err != nil || again != dev {
		t.Fatalf("%+v, %v; want %+v", again, err, dev)
	}
	move(host, pod, "net1")
	move(pod, host, r.Home(dev, saved).Name)
	link, err := r.Link(host, dev, saved)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Home(dev, saved), kernel.StateOf(link)); diff != "" {
		t.Error(diff)
	}
	for range 2 {
		if err := r.Free(t.Context(), dev, config, saved); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(before, m.Snapshot()); diff != "" {
		t.Error(diff)
	}
}

// T-38: a link of the name that is somebody else's, on the machine.
func TestMachineForeignLink(t *testing.T) {
	for _, kind := range []string{"bridge", "dummy"} {
		m := kerneltest.NewMachine()
		r := New(Config{Spec: v2alpha1.DummyConfig{Enabled: true, Count: 3}, Kernel: m, Log: slog.New(slog.DiscardHandler)})
		d := Device{IfName: "dummy1"}
		saved, err := r.Inspect(d, v2alpha1.DeviceConfig{})
		if err != nil {
			t.Fatal(err)
		}
		m.AddLink(kernel.Namespace{}, kernel.Link{Name: "dummy1", Kind: kind})
		before := m.Snapshot()
		if _, err := r.Inspect(d, v2alpha1.DeviceConfig{}); err == nil {
			t.Error("inspected")
		}
		if _, err := r.Setup(t.Context(), d, v2alpha1.DeviceConfig{}, saved); err == nil {
			t.Error("set up")
		}
		if err := r.Free(t.Context(), d, v2alpha1.DeviceConfig{}, saved); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(before, m.Snapshot()); diff != "" {
			t.Error(diff)
		}
	}
}
