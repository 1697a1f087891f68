// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/guest"
)

// One machine, since a guest takes its time to start: as a libvirt alone shows it, where a
// virt-handler writes the status, and where the agent does.
func TestMachine(t *testing.T) {
	namespace := lab.Namespace(t)
	uid := launcherPod(t, namespace)
	p := launcher(t, uid)
	first := guest.NIC{Name: "default", MAC: "02:00:00:00:00:01"}
	second := guest.NIC{Name: "red", MAC: "02:00:00:00:00:02"}
	started := start(t, p, namespace+"_"+name, first, second)
	vmi(t, namespace, uid)
	program(t, "weft")
	program(t, "weft-agent")
	g := started()
	t.Run("without Kubernetes", func(t *testing.T) { plainLibvirt(t, p, g) })
	t.Run("observe", func(t *testing.T) { observe(t, namespace) })
	t.Run("publish", func(t *testing.T) { publish(t, namespace, p, g, second) })
}

// atOnce does in a guest what it is told a line each, so that the agent, which looks every second, seldom
// sees a part of it, which would be written.
const atOnce = "ip -batch -"

// publish: what happens to a machine, one thing after the other, as the agent sees it that finds
// libvirt in the launcher's pod by itself and writes the status. Writes are paced: after the first few
// each waits for its turn, so what has nothing written comes where one would be waited for, and what can
// be seen in one write is one change.
func publish(t *testing.T, namespace string, p *guest.Pod, g *guest.Guest, second guest.NIC) {
	t.Helper()
	a := startAgent(t, "publish")
	s := scenes{t: t, agent: a, guest: g, pod: p, status: status(t, namespace)}

	t.Run("addresses", func(t *testing.T) {
		s.expect(t, "both interfaces have name and address", func(m machine) bool {
			e, _ := m.entry("default")
			r, _ := m.entry("red")
			return len(m.Interfaces) == 2 && m.Interfaces[0].Name == "default" && e.IP == "10.244.0.9" && e.InterfaceName == "eth0" &&
				e.InfoSource == "domain, guest-agent" && r.IP == "192.0.2.7" && r.InterfaceName == "eth1" && strings.Contains(r.InfoSource, "multus-status")
		})
		if out := kubectl(t, "", "get", "vmi", "-n", namespace, name); !strings.Contains(out, "10.244.0.9") {
			t.Errorf("kubectl get vmi shows no address of the primary network:\n%s", out)
		}
	})
	t.Run("written once", func(t *testing.T) {
		before := version(t, namespace)
		do(t, g, "sleep 5") // several polls
		if now := version(t, namespace); now != before {
			t.Errorf("the object went from version %s to %s although nothing changed", before, now)
		}
	})
	t.Run("address added and removed", func(t *testing.T) {
		do(t, g, "ip link add extra type veth peer name extra2; ip addr add 198.51.100.7/24 dev extra")
		s.expect(t, "the new address is there", func(m machine) bool { return hasGuestOnly(m, "extra", "198.51.100.7") })
		do(t, g, "ip addr del 198.51.100.7/24 dev extra")
		s.expect(t, "the address has gone", func(m machine) bool { return !hasGuestOnly(m, "extra", "198.51.100.7") })
	})
	t.Run("15 veth pairs", func(t *testing.T) {
		do(t, g, "{ echo link del extra; for i in $(seq 15); do echo link add va$i type veth peer name vb$i; done; echo addr add 203.0.113.9/24 dev vb15; } | "+atOnce)
		m := s.expect(t, "ten of them are shown, the one with an address first of all", func(m machine) bool {
			return len(m.Interfaces) == 12 && hasGuestOnly(m, "vb15", "203.0.113.9")
		})
		if seen, err := a.get(t)(); err != nil || !seen.warned("guest-only-limit") {
			t.Errorf("%+v, %v: no warning that some were left out; the status is %v", seen, err, m.Interfaces)
		}
	})
	t.Run("paused", func(t *testing.T) { s.pause(t) })
	t.Run("record and replay", func(t *testing.T) { s.record(t, namespace) })
	t.Run("bridge and VLAN over the NIC", func(t *testing.T) { // once they are there the pairs go
		do(t, g, "{ echo link add br0 type bridge; echo link set br0 address 02:00:00:00:00:02; echo addr del 10.0.16.15/24 dev eth1; echo link set eth1 master br0; echo addr add 10.0.16.15/24 dev br0; "+
			"echo link set br0 up; echo link add link br0 name br0.100 type vlan id 100; echo addr add 172.16.0.5/24 dev br0.100; echo link set br0.100 up; "+
			"for i in $(seq 15); do echo link del va$i; done; } | "+atOnce)
		look := func(m machine) bool {
			r, _ := m.entry("red")
			return len(m.Interfaces) == 2 && r.InterfaceName == "eth1" && r.IP == "192.0.2.7"
		}
		s.expect(t, "the pairs have gone, and the NIC keeps its name", look)
		do(t, g, "ip link del br0; ip addr add 10.0.16.15/24 dev eth1")
		s.expect(t, "all is as before", look)
	})
	t.Run("NIC unplugged and plugged", func(t *testing.T) { s.plug(t, second) })
	t.Run("agent stopped and started", func(t *testing.T) {
		s.agentAway(t, func() {
			t.Run("link", func(t *testing.T) { s.link(t, second) })
		})
	})
	t.Run("libvirtd killed", func(t *testing.T) { s.libvirtKilled(t) })
}

