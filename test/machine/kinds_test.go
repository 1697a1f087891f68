// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
)

// kind is a type of network that the ordinary test kernel has no links for.
type kind struct {
	name string
	link string // the kernel's kind of the pod's interface
	// conf is the network on one of the cards, which are wired to each other.
	conf  func(n *node, card string) map[string]any
	alone bool // nothing leaves it
	// unchecked: CHECK must not be called.
	unchecked bool
	check     func(t *testing.T, p pod)
}

func kinds() []kind {
	return []kind{
		{name: "vlan", link: "vlan", conf: func(n *node, card string) map[string]any {
			return n.ipam("net-vlan", "10.78.0.0/24", map[string]any{"type": "vlan", "master": card, "vlanId": 100})
		}, check: func(t *testing.T, p pod) {
			t.Helper()
			if out := ip(t, p, "-d link show net1"); !strings.Contains(out, "802.1Q id 100") {
				t.Errorf("net1 is not in VLAN 100:\n%s", out)
			}
		}},
		{name: "ipvlan", link: "ipvlan", conf: func(n *node, card string) map[string]any {
			return n.ipam("net-ipvlan", "10.78.0.0/24", map[string]any{"type": "ipvlan", "master": card, "mode": "l2"})
		}},
		{name: "dummy", link: "dummy", alone: true, conf: func(n *node, _ string) map[string]any {
			return n.ipam("net-dummy", "10.78.0.0/24", map[string]any{"type": "dummy"})
		}},
		// CHECK of every plugin looks for the way to its addresses in the pod's own table, where a VRF has
		// none: who combines them has to say disableCheck.
		{name: "vrf", link: "macvlan", unchecked: true, conf: func(n *node, card string) map[string]any {
			return named("net-vrf", map[string]any{"disableCheck": true, "plugins": []any{
				n.ipam("net-vrf", "10.78.0.0/24", map[string]any{"type": "macvlan", "master": card}),
				map[string]any{"type": "vrf", "vrfname": "blue", "table": 1078},
			}})
		}, check: func(t *testing.T, p pod) {
			t.Helper()
			if l := p.links(t)["blue"]; l.Kind != "vrf" || !l.Up {
				t.Errorf("the VRF is %+v", l)
			}
			if out := ip(t, p, "route show table 1078"); !strings.Contains(out, "10.78.0.0/24 dev net1") {
				t.Errorf("the VRF's table has no route to the network:\n%s", out)
			}
			if out := ip(t, p, "route show"); strings.Contains(out, "net1") {
				t.Errorf("the pod's own table has a route through net1:\n%s", out)
			}
		}},
	}
}

// Every kind of link that the ordinary kernel lacks: it is made with an address, is reported as it
// is, works, is checked, and goes without a trace.
func TestKinds(t *testing.T) {
	c := openCards(t, 0)
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			c := &cards{Machine: c.Machine, t: t, pfs: c.pfs}
			n := newNode(t, t.TempDir())
			before := c.snapshot()
			pods := []pod{n.pod("a", "here"), n.pod("b", "there")}
			n.nad("here", k.conf(n, c.pf(0)), "")
			n.nad("there", k.conf(n, c.pf(1)), "")
			for i, network := range []string{"default/here", "default/there"} {
				n.add(pods[i], "net1", network, k.link)
				if k.check != nil {
					k.check(t, pods[i])
				}
			}
			if !k.alone {
				talk(t, "net1", pods...)
			}
			if n.ok("CHECK", pods[0]); !k.unchecked {
				n.checked(pods[0], "net1")
			}
			for _, p := range pods {
				n.ok("DEL", p)
			}
			n.wantNothing(pods...)
			c.unchanged(before)
		})
	}
}

