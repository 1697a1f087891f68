// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/vmistatus"
)

// text is a value that shares nothing with v, to compare with later.
func text(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkInvariants merges and checks what holds for any input: cases 29, 36 and 47 of section 6,
// and that everything is bounded.
func checkInvariants(t testing.TB, in vmistatus.Input) vmistatus.Result {
	t.Helper()
	before := fmt.Sprintf("%+v %s", in.Domain, text(t, []any{in.Interfaces, in.Networks, in.Previous, in.PodCache, in.Multus}))
	r := vmistatus.Merge(in)
	if after := fmt.Sprintf("%+v %s", in.Domain, text(t, []any{in.Interfaces, in.Networks, in.Previous, in.PodCache, in.Multus})); before != after {
		t.Fatalf("the input was changed: %s", cmp.Diff(before, after))
	}
	if in.Domain == nil {
		if text(t, r.Interfaces) != text(t, in.Previous) && len(in.Previous) > 0 {
			t.Fatalf("without a domain it is another status: %s", text(t, r.Interfaces))
		}
		return r
	}
	if len(r.Explain) != len(r.Interfaces) {
		t.Fatalf("%d explanations of %d entries", len(r.Explain), len(r.Interfaces))
	}
	guestOnly := 0
	for i, e := range r.Interfaces {
		checkEntry(t, &r, i)
		if r.Explain[i].Kind == vmistatus.GuestEntry {
			guestOnly++
		}
		if len(e.Name) > vmistatus.MaxName && !slices.ContainsFunc(in.Interfaces, func(i v1.Interface) bool { return i.Name == e.Name }) {
			t.Fatalf("%d bytes of a name that is not in the spec", len(e.Name))
		}
		if i > 0 && e.Name != "" && slices.ContainsFunc(r.Interfaces[:i], func(o entry) bool { return o.Name == e.Name }) {
			t.Fatalf("%q is there twice", e.Name)
		}
	}
	if primary := vmistatus.LookupDefault(in.Networks); primary != nil {
		if i := slices.IndexFunc(r.Interfaces, func(e entry) bool { return e.Name == primary.Name }); i > 0 && slices.ContainsFunc(in.Interfaces, func(i v1.Interface) bool { return i.Name == primary.Name }) {
			t.Fatalf("the primary network is at %d", i)
		}
	}
	if guestOnly > vmistatus.MaxGuestOnly {
		t.Fatalf("%d entries of the guest alone", guestOnly)
	}
	if size := len(text(t, r.Interfaces)); size > vmistatus.MaxStatus {
		t.Fatalf("%d bytes", size)
	}
	out := text(t, r)
	again := in
	again.Previous = slices.Clone(r.Interfaces)
	if in.Domain.Err != nil || in.Domain.GuestErr != nil {
		// What is remembered of a status that no merge wrote may contradict itself once.
		again.Previous = vmistatus.Merge(again).Interfaces
		r.Interfaces = slices.Clone(again.Previous)
	}
	if second := vmistatus.Merge(again); !vmistatus.Equal(second.Interfaces, r.Interfaces) {
		t.Fatalf("a second merge is another: %s", cmp.Diff(r.Interfaces, second.Interfaces))
	}
	scribble(r.Interfaces)
	if in.Domain.Err == nil && in.Domain.GuestErr == nil {
		if again := text(t, vmistatus.Merge(in)); again != out {
			t.Fatalf("who wrote to the output changed the input: %s", cmp.Diff(out, again))
		}
	}
	return r
}

func checkEntry(t testing.TB, r *vmistatus.Result, i int) {
	t.Helper()
	e := &r.Interfaces[i]
	first := ""
	if len(e.IPs) > 0 {
		first = e.IPs[0]
	}
	if e.IP != first || len(e.IPs) > vmistatus.MaxAddresses || len(r.Explain[i].Addresses) != len(e.IPs) {
		t.Fatalf("addresses of %+v", *e)
	}
	for j, s := range e.IPs {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.String() != s || ip.Zone() != "" || ip.IsLoopback() || ip.Is4In6() || slices.Contains(e.IPs[:j], s) {
			t.Fatalf("address %q of %q", s, e.IPs)
		}
	}
	for _, s := range []string{e.MAC, e.InterfaceName, e.PodInterfaceName, e.LinkState} {
		if len(s) > vmistatus.MaxName {
			t.Fatalf("%d bytes of a name", len(s))
		}
	}
	for f, v := range map[vmistatus.Field]bool{
		vmistatus.Name: e.Name != "", vmistatus.MAC: e.MAC != "", vmistatus.Addresses: len(e.IPs) > 0, vmistatus.InterfaceName: e.InterfaceName != "",
		vmistatus.PodInterfaceName: e.PodInterfaceName != "", vmistatus.InfoSource: e.InfoSource != "", vmistatus.LinkState: e.LinkState != "", vmistatus.QueueCount: e.QueueCount != 0,
	} {
		if o := r.Explain[i].Fields[f]; v != (o.Source != vmistatus.NoSource) && f != vmistatus.Addresses || v && o.Rule == vmistatus.NoRule {
			t.Fatalf("%s of %+v is explained by %v, %v", f, *e, o.Source, o.Rule)
		}
	}
}

// scribble writes over everything that can be written of a result.
func scribble(list []entry) {
	for i := range list {
		for j := range list[i].IPs {
			list[i].IPs[j] = "scribbled"
		}
		_ = append(list[i].IPs, "scribbled")
	}
}

// drawInput draws a machine with many equal names, MACs and addresses.
func drawInput(t *rapid.T) vmistatus.Input {
	one := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	names := []string{"prim", "sec", "third", "sr"}
	macs := []string{"", "00:00:00:00:00:00", "52:54:00:aa:00:01", "52-54-00-AA-00-01", "52:54:00:aa:00:02", "52:54:00:aa:00:03", "nonsense", "ee:ee:ee:ee:ee:ee"}
	all := []string{p4, p6, g4, g6, "fe80::1", "fe80::1%eth0", "::ffff:10.0.0.9", "10.0.0.9", "127.0.0.1", "::1", "nonsense", "10.0.0.9/24", "2001:0db8::0001", "2001:db8::1"}
	some := func(label string) []string { return rapid.SliceOfN(rapid.SampledFrom(all), 0, 5).Draw(t, label) }
	var drawn []spec
	for _, n := range names {
		if rapid.Bool().Draw(t, "has "+n) {
			drawn = append(drawn, spec{n, one("binding", "B", "M", "S"), one("network", "pod", "mul", "default", "claim"), one("mac", macs...), ""})
		}
	}
	in := vmistatus.Input{Policy: vmistatus.Policy(one("policy", "", "family-merge", "pod-authoritative")), Explain: true, PodCache: pods{}}
	in.Interfaces, in.Networks = specs(drawn)
	in.Domain = &vmistatus.Domain{Agent: vmistatus.AgentState(rapid.IntRange(0, 3).Draw(t, "agent")), Channel: one("channel", "", "connected", "disconnected")}
	cut := strings.Repeat("x", vmistatus.MaxName)
	inDomain := append(names, "net0", cut+"1", cut+"2", "a\u0080", "a\u0081")
	for _, n := range inDomain {
		if rapid.Bool().Draw(t, "domain has "+n) {
			in.Domain.Interfaces = append(in.Domain.Interfaces, vmistatus.NIC{Name: n, MAC: one("mac", macs...), Queues: int32(rapid.IntRange(-1, 3).Draw(t, "queues")), LinkState: one("link", "up", "down", "")})
		}
		if rapid.Bool().Draw(t, "host device "+n) {
			in.Domain.HostDevices = append(in.Domain.HostDevices, vmistatus.HostDevice{Name: n})
		}
		switch one("pod cache", "none", "good", "bad") {
		case "good":
			in.PodCache[n] = vmistatus.PodRead{PodIP: one("podIP", append(all, "")...), PodIPs: some("podIPs")}
		case "bad":
			in.PodCache[n] = vmistatus.PodRead{Err: errors.New("denied")}
		}
	}
	for range rapid.IntRange(0, 14).Draw(t, "records") {
		name := one("guest name", "", "lo", "eth0", "eth0:1", "eth1", "br0", "br10", "br2", "bond0", "eth0.100", "tun0", "tun0:x", "wg0", "veth9", "veth10", "cali1")
		in.Domain.Guest = append(in.Domain.Guest, g(name, one("mac", macs...), some("guest IPs")...))
	}
	for range rapid.IntRange(0, 6).Draw(t, "before") {
		e := nic(one("name", append(inDomain, "", "foo", cut)...), one("mac", macs...), one("source", "", dom, ga, mul, dga, dgm), one("guest", "", "eth0", "wg0"), some("IPs")...)
		in.Previous = append(in.Previous, podIf(e, one("pod interface", "", "eth0", "pod1")))
	}
	if rapid.Bool().Draw(t, "unreadable domain") {
		in.Domain.Err = errors.New("torn")
	}
	if rapid.Bool().Draw(t, "unreadable guest") {
		in.Domain.GuestErr = errors.New("torn")
	}
	if rapid.Bool().Draw(t, "multus") {
		in.Multus = &vmistatus.MultusReport{Names: rapid.SliceOf(rapid.SampledFrom(names)).Draw(t, "multus names")}
	}
	return in
}

// TestAnyOrder is cases 28 and 29 of section 6 for drawn machines: the order of what has no order
// decides nothing, to the byte.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		want := text2(t, vmistatus.Merge(in))
		source := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		shuffled := in
		domain := *in.Domain
		domain.Interfaces, domain.HostDevices = shuffle(source, domain.Interfaces), shuffle(source, domain.HostDevices)
		domain.Guest, shuffled.Previous = shuffle(source, domain.Guest), shuffle(source, in.Previous)
		shuffled.Domain = &domain
		if got := text2(t, vmistatus.Merge(shuffled)); got != want {
			t.Fatalf("another order, another result: %s", cmp.Diff(want, got))
		}
	})
}

