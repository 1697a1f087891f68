// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"flag"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	. "github.com/weftnet/weft/test/conformance"
)

// TestMain gives the suite namespaces of its own.
func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

var update = flag.Bool("update", false, "write docs/conformance.md") //nolint:gochecknoglobals // a flag

const page = "../../docs/conformance.md"

// TestConformance runs every case in every mode in which it makes sense, and compares
// what came out, in full, with docs/conformance.md.
func TestConformance(t *testing.T) {
	kerneltest.Need(t) // of the route cases; without them the page would not be whole
	loopback(t)
	var rows []row
	whole := true
	for _, s := range sections() {
		rows = append(rows, row{section: s.name})
		for _, k := range s.cases {
			r := row{kase: k, outcomes: map[Mode][]string{}}
			for _, mode := range []Mode{Manifests, Kubeconfig} {
				if k.only != "" && k.only != mode {
					continue
				}
				if !t.Run(k.title()+" "+string(mode), func(t *testing.T) { r.outcomes[mode] = k.run(t, mode) }) || len(r.outcomes[mode]) != len(k.steps) {
					whole = false
				}
			}
			rows = append(rows, r)
		}
	}
	if !whole || flag.Lookup("test.run").Value.String() != "" && strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		t.Log("not every case was run to its end: the page is not compared")
		return
	}
	text := render(rows)
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(old), "\n"), strings.Split(text, "\n")); diff != "" {
		t.Errorf("docs/conformance.md is stale: run make generate (-page +this run):\n%s", diff)
	}
}

// loopback lets the API server be reached: lo is down in a new namespace.
func loopback(t *testing.T) {
	t.Helper()
	host, err := kernel.OpenNetns("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := host.SetUp("lo", true); err != nil {
		t.Fatal(err)
	}
}

// podNamespace is the namespace of the route cases: eth0 with both defaults, net1 with none.
func podNamespace(t *testing.T) string {
	t.Helper()
	n, wire := kerneltest.Netns(t), kerneltest.Netns(t)
	for _, l := range []struct{ name, v4, v6 string }{{"eth0", "10.1.0.2/24", "fd01::2/64"}, {"net1", "10.2.0.2/24", "fd02::2/64"}} {
		must(t, n.AddVeth(l.name, wire, l.name))
		must(t, wire.SetUp(l.name, true))
		must(t, n.SetUp(l.name, true))
		must(t, n.AddAddr(l.name, netip.MustParsePrefix(l.v4)))
		must(t, n.AddAddr(l.name, netip.MustParsePrefix(l.v6)))
	}
	for _, gw := range []string{"10.1.0.1", "fd01::1"} {
		must(t, n.SetDefaultRoute("eth0", netip.MustParseAddr(gw)))
	}
	return n.Path()
}

// ownDefault adds a second IPv4 default through net1, of a higher metric.
func ownDefault(t testing.TB, path string) {
	t.Helper()
	ns, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName("net1")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: netip.MustParseAddr("10.2.0.1").AsSlice(), Priority: 100}); err != nil {
		t.Fatal(err)
	}
}

func itoa(i int) string { return strconv.Itoa(i) }

// atOnce is how many calls ran at the same time.
func atOnce(calls []Call) int {
	slices.SortStableFunc(calls, func(a, b Call) int { return int(a.T - b.T) })
	running, most := 0, 0
	for _, c := range calls {
		if c.End {
			running--
		} else {
			running++
		}
		most = max(most, running)
	}
	return most
}
