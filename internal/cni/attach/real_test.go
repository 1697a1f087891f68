// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/test/binaries"
)

// real is the rig with the standard plugins, in namespaces of the test's own: the
// process' namespace plays the host, ns is the pod's.
type real struct {
	*rig
	host *kernel.Netns
	ns   *kernel.Netns
}

func newReal(t *testing.T) *real {
	t.Helper()
	r := &real{rig: newRig(t), ns: kerneltest.Netns(t)}
	host, err := kernel.OpenNetns("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	r.host = host
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	r.path = binaries.Weft(t) + ":" + binaries.Plugins(t)
	r.netns = r.ns.Path()
	r.conf["delegates"] = []any{r.bridge("defnet", "br0", "10.1.0.0/24", "fd01::/64")}
	return r
}

func (r *real) leases() string { return filepath.Join(r.dir, "leases") }

// bridge is a bridge network with host-local addresses and default routes of both families.
func (r *real) bridge(name, bridge string, subnets ...string) map[string]any {
	r.t.Cleanup(func() { _ = r.host.RemoveLink(bridge) })
	return map[string]any{
		"cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": bridge, "isGateway": true,
		"ipam": r.hostLocal(subnets...),
	}
}

func (r *real) hostLocal(subnets ...string) map[string]any {
	ranges, routes := []any{}, []any{}
	for _, s := range subnets {
		ranges = append(ranges, []any{map[string]any{"subnet": s}})
		all := "0.0.0.0/0"
		if strings.Contains(s, ":") {
			all = "::/0"
		}
		routes = append(routes, map[string]any{"dst": all})
	}
	return map[string]any{"type": "host-local", "dataDir": r.leases(), "ranges": ranges, "routes": routes}
}

func (r *real) link(name string) (kernel.Link, bool) {
	r.t.Helper()
	links, err := r.ns.Links()
	if err != nil {
		r.t.Fatal(err)
	}
	i := slices.IndexFunc(links, func(l kernel.Link) bool { return l.Name == name })
	if i < 0 {
		return kernel.Link{}, false
	}
	return links[i], true
}

// wantDefault checks that a family has that default route and no other; "" = none.
func (r *real) wantDefault(family kernel.Family, want string) {
	r.t.Helper()
	routes, err := r.ns.DefaultRoutes(family)
	if err != nil {
		r.t.Fatal(err)
	}
	got := []string{}
	for _, route := range routes {
		for _, h := range route.Hops {
			got = append(got, h.Gateway.String()+" "+h.Link)
		}
	}
	if strings.Join(got, ",") != want {
		r.t.Errorf("%v default routes %v, want %q", family, got, want)
	}
}

// wantGone checks that the pod's namespace has lo alone and no address is leased.
func (r *real) wantGone() {
	r.t.Helper()
	links, err := r.ns.Links()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range links {
		if l.Name != "lo" {
			r.t.Errorf("link %s is left", l.Name)
		}
	}
	for _, network := range r.files(r.leases()) {
		for _, f := range r.files(filepath.Join(r.leases(), network)) {
			if _, err := netip.ParseAddr(f); err == nil {
				r.t.Errorf("address %s of %s is left", f, network)
			}
		}
	}
	r.wantClean()
}

// B48 to B50: the default route that was asked for is the one, and results say so.
func TestDefaultRoutes(t *testing.T) {
	for name, c := range map[string]struct{ annotation, v4, v6 string }{
		"one family (B48)":   {`[{"name":"neta","default-route":["10.2.0.1"]}]`, "10.2.0.1 net1", "fd01::1 eth0"},
		"two families (B49)": {`[{"name":"neta","default-route":["10.2.0.1","fd02::1"]}]`, "10.2.0.1 net1", "fd02::1 net1"},
		"empty list (B50)":   {`[{"name":"neta","default-route":[]}]`, "10.1.0.1 eth0", "fd01::1 eth0"},
		"not asked":          {`[{"name":"neta"}]`, "10.1.0.1 eth0", "fd01::1 eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReal(t)
			conf := r.bridge("second", "br1", "10.2.0.0/24", "fd02::/64")
			delete(conf["ipam"].(map[string]any), "routes")
			r.nad("default", "neta", conf)
			r.pod(networks, c.annotation)
			out := r.ok("ADD")
			r.wantDefault(kernel.IPv4, c.v4)
			r.wantDefault(kernel.IPv6, c.v6)
			if onEth0 := strings.HasSuffix(c.v4, "eth0"); strings.Contains(out, "0.0.0.0/0") != onEth0 {
				t.Errorf("IPv4 default on %q, but the result says %s", c.v4, out)
			}
			if onEth0 := strings.HasSuffix(c.v6, "eth0"); strings.Contains(out, "::/0") != onEth0 {
				t.Errorf("IPv6 default on %q, but the result says %s", c.v6, out)
			}
			r.ok("CHECK")
			if again := r.ok("ADD"); again != out {
				t.Errorf("repeated ADD: %s", again)
			}
			r.ok("DEL")
			r.wantGone()
		})
	}
}

