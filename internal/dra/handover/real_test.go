// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

const own = "/proc/thread-self/ns/net"

// wires manages ends of veth pairs, which every kernel has: one is known by its MAC address.
type wires struct {
	device.Manager // the rest, which no hand-over asks for

	machine *kernel.Machine
	make    func(name string) error
}

func (w *wires) Type() device.ManagerType { return "wire" }

func (w *wires) Nodes(device.Device) []string { return nil }

func (w *wires) RestoreDevice(data json.RawMessage) (device.Device, error) {
	var d devicetest.Device
	err := json.Unmarshal(data, &d)
	d.ID, d.Kind = d.KernelIfaceName, "wire"
	return d, err
}

func (w *wires) home(d device.Device) kernel.LinkState {
	name := d.(devicetest.Device).KernelIfaceName
	mac := net.HardwareAddr{2, 0xfe, 0, 0, 0, 0}
	copy(mac[3:], name[len(name)-3:])
	return kernel.LinkState{Name: name, MAC: mac, MTU: 1400, AltNames: []string{"alt-" + name}}
}

func (w *wires) Home(d device.Device, _ device.Saved) kernel.LinkState { return w.home(d) }

func (w *wires) Setup(_ context.Context, d device.Device, _ v2alpha1.DeviceConfig, _ device.Saved) (device.Device, error) {
	want := w.home(d)
	if err := w.make(want.Name); err != nil {
		return d, err
	}
	link, err := w.machine.Link(kernel.Namespace{}, want.Name)
	if err != nil {
		return d, err
	}
	_, err = w.machine.Restore(kernel.Namespace{}, link.Index, want)
	return d, err
}

func (w *wires) Link(ns kernel.Namespace, d device.Device, _ device.Saved) (kernel.Link, error) {
	links, err := w.machine.Links(ns)
	if err != nil {
		return kernel.Link{}, err
	}
	mac := w.home(d).MAC
	if i := slices.IndexFunc(links, func(l kernel.Link) bool { return slices.Equal(l.MAC, mac) }); i >= 0 {
		return links[i], nil
	}
	return kernel.Link{}, kernel.ErrNoLink
}

// real is a node with a real kernel, and wires that pod p1 has: net0, net1…
type real struct {
	machine *kernel.Machine
	store   *state.Store
	h       *handover.Handover
	rows    []device.Allocation
}

