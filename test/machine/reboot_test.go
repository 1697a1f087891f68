// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/test/binaries"
)

// disk is the machine's disk, which all boots have one after the other.
const disk = "/disk"

// How many addresses the networks have whose pods a reboot ends: all are taken. The sweep needs more
// than one call for those that are left to it.
const held, collectedHeld = 6, 2

// sweepBound is how many records a call may undo after its own work.
const sweepBound = 4

// A reboot ends sandboxes that nobody deletes, in the middle of an ADD as well. What is on record of
// them is undone by later calls, a few each, or by GC that names none; their addresses are free again,
// and what lives is left alone.
func TestReboot(t *testing.T) {
	needMachine(t)
	switch boot := os.Getenv("WEFT_VM_BOOT"); boot {
	case "1":
		t.Run("before", beforeReboot)
	case "2":
		before, err := os.ReadFile(filepath.Join(disk, "boot"))
		must(t, err)
		if string(before) == journal.BootID() {
			t.Fatal("this is the boot of the first half")
		}
		t.Run("swept", afterReboot)
		t.Run("collected", collectAfterReboot)
	default:
		t.Fatalf("WEFT_VM_BOOT is %q: neither half can run", boot)
	}
}

// sweptNode is left to the sweep, collectedNode to GC.
func sweptNode(t *testing.T) *node {
	t.Helper()
	return newNode(t, filepath.Join(disk, "swept"))
}

func collectedNode(t *testing.T) *node {
	t.Helper()
	return newNode(t, filepath.Join(disk, "collected"), binaries.Delegate(t, "slow"))
}

func beforeReboot(t *testing.T) {
	must(t, os.WriteFile(filepath.Join(disk, "boot"), []byte(journal.BootID()), 0o600))
	swept, collected := sweptNode(t), collectedNode(t)
	for n, held := range map[*node]int{swept: held, collected: collectedHeld} {
		n.nad("few", named("net-few", n.addresses(map[string]any{
			"subnet": "10.79.0.0/24", "rangeStart": "10.79.0.2", "rangeEnd": fmt.Sprintf("10.79.0.%d", 1+held),
		}, map[string]any{"type": "dummy"})), "")
		for i := range held {
			n.ok("ADD", n.lasting(fmt.Sprintf("p%d", i), "few"))
		}
		n.refused("ADD", n.lasting("late", "few"), "no IP addresses available")
	}
	c := openCards(t, 1)
	collected.nad("vf", collected.ipam("net-vf", "10.80.0.0/24", map[string]any{
		"type": "host-device", "pciBusID": c.vfs()[0],
	}), "")
	collected.ok("ADD", collected.lasting("vf", "vf"))
	collected.hang()
	for _, n := range []*node{swept, collected} {
		t.Logf("%s: records %v, addresses %v", n.dir, n.records(), n.leases())
	}
}

// lasting writes a pod whose sandbox lasts as long as the machine.
func (n *node) lasting(name, networks string) pod {
	n.t.Helper()
	p := n.pod(name, networks)
	p.netns = filepath.Join("/run/netns", filepath.Base(n.dir)+"-"+name)
	ns, err := kernel.CreateNetns(p.netns)
	must(n.t, err)
	must(n.t, ns.Close())
	return p
}

// hang begins an ADD that the machine's end interrupts.
func (n *node) hang() {
	n.t.Helper()
	log := n.at("slow.jsonl")
	must(n.t, os.MkdirAll(n.at("hold"), 0o700))
	n.nad("slow", named("net-slow", map[string]any{
		"type": "slow", "log": log, "hold": n.at("hold"), "sleep": map[string]any{"ADD": "1h"},
	}), "")
	conf := n.conf
	n.conf = maps.Clone(conf)
	n.conf["timeout"] = "1h"
	cmd := n.command(context.Background(), "ADD", n.lasting("slow", "slow")) //nolint:usetesting // it outlives the test
	n.conf = conf
	must(n.t, cmd.Start())
	eventually(n.t, "the delegate's call", func() bool {
		_, err := os.Stat(log)
		return err == nil
	})
}

// again is a new sandbox of a pod, as the kubelet makes one after a reboot.
func (n *node) again(name string, attempt int) pod {
	n.t.Helper()
	return pod{name: name, sandbox: fmt.Sprintf("sandbox-%s-%d", name, attempt), netns: kerneltest.NetnsThatGoes(n.t)}
}

// dead are those records that are of the first boot.
func (n *node) dead() []string {
	return slices.DeleteFunc(n.records(), func(s string) bool { return strings.Count(s, "-") > 1 })
}

