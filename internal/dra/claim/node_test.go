// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/sriov"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

const nodePF kernel.PCIAddr = "0000:03:00.0"

// wholeNode is claims, hand-over and the SR-IOV manager on a machine in memory, as the agent has them.
type wholeNode struct {
	t       *testing.T
	dir     string
	machine *kerneltest.Machine
	api     *cluster

	claims   *Claims
	hands    *handover.Handover
	rows     *state.Store
	managers map[device.ManagerType]device.Manager

	all       []*resourceapi.ResourceClaim // one of each pod
	prepared  map[types.UID]bool           // the kubelet was told so
	sandboxes map[int]string               // by pod: its living one
	attached  map[int]bool                 // by pod: its hand-over succeeded
	made      int                          // sandboxes so far
}

func newWholeNode(t *testing.T) *wholeNode {
	t.Helper()
	n := &wholeNode{
		t: t, dir: t.TempDir(), machine: kerneltest.NewMachine(), api: newCluster(),
		prepared: map[types.UID]bool{}, sandboxes: map[int]string{}, attached: map[int]bool{},
	}
	n.machine.AddPF(nodePF, "ens1f0", vfs)
	if err := n.machine.SetNumVFs(nodePF, vfs); err != nil {
		t.Fatal(err)
	}
	for i := range vfs { // what an administrator has set
		if err := n.machine.SetVF(nodePF, i, kernel.VFChange{VLAN: new(100 * (i + 1))}); err != nil {
			t.Fatal(err)
		}
	}
	// Three pods that want four VFs, of which they share one.
	for i, devices := range [][]int{{0, 1}, {1, 2}, {3}} {
		config := map[string]string{}
		for j := range devices {
			config[fmt.Sprintf("net%d", j)] = fmt.Sprintf(`{"vlan":%d,"podIfName":"net%d"}`, 10*(i+1)+j, j)
		}
		c := newClaim(fmt.Sprintf("c%d", i), fmt.Sprintf("p%d", i), config, devices...)
		for j, d := range devices {
			c.Status.Allocation.Devices.Results[j].Device = deviceName(d)
		}
		n.all = append(n.all, c)
		n.api.add(c)
	}
	n.start()
	return n
}

func deviceName(vf int) string {
	return strings.NewReplacer(":", "-", ".", "-").Replace(string(kerneltest.VFAddr(nodePF, vf)))
}

// start is a start of the agent, over what the last one left.
func (n *wholeNode) start() {
	n.t.Helper()
	log := slog.New(slog.DiscardHandler)
	var err error
	if n.rows, err = state.New(log, device.SRIOV); err != nil {
		n.t.Fatal(err)
	}
	n.managers = map[device.ManagerType]device.Manager{device.SRIOV: sriov.New(sriov.Config{Kernel: n.machine, Log: log})}
	n.hands, err = handover.New(handover.Config{
		StateDir: n.dir, Managers: n.managers, Store: n.rows, Kernel: n.machine, Log: log,
		Ready: func(pod types.UID) error { return n.claims.Ready(pod) },
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.claims, err = New(Config{
		Node: node, Driver: driver, StateDir: n.dir, Boot: "boot", Managers: n.managers,
		Store: n.rows, API: n.api, Events: n.api, Handover: n.hands, Log: log,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.scan()
	// What cannot be put right now, for a fault, is tried again later.
	if err := errors.Join(n.claims.Recover(n.t.Context()), n.hands.Recover(n.t.Context())); err != nil && !strings.Contains(err.Error(), injected) {
		n.t.Fatal(err)
	}
}

// injected is what a fault says.
const injected = "no such luck"

func (n *wholeNode) stop() {
	if err := errors.Join(n.claims.Close(), n.hands.Close()); err != nil {
		n.t.Error(err)
	}
}

// scan reports what the host's network has now, as a scan of sysfs does.
func (n *wholeNode) scan() {
	var found []device.Device
	functions, err := n.machine.Functions()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range functions {
		if f.PF == "" {
			continue
		}
		name := ""
		if len(f.Netdevs) > 0 {
			name = f.Netdevs[0]
		}
		text := fmt.Sprintf(`{"Addr":%q,"Driver":%q,"Vendor":"0x8086","DeviceID":"0x10ca","PFName":"ens1f0","VFID":%d,"KernelIfaceName":%q}`, f.Addr, f.Driver, f.VFID, name)
		dev, err := n.managers[device.SRIOV].RestoreDevice([]byte(text))
		if err != nil {
			n.t.Fatal(err)
		}
		found = append(found, dev)
	}
	n.rows.OnDevices(device.SRIOV)(found)
}

func (n *wholeNode) prepare(i int) {
	c := n.all[i]
	var fresh *resourceapi.ResourceClaim
	n.api.set(func() {
		fresh = n.api.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}].DeepCopy()
	})
	if _, err := n.claims.prepare(n.t.Context(), fresh, driver); err == nil {
		n.prepared[c.UID] = true
	}
}

// unprepare is for a pod whose sandbox has ended; where that was not told, it must not matter.
func (n *wholeNode) unprepare(i int) error {
	c := n.all[i]
	delete(n.prepared, c.UID)
	n.attached[i] = false
	n.api.set(func() {
		n.api.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}].Status.Devices = nil
	})
	_, err := n.claims.unprepare(n.t.Context(), c.UID)
	return err
}

