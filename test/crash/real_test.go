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

// TestCrashOfRealPlugins is the same walk with bridge, macvlan and host-local, so that links
// and addresses are what may be left.
func TestCrashOfRealPlugins(t *testing.T) {
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
	if err := h.AddBridge(uplink); err != nil {
		t.Fatal(err)
	}
	if err := h.SetUp(uplink, true); err != nil {
		t.Fatal(err)
	}
	weft := binaries.Weft(t)
	tl := tools{weft: filepath.Join(weft, "weft-cni"), path: weft + ":" + binaries.Plugins(t)}
	needPtrace(t, tl)
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
	t.Cleanup(func() {
		// The bridge plugin leaves its bridge to the next pod. A scene may have made none.
		if slices.Contains(linkNames(t, h), bridge) {
			if err := h.RemoveLink(bridge); err != nil {
				t.Error(err)
			}
		}
	})
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