// scenes are what the subtests share.
type scenes struct {
	t      *testing.T
	agent  agent
	guest  *guest.Guest
	pod    *guest.Pod
	status func() (machine, error)
}

// expect waits until the status that is written is as wanted.
func (s scenes) expect(t *testing.T, what string, wanted func(machine) bool) machine {
	t.Helper()
	return eventually(t, what, s.status, wanted)
}

func hasGuestOnly(m machine, link, ip string) bool {
	for _, e := range m.Interfaces {
		if e.Name == "" && e.InterfaceName == link && e.IP == ip && e.InfoSource == "guest-agent" {
			return true
		}
	}
	return false
}

func (s scenes) link(t *testing.T, nic guest.NIC) {
	t.Helper()
	for _, up := range []bool{false, true} {
		must(t, func(ctx context.Context) error { return s.guest.SetLink(ctx, nic, up) })
		want := map[bool]string{true: "up", false: "down"}[up]
		s.expect(t, "the link is "+want, func(m machine) bool {
			e, _ := m.entry(nic.Name)
			return e.LinkState == want
		})
	}
}

func (s scenes) plug(t *testing.T, nic guest.NIC) {
	t.Helper()
	must(t, func(ctx context.Context) error { return s.guest.Unplug(ctx, nic) })
	s.expect(t, "it is Multus' alone", func(m machine) bool {
		e, ok := m.entry(nic.Name)
		return ok && e.InfoSource == "multus-status" && e.InterfaceName == ""
	})
	must(t, func(ctx context.Context) error { return s.guest.Plug(ctx, nic) })
	s.expect(t, "it is back", func(m machine) bool {
		e, _ := m.entry(nic.Name)
		return e.MAC == nic.MAC && strings.Contains(e.InfoSource, "domain, guest-agent")
	})
}

func (s scenes) pause(t *testing.T) {
	t.Helper()
	before := s.expect(t, "there is a status", func(m machine) bool { return len(m.Interfaces) > 0 })
	must(t, func(ctx context.Context) error { return s.guest.Pause(ctx, true) })
	m := eventually(t, "the machine is paused", s.agent.get(t), func(m machine) bool { return m.State == "paused" && m.Agent == "silent" })
	if !m.warned("stale-agent") {
		t.Errorf("nothing says that the guest's data is old: %+v", m.Warnings)
	}
	if e, _ := m.entry("default"); e.InterfaceName != "eth0" {
		t.Errorf("%v, want what the guest said last", e)
	}
	must(t, func(ctx context.Context) error { return s.guest.Pause(ctx, false) })
	eventually(t, "it runs again", s.agent.get(t), func(m machine) bool { return m.State == "running" && m.Agent == "connected" })
	s.expect(t, "the status is the same", func(m machine) bool { return len(m.Interfaces) == len(before.Interfaces) })
}

