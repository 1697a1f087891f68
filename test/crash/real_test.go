// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package crash_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/test/binaries"
	"github.com/weftnet/weft/test/crash/ptrace"
)

const uplink = "uplink" // what macvlan stands on

// host is the namespace that weft-cni runs in.
func host(t *testing.T) *kernel.Netns {
	t.Helper()
	n, err := kernel.OpenNetns("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// newReal builds the tools, and skips where the kernel lacks what the plugins make.
func newReal(t *testing.T) (tools, *kernel.Netns) {
	t.Helper()
	kerneltest.Need(t)
	h := host(t)
	for _, kind := range []string{"bridge", "veth", "macvlan"} {
		switch can, err := h.CanMake(kind); {
		case err != nil:
			t.Fatal(err)
		case !can:
			t.Skipf("kernel: it has no links of kind %s", kind)
		}
	}
	weft := binaries.Weft(t)
	tl := tools{weft: filepath.Join(weft, "weft-cni"), path: weft + ":" + binaries.Plugins(t)}
	needPtrace(t, tl)
	return tl, h
}

// TestCrashOfRealPlugins is the same walk with bridge, macvlan and host-local, so that links
// and addresses are what may be left.
func TestCrashOfRealPlugins(t *testing.T) {
	tl, h := newReal(t)
	if err := h.AddBridge(uplink); err != nil {
		t.Fatal(err)
	}
	if err := h.SetUp(uplink, true); err != nil {
		t.Fatal(err)
	}
	before := linkNames(t, h)
	var bridges atomic.Int64
	scene := func(t *testing.T, tl tools) *scene {
		t.Helper()
		return realPlugins(t, tl, h, fmt.Sprintf("weft%d", bridges.Add(1)))
	}
	runWalks(t, tl, []walk{
		{name: "ADD then DEL", scene: scene, kill: "ADD", after: []string{"DEL"}, every: 5},
		{name: "ADD then GC", scene: scene, kill: "ADD", after: []string{"GC"}, every: 10},
		{name: "ADD then ADD and DEL", scene: scene, kill: "ADD", after: []string{"ADD", "DEL"}, every: 10},
		{name: "DEL then DEL", scene: scene, before: []string{"ADD"}, kill: "DEL", after: []string{"DEL"}, every: 8},
		{name: "GC then GC", scene: scene, before: []string{"ADD"}, kill: "GC", after: []string{"GC"}, every: 10},
	}, 60)
	if after := linkNames(t, h); !slices.Equal(after, before) {
		t.Errorf("the host has the links %v, had %v", after, before)
	}
}

// TestCrashOfRoutes kills orders of an agent to give a running pod a network that takes its default
// route, to take it away, and to give it another one that takes the route over. The next order leaves the
// pod with the default route that it asks for, DEL and GC leave nothing.
func TestCrashOfRoutes(t *testing.T) {
	tl, h := newReal(t)
	before := linkNames(t, h)
	var bridges atomic.Int64
	const none, two, three = "", `[{"name":"neta","interface":"two","default-route":["10.78.0.1"]}]`,
		`[{"name":"netb","interface":"three","default-route":["10.79.0.1"]}]`
	routed := func(was, is string) func(t *testing.T, tl tools) *scene {
		return func(t *testing.T, tl tools) *scene {
			t.Helper()
			s := realPlugins(t, tl, h, fmt.Sprintf("weft%d", bridges.Add(1)))
			pod, err := kernel.OpenNetns(s.netns)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { pod.Close() })
			s.confs[0]["ipam"].(map[string]any)["routes"] = []any{map[string]any{"dst": "0.0.0.0/0"}}
			// A bridge each: with every new port its MAC may be another, which the plugin's CHECK minds.
			for _, conf := range s.confs[1:] {
				conf["type"], conf["bridge"] = "bridge", fmt.Sprintf("weft%d", bridges.Add(1))
				removeBridge(t, h, conf["bridge"].(string))
			}
			s.listens(t, was, is)
			s.plug.real = true
			s.present = func(t *testing.T, s *scene) {
				t.Helper()
				links, route := []string{"eth0", "lo"}, "10.77.0.1 eth0"
				switch s.plug.asked {
				case two:
					links, route = append(links, "two"), "10.78.0.1 two"
				case three:
					links, route = append(links, "three"), "10.79.0.1 three"
				}
				if got := linkNames(t, pod); !slices.Equal(got, links) {
					t.Errorf("the pod has the links %v, asks for %v", got, links)
				}
				if got := defaultRoutes(t, pod); got != route {
					t.Errorf("the pod has the default routes %q, asks for %q", got, route)
				}
			}
			return s
		}
	}
	change := []string{"ADD", asks}
	again := []string{applied, "CHECK", "DEL"}
	back := append([]string{asksBack}, again...)
	runWalks(t, tl, []walk{
		{name: "comes then apply", scene: routed(none, two), before: change, kill: applied, after: again, every: 8, from: firstAsked},
		{name: "comes then goes", scene: routed(none, two), before: change, kill: applied, after: back, every: 2, from: firstAsked},
		{name: "goes then apply", scene: routed(two, none), before: change, kill: applied, after: again, every: 3, from: firstAsked},
		{name: "another comes then apply", scene: routed(two, three), before: change, kill: applied, after: again, every: 7, from: firstAsked},
		{name: "another comes then goes", scene: routed(two, three), before: change, kill: applied, after: back, every: 5, from: firstAsked},
		{name: "another comes then DEL", scene: routed(two, three), before: change, kill: applied, after: []string{"DEL"}, every: 25, from: firstAsked},
		{name: "comes then GC", scene: routed(none, two), before: change, kill: applied, after: []string{"GC"}, every: 15, from: firstAsked},
	}, 70)
	if after := linkNames(t, h); !slices.Equal(after, before) {
		t.Errorf("the host has the links %v, had %v", after, before)
	}
}

// firstAsked is the first call that asks the kernel for anything by netlink, as all that is done to routes.
func firstAsked(calls []ptrace.Call) int {
	return 1 + slices.IndexFunc(calls, func(c ptrace.Call) bool { return c.Name == "sendto" })
}

// defaultRoutes are those of IPv4, each "gateway link".
func defaultRoutes(t *testing.T, n *kernel.Netns) string {
	t.Helper()
	routes, err := n.DefaultRoutes(kernel.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range routes {
		for _, hop := range r.Hops {
			out = append(out, hop.Gateway.String()+" "+hop.Link)
		}
	}
	return strings.Join(out, ",")
}

// realPlugins makes a scene: two interfaces on a bridge and a macvlan, addresses of host-local.
func realPlugins(t *testing.T, tl tools, h *kernel.Netns, bridge string) *scene {
	t.Helper()
	s := newScene(t, tl)
	pod := kerneltest.Netns(t)
	s.netns = pod.Path()
	conf := func(name, subnet string, more map[string]any) map[string]any {
		more["cniVersion"], more["name"] = "1.1.0", name
		more["ipam"] = map[string]any{
			"type": "host-local", "dataDir": s.at("data"),
			"ranges": []any{[]any{map[string]any{"subnet": subnet}}},
		}
		return more
	}
	s.networks(t,
		conf("defnet", "10.77.0.0/24", map[string]any{"type": "bridge", "bridge": bridge}),
		conf("neta", "10.78.0.0/24", map[string]any{"type": "bridge", "bridge": bridge}),
		conf("netb", "10.79.0.0/24", map[string]any{"type": "macvlan", "master": uplink}),
	)
	removeBridge(t, h, bridge)
	s.present = func(t *testing.T, s *scene) {
		t.Helper()
		if got, want := linkNames(t, pod), []string{"eth0", "lo", "net1", "net2"}; !slices.Equal(got, want) {
			t.Errorf("after ADD the pod has the links %v, want %v", got, want)
		}
		if got, want := addresses(t, s), []string{"defnet", "neta", "netb"}; !slices.Equal(got, want) {
			t.Errorf("after ADD networks %v hold an address, want %v", got, want)
		}
	}
	s.clean = func(t *testing.T, s *scene) {
		t.Helper()
		// Every link that a plugin makes has an end in the pod, from its birth on.
		if got := linkNames(t, pod); !slices.Equal(got, []string{"lo"}) {
			t.Errorf("left in the pod: links %v", got)
		}
		if got := addresses(t, s); len(got) > 0 {
			t.Errorf("left: addresses of %v", got)
		}
	}
	return s
}

// removeBridge has the bridge of a scene go with it: the plugin leaves it to the next pod. A scene may
// have made none.
func removeBridge(t *testing.T, h *kernel.Netns, bridge string) {
	t.Helper()
	t.Cleanup(func() {
		if slices.Contains(linkNames(t, h), bridge) {
			if err := h.RemoveLink(bridge); err != nil {
				t.Error(err)
			}
		}
	})
}

func linkNames(t *testing.T, n *kernel.Netns) []string {
	t.Helper()
	links, err := n.Links()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

// addresses names the network of every address that host-local has given: a file each,
// beside its lock and its memory of the last one.
func addresses(t *testing.T, s *scene) []string {
	t.Helper()
	var out []string
	for _, network := range files(t, s.at("data")) {
		for _, f := range files(t, s.at("data/"+network)) {
			if f != "lock" && !strings.HasPrefix(f, "last_reserved_ip") {
				out = append(out, network)
			}
		}
	}
	return out
}