func newReal(t testing.TB, count int) *real {
	t.Helper()
	kerneltest.Need(t)
	machine, err := kernel.Open("/sys")
	check(t, err)
	t.Cleanup(func() { check(t, machine.Close()) })
	home, err := kernel.OpenNetns(own)
	check(t, err)
	t.Cleanup(func() { check(t, home.Close()) })
	peers := kerneltest.Netns(t)
	made := 0
	w := &wires{machine: machine, make: func(name string) error {
		made++
		t.Cleanup(func() {
			link, err := machine.Link(kernel.Namespace{}, name)
			if err == nil {
				err = machine.Remove(kernel.Namespace{}, link.Index)
			}
			if err != nil && !errors.Is(err, kernel.ErrNoLink) {
				t.Error(err)
			}
		})
		return home.AddVeth(name, peers, fmt.Sprint("peer", made))
	}}
	log := slog.New(slog.DiscardHandler)
	r := &real{machine: machine}
	r.store, err = state.New(log, device.Dummy)
	check(t, err)
	for i := range count {
		d := devicetest.Device{ID: fmt.Sprintf("wire%03d", i), Kind: "wire", KernelIfaceName: fmt.Sprintf("wire%03d", i)}
		_, err := w.Setup(t.Context(), d, v2alpha1.DeviceConfig{}, nil)
		check(t, err)
		row := device.Allocation{
			DeviceName: d.ID, Manager: "wire", PreparedDevice: d, Pool: "pool",
			PodUID: "p1", ClaimUID: types.UID(fmt.Sprint("c", i)), Config: v2alpha1.DeviceConfig{PodIfName: fmt.Sprint("net", i)},
		}
		r.rows = append(r.rows, row)
		r.store.Put(row)
	}
	r.h, err = handover.New(handover.Config{
		StateDir: t.TempDir(), Managers: map[device.ManagerType]device.Manager{"wire": w}, Store: r.store, Kernel: machine, Log: log,
	})
	check(t, err)
	t.Cleanup(func() { check(t, r.h.Close()) })
	return r
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sandboxAt(id, path string) handover.Sandbox {
	return handover.Sandbox{PodUID: "p1", ID: id, Namespace: path}
}

// links are those of a namespace: their names, and what else a hand-over may change, by name.
func (r *real) links(t testing.TB, path string) map[string]kernel.LinkState {
	t.Helper()
	ns := kernel.Namespace{}
	if path != "" {
		id, err := r.machine.NamespaceID(path)
		check(t, err)
		ns = kernel.Namespace{Path: path, ID: id}
	}
	links, err := r.machine.Links(ns)
	check(t, err)
	all := map[string]kernel.LinkState{}
	for _, l := range links {
		if l.Name != "lo" {
			all[l.Name] = kernel.StateOf(l)
		}
	}
	return all
}

// T-40, T-42 on the kernel: what a pod did to its links is undone with the hand-over.
func TestRealLinks(t *testing.T) {
	r := newReal(t, 3)
	before := r.links(t, "")
	path := kerneltest.NetnsThatGoes(t)
	_, err := r.h.Attach(t.Context(), sandboxAt("s1", path))
	check(t, err)
	there := r.links(t, path)
	for i := range 3 {
		if l, ok := there[fmt.Sprint("net", i)]; !ok || !l.Up || l.MTU != 1400 {
			t.Errorf("the pod has %+v", there)
		}
	}
	if left := r.links(t, ""); len(left) != len(before)-3 {
		t.Errorf("the host has %v", left)
	}
	_, err = r.h.Attach(t.Context(), sandboxAt("s1", path))
	check(t, err)
	id, err := r.machine.NamespaceID(path)
	check(t, err)
	ns := kernel.Namespace{Path: path, ID: id}
	link, err := r.machine.Link(ns, "net1")
	check(t, err)
	_, err = r.machine.Restore(ns, link.Index, kernel.LinkState{Name: "mine", MAC: link.MAC, MTU: 1300, AltNames: []string{"alias"}, Up: true})
	check(t, err)
	check(t, r.h.Detach(t.Context(), "s1"))
	if diff := cmp.Diff(before, r.links(t, ""), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the host changed (-before +now):\n%s", diff)
	}
}

// T-41 on the kernel: one name that is taken, and the host is as it was.
func TestRealClash(t *testing.T) {
	r := newReal(t, 3)
	before := r.links(t, "")
	n := kerneltest.Netns(t)
	check(t, n.AddBridge("net2"))
	_, err := r.h.Attach(t.Context(), sandboxAt("s1", n.Path()))
	if err == nil || !strings.Contains(err.Error(), `podIfName "net2" is taken`) {
		t.Errorf("error is %v", err)
	}
	if diff := cmp.Diff(before, r.links(t, ""), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the host changed (-before +now):\n%s", diff)
	}
}

// T-49: by no path is the host's namespace a sandbox's.
func TestRealHostNetwork(t *testing.T) {
	r := newReal(t, 1)
	bound := filepath.Join(t.TempDir(), "netns")
	check(t, os.WriteFile(bound, nil, 0o600))
	check(t, unix.Mount(own, bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { check(t, unix.Unmount(bound, 0)) })
	for _, path := range []string{"", own, bound} {
		_, err := r.h.Attach(t.Context(), sandboxAt("s1", path))
		if err == nil || !strings.Contains(err.Error(), "hostNetwork") {
			t.Errorf("%q: error is %v", path, err)
		}
	}
}

// T-47 on the kernel: virtual links die with their namespace, and are made again for the next one.
func TestRealNamespaceGone(t *testing.T) {
	r := newReal(t, 2)
	before := r.links(t, "")
	first, second := kerneltest.NetnsThatGoes(t), kerneltest.NetnsThatGoes(t)
	_, err := r.h.Attach(t.Context(), sandboxAt("s1", first))
	check(t, err)
	check(t, kernel.RemoveNetns(first))
	_, err = r.h.Attach(t.Context(), sandboxAt("s2", second))
	check(t, err)
	if there := r.links(t, second); len(there) != 2 {
		t.Errorf("the pod has %v", there)
	}
	check(t, r.h.Detach(t.Context(), "s1"))
	if there := r.links(t, second); len(there) != 2 {
		t.Errorf("after a late end of the first sandbox the pod has %v", there)
	}
	for _, row := range r.rows {
		check(t, r.h.Return(t.Context(), string(row.ClaimUID), string(row.PodUID)))
	}
	if diff := cmp.Diff(before, r.links(t, ""), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the host changed (-before +now):\n%s", diff)
	}
}