// run gives a pod a sandbox, and that its devices.
func (n *wholeNode) run(i int) {
	if n.sandboxes[i] != "" {
		return
	}
	n.made++
	n.sandboxes[i] = fmt.Sprint("s", n.made)
	n.machine.AddNamespace("/run/netns/" + n.sandboxes[i])
	n.attach(i)
}

func (n *wholeNode) attach(i int) {
	id := n.sandboxes[i]
	if id == "" || !n.prepared[n.all[i].UID] {
		return
	}
	_, err := n.hands.Attach(n.t.Context(), handover.Sandbox{PodUID: fmt.Sprint("uid-p", i), ID: id, Namespace: "/run/netns/" + id, Reserved: []string{"eth0"}})
	n.attached[i] = err == nil
}

// end ends a pod's sandbox; whoever is to be told may be told before, after or never.
func (n *wholeNode) end(rt *rapid.T, i int) {
	id := n.sandboxes[i]
	if id == "" {
		return
	}
	told := rapid.SampledFrom([]string{"before", "after", "never"}).Draw(rt, "told")
	if told == "before" {
		_ = n.hands.Detach(n.t.Context(), id) // a failure is what comes later has to put right
	}
	n.machine.DestroyNamespace("/run/netns/" + id)
	delete(n.sandboxes, i)
	n.attached[i] = false
	if told == "after" {
		_ = n.hands.Detach(n.t.Context(), id)
	}
}

// check looks at I1 to I8 as far as they can be seen from outside.
func (n *wholeNode) check(rt *rapid.T) {
	holders := map[string]types.UID{}
	for _, a := range n.rows.Allocations() {
		if other, twice := holders[a.DeviceName]; twice {
			rt.Fatalf("device %s is prepared for %s and %s", a.DeviceName, other, a.ClaimUID)
		}
		holders[a.DeviceName] = a.ClaimUID
	}
	for i, c := range n.all {
		if !n.prepared[c.UID] {
			continue
		}
		for j, r := range c.Status.Allocation.Devices.Results {
			if holders[r.Device] != c.UID {
				rt.Fatalf("claim %s is prepared, and its device %s is %q's", c.Name, r.Device, holders[r.Device])
			}
			vf := slices.IndexFunc([]int{0, 1, 2, 3}, func(id int) bool { return deviceName(id) == r.Device })
			got, err := n.machine.VF(nodePF, vf)
			if errors.Is(err, kernel.ErrNoLink) { // who looks is told that, too
				continue
			}
			if err != nil || got.VLAN != 10*(i+1)+j {
				rt.Fatalf("claim %s is prepared, and VF %d is %+v, %v", c.Name, vf, got, err)
			}
			if !n.attached[i] {
				continue
			}
			ns := kernel.Namespace{Path: "/run/netns/" + n.sandboxes[i]}
			link, err := n.machine.Link(ns, fmt.Sprint("net", j))
			if err != nil || link.PCI != kerneltest.VFAddr(nodePF, vf) || !link.Up {
				rt.Fatalf("pod p%d has its devices, and net%d is %+v, %v", i, j, link, err)
			}
		}
	}
}

// dies ends the agent in the middle of a hand-over: nothing that it asks of the kernel from some step on
// is done, not even what is to be undone.
func (n *wholeNode) dies(rt *rapid.T, i int) {
	calls := []string{"Restore", "Rename", rapid.SampledFrom([]string{"Move net0", "Move net1", "SetUp"}).Draw(rt, "at")}
	for id := range vfs {
		calls = append(calls, fmt.Sprintf("Move ens1f0v%d", id))
	}
	for _, call := range calls {
		n.machine.Fail(call, errors.New(injected))
	}
	n.attach(i)
	n.stop()
	for _, call := range calls {
		n.machine.Fail(call, nil)
	}
	n.start()
}

