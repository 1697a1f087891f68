// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// pod is the namespace of spec/cni.md's route cases: eth0 with both defaults, net1 with none.
func pod(t *testing.T) *kernel.Netns {
	t.Helper()
	n, wire := kerneltest.Netns(t), kerneltest.Netns(t)
	for name, addrs := range map[string][]string{
		"eth0": {"10.1.0.2/24", "fd01::2/64"},
		"net1": {"10.2.0.2/24", "fd02::2/64"},
	} {
		must(t, n.AddVeth(name, wire, name))
		must(t, wire.SetUp(name, true))
		must(t, n.SetUp(name, true))
		for _, a := range addrs {
			must(t, n.AddAddr(name, netip.MustParsePrefix(a)))
		}
	}
	for _, gw := range []string{"10.1.0.1", "fd01::1"} {
		must(t, n.SetDefaultRoute("eth0", netip.MustParseAddr(gw)))
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ip runs ip(8) in the namespace, to make what this package has no need to make.
func ip(t *testing.T, n *kernel.Netns, args string) string {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		if os.Getenv("WEFT_CI") != "" {
			t.Fatal(err)
		}
		t.Skip("iproute2 is not installed")
	}
	cmd := exec.Command("nsenter", append([]string{"--net=" + n.Path(), "ip"}, strings.Fields(args)...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
	return string(out)
}

func defaults(t *testing.T, n *kernel.Netns) []string {
	t.Helper()
	var all []string
	for _, family := range []kernel.Family{kernel.IPv4, kernel.IPv6} {
		routes, err := n.DefaultRoutes(family)
		must(t, err)
		for _, r := range routes {
			all = append(all, r.String())
		}
	}
	return all
}

func TestSetDefaultRoute(t *testing.T) {
	const eth4, eth6 = "default via 10.1.0.1 dev eth0 metric 0", "default via fd01::1 dev eth0 metric 1024"
	const net4, net6 = "default via 10.2.0.1 dev net1 metric 0", "default via fd02::1 dev net1 metric 1024"
	tests := map[string]struct {
		before []string // ip(8) commands
		gws    []string // set through net1
		want   []string
	}{
		"nothing asked (B50)":  {nil, nil, []string{eth4, eth6}},
		"IPv4 alone (B48)":     {nil, []string{"10.2.0.1"}, []string{net4, eth6}},
		"IPv6 alone":           {nil, []string{"fd02::1"}, []string{eth4, net6}},
		"both (B49)":           {nil, []string{"10.2.0.1", "fd02::1"}, []string{net4, net6}},
		"repeated":             {nil, []string{"10.2.0.1", "10.2.0.1", "fd02::1", "fd02::1"}, []string{net4, net6}},
		"IPv4 written as IPv6": {nil, []string{"::ffff:10.2.0.1"}, []string{net4, eth6}},
		"several metrics": {
			[]string{
				"route add default via 10.1.0.9 dev eth0 metric 100", "route add default dev net1 metric 200",
				"-6 route add default via fd01::9 dev eth0 metric 100", "-6 route add default dev net1 metric 2000",
			},
			[]string{"10.2.0.1", "fd02::1"},
			[]string{net4, net6},
		},
		"multipath": {
			[]string{
				"route replace default nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.9 dev net1",
				"-6 route append default via fd02::9 dev net1",
			},
			[]string{"10.2.0.1", "fd02::1"},
			[]string{net4, net6},
		},
		"multipath with another metric": {
			[]string{
				"route add default metric 50 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.9 dev net1",
				"-6 route add default metric 50 nexthop via fd01::1 dev eth0 nexthop via fd02::9 dev net1",
			},
			[]string{"10.2.0.1", "fd02::1"},
			[]string{net4, net6},
		},
		"the asked one is second of its metric": {
			[]string{"route append default via 10.2.0.1 dev net1"},
			[]string{"10.2.0.1"},
			[]string{net4, eth6},
		},
		"asked gateway with another metric": {
			[]string{"route add default via 10.2.0.1 dev net1 metric 7", "-6 route add default via fd02::1 dev net1 metric 7"},
			[]string{"10.2.0.1", "fd02::1"},
			[]string{net4, net6},
		},
		"IPv4 through an IPv6 gateway": {
			[]string{"-4 route add default via inet6 fd02::9 dev net1 metric 9"},
			[]string{"10.2.0.1"},
			[]string{net4, eth6},
		},
		"blackhole and type of service": {
			[]string{
				"route add blackhole default metric 9", "route add default tos 0x10 via 10.1.0.1 dev eth0",
				"-6 route add unreachable default metric 9",
			},
			[]string{"10.2.0.1", "fd02::1"},
			[]string{net4, net6},
		},
		"route attributes": {
			[]string{"route add default via 10.1.0.1 dev eth0 metric 5 mtu 1400 src 10.1.0.2 proto dhcp"},
			[]string{"10.2.0.1"},
			[]string{net4, eth6},
		},
		"other tables and prefixes stay": {
			[]string{"route add default via 10.1.0.1 dev eth0 table 100", "route add 0.0.0.0/8 via 10.1.0.1 dev eth0"},
			[]string{"10.2.0.1"},
			[]string{net4, eth6},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := pod(t)
			for _, args := range test.before {
				ip(t, n, args)
			}
			for _, gw := range test.gws {
				must(t, n.SetDefaultRoute("net1", netip.MustParseAddr(gw)))
			}
			if got := defaults(t, n); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if name == "other tables and prefixes stay" {
				all := ip(t, n, "route show table all")
				for _, want := range []string{"default via 10.1.0.1 dev eth0 table 100", "0.0.0.0/8 via 10.1.0.1 dev eth0"} {
					if !strings.Contains(all, want) {
						t.Errorf("%q is gone from %s", want, all)
					}
				}
			}
		})
	}
}

func TestSetDefaultRouteLeavesAdvertisedOnes(t *testing.T) {
	for _, metric := range []string{"1024", "512", "2"} {
		t.Run(metric, func(t *testing.T) {
			n := pod(t)
			ip(t, n, "-6 route del default")
			ip(t, n, "-6 route add default via fd01::9 dev eth0 proto ra metric "+metric)
			if got := defaults(t, n); len(got) != 1 { // the IPv4 one
				t.Fatalf("an advertised route is listed: %q", got)
			}
			must(t, n.SetDefaultRoute("net1", netip.MustParseAddr("fd02::1")))
			if all := ip(t, n, "-6 route show default"); !strings.Contains(all, "via fd01::9 dev eth0 proto ra metric "+metric) {
				t.Errorf("advertised route is gone: %s", all)
			}
			if got := ip(t, n, "-6 route get 2001:db8::1"); !strings.Contains(got, "via fd02::1 dev net1") {
				t.Errorf("the asked route is not preferred: %s", got)
			}
		})
	}
}

func TestSetDefaultRouteRefused(t *testing.T) {
	tests := map[string]struct {
		link, gw string
		want     error // nil: any
	}{
		"gateway of another network": {"net1", "10.9.0.1", unix.ENETUNREACH},
		"gateway of another link":    {"net1", "10.1.0.1", unix.ENETUNREACH},
		"IPv6 out of reach":          {"net1", "fd09::1", unix.EHOSTUNREACH},
		"own address":                {"net1", "10.2.0.2", nil},
		"own IPv6 address":           {"net1", "fd02::2", nil},
		"link that is not there":     {"net7", "10.2.0.1", nil},
		"unspecified":                {"net1", "0.0.0.0", nil},
		"multicast":                  {"net1", "ff02::1", nil},
	}
	n := pod(t)
	before := defaults(t, n)
	for name, test := range tests {
		err := n.SetDefaultRoute(test.link, netip.MustParseAddr(test.gw))
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
		if got := defaults(t, n); !slices.Equal(got, before) {
			t.Errorf("%s: the routes changed to %q", name, got)
		}
	}
	if err := n.SetDefaultRoute("net1", netip.Addr{}); err == nil {
		t.Error("the zero address was accepted")
	}
	must(t, n.SetUp("net1", false))
	if err := n.SetDefaultRoute("net1", netip.MustParseAddr("10.2.0.1")); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("link that is down: got %v", err)
	}
}

func TestVerifyDefaultRoute(t *testing.T) {
	n := pod(t)
	must(t, n.VerifyDefaultRoute("eth0", netip.MustParseAddr("10.1.0.1")))
	for _, test := range []struct{ link, gw string }{{"net1", "10.1.0.1"}, {"eth0", "10.1.0.9"}, {"net1", "fd02::1"}} {
		if err := n.VerifyDefaultRoute(test.link, netip.MustParseAddr(test.gw)); !errors.Is(err, kernel.ErrNotSet) {
			t.Errorf("%v: got %v", test, err)
		}
	}
	ip(t, n, "route add default via 10.2.0.9 dev net1 metric 50")
	if err := n.VerifyDefaultRoute("eth0", netip.MustParseAddr("10.1.0.1")); !errors.Is(err, kernel.ErrNotSet) {
		t.Errorf("two default routes: got %v", err)
	}
}