func text2(t *rapid.T, r vmistatus.Result) string {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func shuffle[T any](source *rand.Rand, list []T) []T {
	list = slices.Clone(list)
	source.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// TestInvariants checks drawn machines.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) { checkInvariants(bridge{t, r}, drawInput(r)) })
}

// bridge fails the drawn case, not the test.
type bridge struct {
	testing.TB
	r *rapid.T
}

func (b bridge) Helper()                        {}
func (b bridge) Fatal(args ...any)              { b.r.Fatal(args...) }
func (b bridge) Fatalf(format string, a ...any) { b.r.Fatalf(format, a...) }

// machine is one that fuzzed text is merged into.
func machine() vmistatus.Input {
	in := vmistatus.Input{
		PodCache: pods{"default": read(p4, p6)}, Explain: true,
		Previous: []entry{podIf(nic("default", "52:54:00:aa:00:01", dga, "eth0", p4), "eth0"), bare("red", mul, "pod5")},
		Domain:   nics(d("default", "52:54:00:aa:00:01"), d("red", "52:54:00:aa:00:02")),
	}
	in.Interfaces, in.Networks = specs([]spec{{"default", "M", "pod", "", ""}, {"red", "B", "mul", "", ""}, {"sr", "S", "mul", "52-54-00-AA-00-03", ""}})
	return in
}

const someXML = `<domain type='kvm'><name>ns_vm</name><devices>
<interface type='ethernet'><mac address='52:54:00:AA:00:01'/><alias name='ua-default'/><driver name='vhost' queues='4'/></interface>
<interface type='ethernet'><mac address='52:54:00:aa:00:02'/><alias name='net1'/><link state='down'/></interface>
<interface type='ethernet'><mac address='52:54:00:aa:00:04'/></interface>
<hostdev mode='subsystem'><alias name='ua-sriov-sr'/></hostdev><hostdev><alias name='gpu-x'/></hostdev>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' state='connected'/></channel>
</devices></domain>`

const someGuest = `[{"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": [{"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8}]},
{"name": "eth0", "hardware-address": "52:54:00:aa:00:01", "ip-addresses": [{"ip-address": "10.0.2.2", "ip-address-type": "ipv4", "prefix": 24}], "statistics": {"rx-bytes": 1}},
{"name": "tun0"}]`

// FuzzXML merges any domain.
func FuzzXML(f *testing.F) {
	f.Add([]byte(someXML))
	f.Add([]byte("<domain><devices><interface><alias name='&#x1b;[2J'/><mac address='\xff'/></interface></devices></domain>"))
	f.Fuzz(func(t *testing.T, xml []byte) {
		in := machine()
		in.Domain = vmistatus.FromXML(xml)
		in.Domain.Guest = []guest{g("eth0", "52:54:00:aa:00:01", g4)}
		checkInvariants(t, in)
	})
}

// FuzzGuest merges any answer of an agent.
func FuzzGuest(f *testing.F) {
	f.Add([]byte(someGuest))
	f.Add([]byte(`{"return": [{"name": "br0", "hardware-address": "52-54-00-AA-00-03", "ip-addresses": [{"ip-address": "::ffff:1.2.3.4"}]}]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		for _, p := range []vmistatus.Policy{vmistatus.FamilyMerge, vmistatus.PodAuthoritative} {
			in := machine()
			in.Policy = p
			in.Domain.Guest, in.Domain.GuestErr = vmistatus.FromGuest(answer)
			r := checkInvariants(t, in)
			if p == vmistatus.PodAuthoritative && r.Interfaces[0].IPs[0] != "scribbled" {
				t.Errorf("the pod's address is gone: %v", r.Interfaces[0])
			}
		}
	})
}

// FuzzNetworkStatus applies any annotation: what was known stays when it cannot be read.
func FuzzNetworkStatus(f *testing.F) {
	f.Add(list(eth0NS, hashed1NS))
	f.Add("null")
	f.Fuzz(func(t *testing.T, annotation string) {
		in := machine()
		m := vmiOf(nil, in.Previous)
		m.Spec.Domain.Devices.Interfaces, m.Spec.Networks = in.Interfaces, in.Networks
		before := text(t, m)
		got, err := vmistatus.FromPodStatus(m, podWith(annotation))
		if text(t, m) != before {
			t.Fatal("the input was changed")
		}
		if err != nil && !vmistatus.Equal(got, in.Previous) {
			t.Fatalf("%v, and the status is another: %s", err, cmp.Diff(in.Previous, got))
		}
		in.Multus = vmistatus.ReportOf(m, podWith(annotation))
		checkInvariants(t, in)
		m.Status.Interfaces = got
		again, _ := vmistatus.FromPodStatus(m, podWith(annotation))
		if !vmistatus.Equal(got, again) {
			t.Fatalf("a second time is another: %s", cmp.Diff(got, again))
		}
	})
}

// FuzzPodCache merges any addresses of a pod.
func FuzzPodCache(f *testing.F) {
	f.Add(p4, p6, "fe80::1%x")
	f.Fuzz(func(t *testing.T, ip, a, b string) {
		in := machine()
		in.PodCache = pods{"default": {PodIP: ip, PodIPs: []string{a, b}}, "red": read(a)}
		checkInvariants(t, in)
	})
}