func (s scenes) record(t *testing.T, namespace string) {
	t.Helper()
	out, err := weft(t, "vmi", "record", namespace+"/"+name, "--socket", s.agent.socket)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, part := range []string{"domainXML", "guestAgent", "virt-launcher-" + name} {
		if !strings.Contains(out, part) {
			t.Errorf("the bundle has no %s:\n%s", part, out)
		}
	}
	shown, err := s.agent.get(t)()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(shown.Interfaces, replayed(t, out)); d != "" {
		t.Errorf("what was recorded gives another status (-shown +replayed):\n%s", d)
	}
	out, err = weft(t, "vmi", "record", namespace+"/"+name, "--socket", s.agent.socket, "--anonymize")
	if err != nil || strings.Contains(out, "10.244.0.9") {
		t.Errorf("with pseudonyms (%v):\n%s", err, out)
	}
	names := cmpopts.IgnoreFields(entry{}, "MAC", "IP", "IPs")
	if d := cmp.Diff(shown.Interfaces, replayed(t, out), names); d != "" {
		t.Errorf("with pseudonyms it gives another status (-shown +replayed):\n%s", d)
	}
	out, err = weft(t, "explain", "vmi", namespace+"/"+name, "--socket", s.agent.socket)
	if !strings.Contains(out, "eth0") {
		t.Errorf("explain says (%v):\n%s", err, out)
	}
}

// replayed is the status that a bundle gives.
func replayed(t *testing.T, bundle string) []entry {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bundle.yaml")
	if err := os.WriteFile(file, []byte(bundle), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := weft(t, "vmi", "replay", "-f", file, "-o", "json")
	var status struct {
		Interfaces []entry `json:"interfaces"`
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &status)); err != nil {
		t.Fatalf("replay: %v: %s", err, out)
	}
	return status.Interfaces
}

// agentAway stops the guest's agent until its data is dropped, which takes a minute. What libvirt
// itself knows is seen meanwhile.
func (s scenes) agentAway(t *testing.T, meanwhile func()) {
	t.Helper()
	do(t, s.guest, "agent_stop")
	meanwhile()
	s.expect(t, "what the guest said is dropped", func(m machine) bool {
		e, _ := m.entry("default")
		return e.InterfaceName == "" && e.InfoSource == "domain" && e.IP == "10.244.0.9"
	})
	do(t, s.guest, "agent_start")
	s.expect(t, "the agent is back", func(m machine) bool {
		e, _ := m.entry("default")
		return e.InterfaceName == "eth0" && e.InfoSource == "domain, guest-agent"
	})
}

func (s scenes) libvirtKilled(t *testing.T) {
	t.Helper()
	must(t, s.pod.KillLibvirt)
	m := eventually(t, "the agent says so", s.agent.get(t), func(m machine) bool { return m.Fault != "" })
	if e, _ := m.entry("default"); !m.warned("source-unreadable") || e.IP != "10.244.0.9" {
		t.Errorf("%+v, want the last good values and a warning", m)
	}
	must(t, s.pod.StartLibvirt)
	eventually(t, "it is asked again", s.agent.get(t), func(m machine) bool { return m.Fault == "" && m.Agent == "connected" })
}

// observe: where a virt-handler writes the status nothing is written, and what differs is told.
func observe(t *testing.T, namespace string) {
	t.Helper()
	before := version(t, namespace)
	a := startAgent(t, "observe")
	m := eventually(t, "the machine is known and differs", a.get(t), func(m machine) bool {
		return m.State == "running" && len(m.Interfaces) == 2 && m.Interfaces[0].InterfaceName == "eth0" && len(m.Differs) == 2
	})
	if m.Pod != "virt-launcher-"+name {
		t.Errorf("its pod is %q", m.Pod)
	}
	if n := a.metric(t, "weft_vmi_differs"); n != "1" {
		t.Errorf("weft_vmi_differs is %q, want 1", n)
	}
	if now := version(t, namespace); now != before {
		t.Errorf("the object went from version %s to %s", before, now)
	}
}