// CHECK sees a default route that somebody changed.
func TestCheckReadsTheDefaultRoute(t *testing.T) {
	r := newReal(t)
	r.nad("default", "neta", r.bridge("second", "br1", "10.2.0.0/24"))
	r.pod(networks, `[{"name":"neta","default-route":["10.2.0.1"]}]`)
	r.ok("ADD")
	r.ok("CHECK")
	if err := r.ns.SetDefaultRoute("eth0", netip.MustParseAddr("10.1.0.1")); err != nil {
		t.Fatal(err)
	}
	r.fails(103, "10.2.0.1", "CHECK")
	r.ok("DEL")
	r.wantGone()
}

// B38: a gateway that cannot be reached undoes everything.
func TestUnreachableGateway(t *testing.T) {
	r := newReal(t)
	r.nad("default", "neta", r.bridge("second", "br1", "10.2.0.0/24"))
	r.pod(networks, `[{"name":"neta","default-route":["192.0.2.1"]}]`)
	r.fails(103, "192.0.2.1", "ADD")
	r.wantGone()
}

// Every standard plugin that this kernel can run makes its interface, answers CHECK,
// and leaves nothing.
func TestStandardPlugins(t *testing.T) {
	type env struct {
		*real
		t *testing.T
	}
	needs := func(kind string) func(env) {
		return func(e env) {
			ok, err := e.host.CanMake(kind)
			if err != nil {
				e.t.Fatal(err)
			}
			if !ok {
				e.t.Skipf("this kernel makes no %s links", kind)
			}
		}
	}
	for name, c := range map[string]struct {
		needs     func(env)
		conf      func(env) any
		selection string // further keys of the selection
		link      string // kind, or "" when the link is not a new one
		check     func(env, kernel.Link)
	}{
		"bridge": {link: "veth", conf: func(e env) any { return e.bridge("n", "br1", "10.2.0.0/24") }},
		"ptp": {link: "veth", conf: func(e env) any {
			return map[string]any{"cniVersion": "1.0.0", "type": "ptp", "ipam": e.hostLocal("10.2.0.0/24")}
		}},
		"macvlan": {link: "macvlan", needs: needs("macvlan"), conf: func(e env) any {
			e.veth("up0", "up1")
			return map[string]any{"cniVersion": "1.0.0", "type": "macvlan", "master": "up0", "mode": "bridge", "ipam": e.hostLocal("10.2.0.0/24")}
		}},
		"ipvlan": {link: "ipvlan", needs: needs("ipvlan"), conf: func(e env) any {
			e.veth("up0", "up1")
			return map[string]any{"cniVersion": "1.0.0", "type": "ipvlan", "master": "up0", "ipam": e.hostLocal("10.2.0.0/24")}
		}},
		"vlan": {link: "vlan", needs: needs("vlan"), conf: func(e env) any {
			e.veth("up0", "up1")
			return map[string]any{"cniVersion": "1.0.0", "type": "vlan", "master": "up0", "vlanId": 5, "ipam": e.hostLocal("10.2.0.0/24")}
		}},
		"dummy": {link: "dummy", needs: needs("dummy"), conf: func(e env) any {
			return map[string]any{"cniVersion": "1.0.0", "type": "dummy", "ipam": e.hostLocal("10.2.0.0/24")}
		}},
		"static": {
			link: "veth", selection: `,"ips":["10.2.0.77/24","fd02::77/64"],"mac":"02:00:00:00:00:77"`,
			conf: func(e env) any {
				conf := e.bridge("n", "br1")
				conf["ipam"] = map[string]any{"type": "static"}
				conf["capabilities"] = map[string]bool{"ips": true, "mac": true}
				return conf
			},
			check: func(e env, l kernel.Link) {
				for _, want := range []string{"10.2.0.77/24", "fd02::77/64"} {
					if !slices.Contains(l.Addrs, netip.MustParsePrefix(want)) {
						e.t.Errorf("addresses %v lack %s", l.Addrs, want)
					}
				}
				if fmt.Sprint(l.MAC) != "02:00:00:00:00:77" {
					e.t.Errorf("MAC %v", l.MAC)
				}
			},
		},
		"tuning": {link: "veth", conf: func(e env) any {
			return map[string]any{"cniVersion": "1.0.0", "plugins": []any{
				e.bridge("n", "br1", "10.2.0.0/24"),
				map[string]any{"type": "tuning", "mtu": 1400, "dataDir": e.dir + "/tuning"},
			}}
		}, check: func(e env, l kernel.Link) {
			if l.MTU != 1400 {
				e.t.Errorf("MTU %d", l.MTU)
			}
		}},
		"bandwidth": {
			link: "veth", needs: needs("ifb"), selection: `,"bandwidth":{"ingressRate":1000000,"ingressBurst":1000000,"egressRate":1000000,"egressBurst":1000000}`,
			conf: func(e env) any {
				return map[string]any{"cniVersion": "1.0.0", "plugins": []any{
					e.bridge("n", "br1", "10.2.0.0/24"),
					map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}},
				}}
			},
			check: func(e env, _ kernel.Link) {
				links, err := e.host.Links()
				if err != nil || !slices.ContainsFunc(links, func(l kernel.Link) bool { return l.Kind == "ifb" }) {
					e.t.Errorf("no ifb link on the host: %v, %v", links, err)
				}
			},
		},
		"portmap": {
			link: "veth", selection: `,"portMappings":[{"hostPort":8080,"containerPort":80}]`,
			needs: func(e env) {
				// Probed by the very thing: a table in this namespace.
				if out, err := exec.CommandContext(e.t.Context(), "nft", "add", "table", "ip", "weftprobe").CombinedOutput(); err != nil {
					skip(e.t, "nft cannot make a table here: %v %s", err, out)
				}
			},
			conf: func(e env) any {
				return map[string]any{"cniVersion": "1.0.0", "plugins": []any{
					e.bridge("n", "br1", "10.2.0.0/24"),
					map[string]any{"type": "portmap", "backend": "nftables", "capabilities": map[string]bool{"portMappings": true}},
				}}
			},
			check: func(e env, _ kernel.Link) {
				out, err := exec.CommandContext(e.t.Context(), "nft", "list", "ruleset").CombinedOutput()
				if err != nil || !strings.Contains(string(out), "8080") {
					e.t.Errorf("no rule for port 8080: %v\n%s", err, out)
				}
			},
		},
		"host-device": {link: "veth", conf: func(e env) any {
			e.veth("hd0", "hd1")
			return map[string]any{"cniVersion": "1.0.0", "type": "host-device", "device": "hd0", "ipam": e.hostLocal("10.2.0.0/24")}
		}, check: func(e env, _ kernel.Link) {
			e.t.Cleanup(func() {
				links, err := e.host.Links()
				if err != nil || !slices.ContainsFunc(links, func(l kernel.Link) bool { return l.Name == "hd0" }) {
					e.t.Errorf("hd0 did not come home: %v, %v", links, err)
				}
			})
		}},
		"loopback": {conf: func(env) any {
			return map[string]any{"cniVersion": "1.0.0", "type": "loopback"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := env{newReal(t), t}
			if c.needs != nil {
				c.needs(e)
			}
			e.nad("default", "neta", c.conf(e))
			e.pod(networks, `[{"name":"neta"`+c.selection+`}]`)
			e.ok("ADD")
			l, found := e.link("net1")
			if c.link != "" && (!found || l.Kind != c.link || len(l.Addrs) == 0) {
				t.Errorf("net1 is %+v (%v), want a %s link with an address", l, found, c.link)
			}
			if c.check != nil {
				c.check(e, l)
			}
			e.ok("CHECK")
			e.ok("DEL")
			e.wantGone()
		})
	}
}

// skip skips for want of a tool, which is a failure where everything is installed.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("WEFT_CI") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// veth makes a pair of links on the host, up, for the time of the test.
func (r *real) veth(name, peer string) {
	r.t.Helper()
	if err := r.host.AddVeth(name, r.host, peer); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = r.host.RemoveLink(name) })
	for _, l := range []string{name, peer} {
		if err := r.host.SetUp(l, true); err != nil {
			r.t.Fatal(err)
		}
	}
}