func afterReboot(t *testing.T) {
	n := sweptNode(t)
	taken := n.leases()["net-few"]
	if len(n.dead()) != held || len(taken) != held {
		t.Fatalf("the disk has the records %v and the addresses %v", n.records(), taken)
	}
	// All addresses are held by the dead: the first call's sweep frees what later ones get.
	n.refused("ADD", n.again("p0", 1), "no IP addresses available")
	// Not how many it undid: a sweep has two seconds, in which a busy emulator may come to nothing.
	if left := len(n.dead()); left < held-sweepBound {
		t.Errorf("one call left %d of %d dead records, and may undo %d", left, held, sweepBound)
	}
	live, links := n.revive(t)
	if left := n.dead(); len(left) > 0 {
		t.Fatalf("left: dead records %v", left)
	}
	if diff := cmp.Diff(taken, n.leases()["net-few"]); diff != "" {
		t.Errorf("the living have other addresses than the dead had (-dead +living):\n%s", diff)
	}

	// What a runtime may still say of the dead, and what it says of the living.
	n.ok("DEL", pod{name: "p0", sandbox: "sandbox-p0", netns: "/run/netns/swept-p0"})
	n.ok("GC", pod{name: "any"}, live...)
	for i, p := range live {
		unchanged(t, p, links[i])
		n.ok("CHECK", p)
	}
	for _, p := range live {
		n.ok("DEL", p)
	}
	n.wantNothing(live...)
}

// revive makes new sandboxes of all pods, each time a new one until there is an address for it, and
// gives them with their links as ADD made them.
func (n *node) revive(t *testing.T) (live []pod, links []map[string]kernel.Link) {
	t.Helper()
	attempt := 1
	eventually(t, "all pods living and no dead one on record", func() bool {
		attempt++
		before := len(n.dead())
		i := min(len(live), held-1)
		p := n.again(fmt.Sprintf("p%d", i), attempt)
		if len(live) == held {
			p = live[i] // ADD again is a call as well
		}
		_, err := n.call("ADD", p)
		switch {
		case err != nil && !strings.Contains(err.Error(), "no IP addresses available"):
			t.Fatal(err)
		case err == nil && len(live) < held:
			live, links = append(live, p), append(links, p.links(t))
		}
		if after := len(n.dead()); before-after > sweepBound {
			t.Errorf("one call undid %d records, and may undo %d", before-after, sweepBound)
		}
		return len(live) == held && len(n.dead()) == 0
	})
	return live, links
}

// unchanged compares a pod's links with what they were.
func unchanged(t *testing.T, p pod, before map[string]kernel.Link) {
	t.Helper()
	// Carrier and link-local addresses come by themselves.
	ignore := cmp.Options{cmpopts.IgnoreFields(kernel.Link{}, "Running", "Addrs")}
	now := p.links(t)
	if diff := cmp.Diff(before, now, ignore); diff != "" {
		t.Errorf("pod %s (-before +after):\n%s", p.name, diff)
	}
	for name := range before {
		if name != "lo" && address(t, p, name) != before[name].Addrs[0] {
			t.Errorf("%s of pod %s has %v, had %v", name, p.name, now[name].Addrs, before[name].Addrs)
		}
	}
}

func collectAfterReboot(t *testing.T) {
	n := collectedNode(t)
	if dead := n.dead(); len(dead) != collectedHeld+2 {
		t.Fatalf("the disk has the records %v", dead)
	}
	// There are no virtual functions yet, and host-device cannot do without: that one record waits, and
	// holds nobody's address.
	n.refused("GC", pod{name: "all"}, "default/vf")
	if left := n.records(); !slices.Equal(left, []string{"sandbox-vf"}) || len(n.leases()) > 0 {
		t.Errorf("left: records %v, addresses %v", left, n.leases())
	}
	c := openCards(t, 1)
	n.ok("GC", pod{name: "all"})
	// The mark for the sweep, which tried as well, outlasts its record; later calls find that out.
	eventually(t, "no mark without a record", func() bool {
		n.ok("DEL", pod{name: "unknown", sandbox: "sandbox-unknown"})
		left, err := filepath.Glob(n.at("state/sweep/*"))
		must(t, err)
		return len(left) == 0
	})
	n.wantNothing()
	if left, err := filepath.Glob(n.at("hold/*")); err != nil || len(left) > 0 {
		t.Errorf("the delegate of the interrupted ADD holds %v, %v", left, err)
	}
	log, err := os.ReadFile(n.at("slow.jsonl"))
	must(t, err)
	if !strings.Contains(string(log), `"command":"DEL"`) {
		t.Errorf("the delegate of the interrupted ADD was not told DEL:\n%s", log)
	}

	before := c.snapshot()
	pods := []pod{n.again("p0", 1), n.again("vf", 1)}
	for i, network := range []string{"few", "vf"} {
		n.ok("ADD", pods[i])
		n.wantStatus(pods[i], "net1", "default/"+network)
	}
	for _, p := range pods {
		n.ok("DEL", p)
	}
	n.wantNothing(pods...)
	c.unchanged(before)
}
