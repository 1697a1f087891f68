// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
)

// checkPlan is what every plan promises, whatever it was made from.
func checkPlan(t testing.TB, p *plan.Plan) {
	t.Helper()
	names := map[string]bool{}
	families := map[bool]bool{}
	for i, a := range p.Attachments {
		if err := selection.InterfaceName(a.IfName); err != nil || names[a.IfName] {
			t.Errorf("attachment %d: interface name %q: %v, or taken", i, a.IfName, err)
		}
		names[a.IfName] = true
		if err := netconf.NetworkName(a.Conf.Name); err != nil {
			t.Errorf("attachment %d: network name %q %v", i, a.Conf.Name, err)
		}
		if !netconf.KnownVersion(a.Conf.CNIVersion) || len(a.Conf.Plugins) == 0 {
			t.Errorf("attachment %d: version %q, %d plugins", i, a.Conf.CNIVersion, len(a.Conf.Plugins))
		}
		for _, plugin := range a.Conf.Plugins {
			if strings.Contains(plugin.Type, "/") || plugin.Type == "" || plugin.Type == ".." || !json.Valid(plugin.Conf) {
				t.Errorf("attachment %d: plugin %q %s", i, plugin.Type, plugin.Conf)
			}
		}
		for name, value := range a.RuntimeConfig {
			if !json.Valid(value) {
				t.Errorf("attachment %d: argument %s is %q", i, name, value)
			}
		}
		for _, g := range a.Gateways {
			if families[g.Is4()] {
				t.Errorf("attachment %d: a second gateway of a family, %v", i, g)
			}
			families[g.Is4()] = true
		}
	}
	if len(p.Attachments) == 0 || len(p.Attachments) > plan.MaxNetworks+1 {
		t.Errorf("%d attachments", len(p.Attachments))
	}
	if _, err := json.Marshal(p); err != nil {
		t.Errorf("encode plan: %v", err)
	}
}

