// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
)

// shown is what ip(8) says of the default routes, in the order of the text.
func shown(t *testing.T, n *kernel.Netns) string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(ip(t, n, "-4 route show default")+ip(t, n, "-6 route show default")), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSpace(l)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A default route that others took the place of comes back as it was, after a way through JSON,
// in two steps, and beside what came meanwhile.
func TestRestoreDefaultRoutes(t *testing.T) {
	const with4, with6 = "10.2.0.1", "fd02::1"
	for name, before := range map[string][]string{
		"plain": nil,
		"with attributes": {
			"route replace default via 10.1.0.1 dev eth0 src 10.1.0.2 mtu 1400 advmss 1300 initcwnd 20 quickack 1 proto static",
			"-6 route replace default via fd01::1 dev eth0 src fd01::2 mtu lock 1400 hoplimit 9 proto static",
		},
		"a gateway that is on no subnet": {
			"route replace default via 169.254.1.1 dev eth0 onlink", "-6 route replace default via fe80::1 dev eth0",
		},
		"over IPv6":    {"route replace default via inet6 fd01::1 dev eth0"},
		"on the link":  {"route replace default dev eth0 scope link", "-6 route del default", "-6 route add default dev eth0 metric 1024"},
		"metrics":      {"route add default via 10.1.0.9 dev eth0 metric 100", "-6 route add default via fd01::9 dev eth0 metric 100"},
		"of one value": {"route append default via 10.1.0.9 dev eth0"},
		"multipath": {
			"route replace default nexthop via 10.1.0.1 dev eth0 weight 3 nexthop via 10.1.0.9 dev eth0",
			"-6 route append default via fd01::9 dev eth0",
		},
		"blackhole": {"route replace blackhole default", "route add default via 10.1.0.1 dev eth0 metric 7"},
		"none":      {"route del default", "-6 route del default"},
	} {
		t.Run(name, func(t *testing.T) {
			n := pod(t)
			for _, command := range before {
				ip(t, n, command)
			}
			want := shown(t, n)
			saved := map[kernel.Family][]byte{}
			for _, family := range []kernel.Family{kernel.IPv4, kernel.IPv6} {
				routes, err := n.SaveDefaultRoutes(family)
				must(t, err)
				saved[family], err = json.Marshal(routes)
				must(t, err)
			}
			must(t, n.SetDefaultRoute("net1", netip.MustParseAddr(with4)))
			must(t, n.SetDefaultRoute("net1", netip.MustParseAddr(with6)))
			if got := shown(t, n); got == want {
				t.Fatalf("nothing took the place of %s", got)
			}
			for range 2 {
				for family, raw := range saved {
					var routes []kernel.SavedRoute
					must(t, json.Unmarshal(raw, &routes))
					must(t, n.RestoreDefaultRoutes(family, routes, "net1"))
				}
				if got := shown(t, n); got != want {
					t.Fatalf("put back\n%s\nwant\n%s", got, want)
				}
			}
		})
	}
}

// What is not through the link that goes stays; what went through a link that is gone does not come.
func TestRestoreDefaultRoutesLeavesOthers(t *testing.T) {
	n := pod(t)
	ip(t, n, "route append default via 10.1.0.8 dev eth0 metric 50")
	routes, err := n.SaveDefaultRoutes(kernel.IPv4)
	must(t, err)
	for i := range routes {
		gone := routes[i]
		gone.Hops = []kernel.SavedHop{{Link: "gone0", Gateway: netip.MustParseAddr("10.7.0.1")}}
		routes = append(routes, gone)
	}
	must(t, n.SetDefaultRoute("net1", netip.MustParseAddr("10.2.0.1")))
	ip(t, n, "route append default via 10.1.0.7 dev eth0 metric 5") // an administrator's
	must(t, n.RestoreDefaultRoutes(kernel.IPv4, routes, "net1"))
	want := []string{
		"default via 10.1.0.1 dev eth0 metric 0", "default via 10.1.0.7 dev eth0 metric 5", "default via 10.1.0.8 dev eth0 metric 50",
		"default via fd01::1 dev eth0 metric 1024",
	}
	if got := defaults(t, n); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