// share has a second pod reserve a claim, or no longer reserve it.
func (n *wholeNode) share(i int) {
	c := n.all[i]
	n.api.set(func() {
		status := &n.api.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}].Status
		if len(status.ReservedFor) > 1 {
			status.ReservedFor = status.ReservedFor[:1]
		} else {
			status.ReservedFor = append(status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "stranger", UID: "uid-stranger"})
		}
	})
}

// stranger is the second pod of shared claims: nothing is prepared for it, and nothing is handed to it.
func (n *wholeNode) stranger(rt *rapid.T) {
	const path = "/run/netns/stranger"
	n.machine.AddNamespace(path)
	defer n.machine.DestroyNamespace(path)
	given, err := n.hands.Attach(n.t.Context(), handover.Sandbox{PodUID: "uid-stranger", ID: "stranger", Namespace: path})
	if err != nil || len(given) > 0 {
		rt.Fatalf("the second pod of a claim is given %v, %v", given, err)
	}
}

// T-68: pods and claims come and go, claims are shared, the agent dies, also in the middle of a
// hand-over, hardware refuses, goes for a while and is renamed, in any order. A device is of one claim, what is prepared
// is set up, what is handed over is in the pod, and when all is over the host is as it began.
func TestWholeNodeInAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newWholeNode(t)
		defer func() { n.stop() }()
		before := n.machine.Snapshot()
		pod := rapid.IntRange(0, 2)
		rt.Repeat(map[string]func(*rapid.T){
			"prepare":   func(rt *rapid.T) { n.prepare(pod.Draw(rt, "pod")) },
			"unprepare": func(rt *rapid.T) { _ = n.unprepare(pod.Draw(rt, "pod")) },
			"run":       func(rt *rapid.T) { n.run(pod.Draw(rt, "pod")) },
			"again":     func(rt *rapid.T) { n.attach(pod.Draw(rt, "pod")) },
			"end":       func(rt *rapid.T) { n.end(rt, pod.Draw(rt, "pod")) },
			"scan":      func(*rapid.T) { n.scan() },
			"crash": func(*rapid.T) {
				n.stop()
				n.start()
			},
			"fault": func(rt *rapid.T) {
				call := rapid.SampledFrom([]string{"Move", "SetVF", "Restore", "Rename", "SetUp", "Links"}).Draw(rt, "call")
				n.machine.Fail(call, errors.New(injected), rapid.IntRange(1, 3).Draw(rt, "times"))
			},
			"renamed": func(rt *rapid.T) {
				n.machine.RenamePF(nodePF, rapid.SampledFrom([]string{"ens1f0", "enp3s0"}).Draw(rt, "name"))
			},
			"flap": func(rt *rapid.T) { // the PF has no link for a while
				gone, times := fmt.Errorf("%s: %w", injected, kernel.ErrNoLink), rapid.IntRange(1, 4).Draw(rt, "times")
				n.machine.Fail("VF", gone, times)
				n.machine.Fail("SetVF", gone, times)
			},
			"dies":     func(rt *rapid.T) { n.dies(rt, pod.Draw(rt, "pod")) },
			"share":    func(rt *rapid.T) { n.share(pod.Draw(rt, "pod")) },
			"stranger": n.stranger,
			"mend":     func(*rapid.T) { n.mend() },
			"":         n.check,
		})
		n.mend()
		n.machine.RenamePF(nodePF, "ens1f0")
		for i, id := range n.sandboxes {
			n.machine.DestroyNamespace("/run/netns/" + id)
			delete(n.sandboxes, i)
		}
		for i := range n.all {
			if err := n.unprepare(i); err != nil {
				rt.Fatal(err)
			}
		}
		if diff := cmp.Diff(before, n.machine.Snapshot()); diff != "" {
			rt.Fatalf("the host (-before +after):\n%s", diff)
		}
		if rows := n.rows.Allocations(); len(rows) > 0 {
			rt.Fatalf("rows are left: %v", rows)
		}
	})
}

// mend ends the faults that were not met.
func (n *wholeNode) mend() {
	for _, call := range []string{"Move", "VF", "SetVF", "Restore", "Rename", "SetUp", "Links"} {
		n.machine.Fail(call, nil)
	}
}