// FuzzPlan feeds all that users write: the configuration, both annotations, a NAD, a file, CNI_ARGS.
func FuzzPlan(f *testing.F) {
	nad := `{"cniVersion":"1.0.0","type":"pb","capabilities":{"ips":true,"deviceID":true,"CNIDeviceInfoFile":true},"args":{"cni":{"a":9},"o":1}}`
	list := `{"name":"cn","plugins":[{"type":"pa","args":{"cni":{"a":9}}},{"type":"pb"}]}`
	f.Add(delegatesPA, "neta,other/netb@foo0,neta", "", nad, list, podArgs)
	f.Add(delegatesPA, "neta@net2,neta", "[]", nad, list, podArgs+";FOO=a=b;")
	f.Add(`"strict":true,"namespaceIsolation":true,`+delegatesPA, `[{"name":"other/netb","mac":"24:8a:07:03:00:8d:ae:2f"},null]`, "neta@foo0", nad, list, "")
	f.Add(`"clusterNetwork":"cn","defaultNetworks":["a","/b"],"auxiliaryCNIChainName":"aux"`,
		`[{"name":"neta","cni-args":{"a":1},"ips":["10.1.1.5/24"],"default-route":["10.1.1.1"]}]`, "netk", "", list, podArgs)
	f.Add(`"clusterNetwork":"/c/x.conflist","runtimeConfig":{"ips":["1.2.3.4"]}`, "{}", "", `{"plugins":[]}`, `{bad`, "K8S_POD_UID=other")
	f.Add(delegatesPA, "null", "null", `{"type":"../x","args":"str"}`, "[]", "=")
	f.Fuzz(func(t *testing.T, conf, networks, def, nad, file, args string) {
		c, _, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"m","type":"X",` + conf + "}"))
		if err != nil {
			checkFaults(t, err)
			return
		}
		in := (&world{networks: networks, def: def}).input(t)
		in.Conf, in.Sandbox.Args = c, args
		in.Devices = map[string][]string{"ex.com/vf": {"b", "a", "b"}}
		for range 6 {
			out, err := plan.Make(in)
			if err != nil {
				checkFaults(t, err)
				if len(out.NeedNADs)+len(out.NeedFiles) == 0 {
					return
				}
			}
			if out.Plan != nil {
				checkPlan(t, out.Plan)
				return
			}
			for _, at := range out.NeedNADs {
				in.NADs[at] = plan.NAD{Found: at.Name != "gone", Config: nad, ResourceName: map[bool]string{true: "ex.com/vf"}[len(at.Name)%2 == 0]}
			}
			for _, need := range out.NeedFiles {
				in.Files[need] = plan.File{Need: need, Found: true, Path: "/c/x", Data: []byte(file), Chained: [][]byte{[]byte(nad)}}
			}
		}
		t.Error("Make never has enough")
	})
}

// Whatever a pod asks for: names are unique and the order is that of the request,
// or there is a fault; automatic names are net and the position.
func TestNamesProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		asked := rapid.SliceOfN(rapid.SampledFrom([]string{"", "", "net1", "net2", "net3", "eth0", "x", "y"}), 0, 6).Draw(r, "names")
		reserved := rapid.SliceOfN(rapid.SampledFrom([]string{"net1", "x", "r"}), 0, 2).Draw(r, "reserved")
		var items []string
		want := []string{"eth0"}
		clash := false
		taken := map[string]bool{"eth0": true}
		for _, name := range reserved {
			taken[name] = true
		}
		for i, name := range asked {
			items = append(items, "neta@"+name)
			if name == "" {
				name = fmt.Sprintf("net%d", i+1)
			}
			clash = clash || taken[name]
			taken[name] = true
			want = append(want, name)
		}
		w := world{networks: strings.Join(items, ","), reserved: reserved}
		p, err := w.make(t)
		if clash != (err != nil) {
			r.Fatalf("clash %t, error %v", clash, err)
		}
		for i := range want {
			if err == nil && p.Attachments[i].IfName != want[i] {
				r.Fatalf("attachment %d is %s, want %s", i, p.Attachments[i].IfName, want[i])
			}
		}
	})
}

// input100 is a pod with 100 networks, each of another NAD and with requests.
func input100(t testing.TB) plan.Input {
	t.Helper()
	var items []string
	for i := range 100 {
		items = append(items, fmt.Sprintf(`{"name":"net-%d","ips":["10.0.%d.5/24"],"mac":"02:00:00:00:00:%02x","cni-args":{"vlan":%d}}`, i, i, i, i))
	}
	in := (&world{networks: "[" + strings.Join(items, ",") + "]"}).input(t)
	for i := range 100 {
		in.NADs[plan.NADRef{Namespace: "default", Name: fmt.Sprintf("net-%d", i)}] = plan.NAD{Found: true, ResourceName: "ex.com/vf", Config: fmt.Sprintf(
			`{"cniVersion":"1.0.0","plugins":[{"type":"macvlan","master":"eth%d","mode":"bridge","capabilities":{"ips":true,"mac":true,"deviceID":true},"ipam":{"type":"static","routes":[{"dst":"10.9.0.0/16"}]}},{"type":"tuning","sysctl":{"net.ipv4.conf.all.arp_filter":"1"}}]}`, i)}
	}
	in.Devices = map[string][]string{}
	for i := range 100 {
		in.Devices["ex.com/vf"] = append(in.Devices["ex.com/vf"], fmt.Sprintf("0000:%02x:00.0", i))
	}
	return in
}

func BenchmarkPlan100(b *testing.B) {
	in := input100(b)
	b.ReportAllocs()
	for b.Loop() {
		out, err := plan.Make(in)
		if err != nil || len(out.Plan.Attachments) != 101 {
			b.Fatalf("plan: %v", err)
		}
	}
}

// What a plan costs on any machine: 100 networks take some 2800 allocations.
func TestPlan100Allocates(t *testing.T) {
	in := input100(t)
	got := testing.AllocsPerRun(5, func() {
		if _, err := plan.Make(in); err != nil {
			t.Fatal(err)
		}
	})
	if got > 3400 {
		t.Errorf("planning 100 networks takes %.0f allocations", got)
	}
}

// Architecture asks for 1 ms; a shared machine under the race detector gets some room.
func TestPlan100IsFast(t *testing.T) {
	in := input100(t)
	best := time.Hour
	for range 20 {
		start := time.Now()
		if _, err := plan.Make(in); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	if best > 20*time.Millisecond {
		t.Errorf("planning 100 networks takes %v", best)
	}
}