// add attaches a pod and looks at one of its interfaces: what ADD prints is of the pod network, and
// the same again when it is repeated.
func (n *node) add(p pod, ifName, network, link string) kernel.Link {
	n.t.Helper()
	out := n.ok("ADD", p)
	var result struct {
		Interfaces []struct{ Name, Sandbox string }
		IPs        []struct{ Address string }
	}
	must(n.t, json.Unmarshal([]byte(out), &result))
	own := address(n.t, p, "eth0").String()
	if len(result.IPs) != 1 || result.IPs[0].Address != own ||
		!slices.ContainsFunc(result.Interfaces, func(i struct{ Name, Sandbox string }) bool { return i.Name == "eth0" && i.Sandbox == p.netns }) {
		n.t.Errorf("ADD of pod %s, whose eth0 has %s, prints %s", p.name, own, out)
	}
	if again := n.ok("ADD", p); again != out {
		n.t.Errorf("ADD again prints %s", again)
	}
	l := n.wantStatus(p, ifName, network)
	if l.Kind != link {
		n.t.Errorf("%s of pod %s is %+v, not of kind %s", ifName, p.name, l, link)
	}
	return l
}

// checked looks whether CHECK sees that an interface is not in order any more.
func (n *node) checked(p pod, ifName string) {
	n.t.Helper()
	ip(n.t, p, fmt.Sprintf("addr del %s dev %s", address(n.t, p, ifName), ifName))
	n.refused("CHECK", p, ifName)
}

// CHECK of the plugin vrf itself, behind one without addresses.
func TestCheckOfVRF(t *testing.T) {
	c := openCards(t, 0)
	n := newNode(t, t.TempDir())
	n.nad("blue", named("net-blue", map[string]any{"plugins": []any{
		map[string]any{"type": "macvlan", "master": c.pf(0)}, map[string]any{"type": "vrf", "vrfname": "blue"},
	}}), "")
	p := n.pod("a", "blue")
	n.ok("ADD", p)
	n.ok("CHECK", p)
	ip(t, p, "link set net1 nomaster")
	n.refused("CHECK", p, "vrf")
	n.ok("DEL", p)
	n.wantNothing(p)
}

// A bond needs interfaces of the same pod, which the networks before it have made.
func TestBond(t *testing.T) {
	c := openCards(t, 0)
	n := newNode(t, t.TempDir(), bondDir(t))
	before := c.snapshot()
	for i, name := range []string{"one", "two"} {
		n.nad(name, named("net-"+name, map[string]any{"type": "macvlan", "master": c.pf(i)}), "")
	}
	n.nad("bond", n.ipam("net-bond", "10.78.0.0/24", map[string]any{
		"type": bondType, "mode": "active-backup", "failOverMac": 1, "miimon": "100", "linksInContainer": true,
		"links": []any{map[string]any{"name": "net1"}, map[string]any{"name": "net2"}},
	}), "")
	n.nad("peer", n.ipam("net-bond", "10.78.0.0/24", map[string]any{"type": "macvlan", "master": c.pf(0)}), "")

	early := n.pod("early", "bond,one,two")
	n.refused("ADD", early, "links: net1")
	n.wantNothing(early)

	// The peer is on the same wire as both legs, and its interface has the bond's name.
	pods := []pod{n.pod("bonded", "one,two,bond"), n.pod("peer", "peer@net3")}
	n.add(pods[0], "net3", "default/bond", "bond")
	n.add(pods[1], "net3", "default/peer", "macvlan")
	for _, leg := range []string{"net1", "net2"} {
		if out := ip(t, pods[0], "link show master net3"); !strings.Contains(out, leg+"@") {
			t.Errorf("%s is not in the bond:\n%s", leg, out)
		}
	}
	talk(t, "net3", pods...)
	ip(t, pods[0], "link set net1 down") // the other leg takes over
	talk(t, "net3", pods...)
	ip(t, pods[0], "link set net1 up")
	n.ok("CHECK", pods[0])
	ip(t, pods[0], "link set net2 nomaster")
	n.refused("CHECK", pods[0], "net2")
	for _, p := range pods {
		n.ok("DEL", p)
	}
	n.wantNothing(pods...)
	c.unchanged(before)
}
