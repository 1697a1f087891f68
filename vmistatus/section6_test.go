// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/vmistatus"
)

// six is a case of section 6 of the specification, by its number: what is right under
// pod-authoritative and, where the seed document decides otherwise, under family-merge.
type six struct {
	row
	family   []entry // want under family-merge; nil: the same
	changed  func(*vmistatus.Input)
	warnings []vmistatus.Code // under pod-authoritative
}

// TestSectionSix has the cases that a merge decides. TestControllerTable has 29 (its annotation),
// 33, 37, 39 and 43, TestCache 10, 33, 34, 36 and 48, TestFromXML 30, the property and fuzz
// tests 28, 29, 36 and 47. Cases 49 and 50 are the business of who asks libvirt: internal/vm/report's
// TestStuckMachine and TestStuckAgent, and internal/vm/source's TestHungAgent and TestAgentAskedItself.
func TestSectionSix(t *testing.T) {
	const upper, lower, other = "52:54:00:AA:00:01", "52:54:00:aa:00:01", "52:54:00:aa:00:02"
	prim := []spec{{"prim", "B", "pod", "", ""}}
	masq := []spec{{"prim", "M", "pod", "", ""}}
	sec := []spec{{"sec", "B", "mul", "", ""}}
	both := append(prim[:1:1], sec...)
	sr := &vmistatus.Domain{HostDevices: []vmistatus.HostDevice{{Name: "sr"}}}
	many := make([]string, 40000)
	for i := range many {
		many[i] = fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)
	}
	agent := func(s vmistatus.AgentState) func(*vmistatus.Input) {
		return func(in *vmistatus.Input) { in.Domain.Agent = s }
	}
	for _, c := range []six{
		{row: row{
			id: "2 bridge", spec: sec, domain: nics(d("sec", lower)), guest: []guest{g("br0", lower, "192.168.1.5"), g("enp1s0", lower)},
			want: []entry{nic("sec", lower, dga, "enp1s0", "192.168.1.5")},
		}},
		{row: row{
			id: "2 bridge, the other way round", spec: sec, domain: nics(d("sec", lower)), guest: []guest{g("enp1s0", lower), g("br0", lower, "192.168.1.5")},
			want: []entry{nic("sec", lower, dga, "enp1s0", "192.168.1.5")},
		}},
		{row: row{
			id: "3 VLAN", spec: sec, domain: nics(d("sec", lower)),
			guest: []guest{g("enp1s0.100", lower, "10.100.0.5"), g("enp1s0", lower, "192.168.1.5")},
			want:  []entry{nic("sec", lower, dga, "enp1s0", "192.168.1.5", "10.100.0.5")},
		}},
		{row: row{
			id: "5 macvlan", spec: masq, domain: nics(d("prim", lower)), pods: pods{"prim": read(p4)},
			guest: []guest{g("macvlan0", lower, "10.9.0.1"), g("eth0", lower, g4)}, want: []entry{nic("prim", lower, dga, "eth0", p4)},
		}},
		{row: row{
			id: "7 no MAC", spec: []spec{{"sr", "S", "mul", "", ""}}, domain: sr, guest: []guest{g("sit0", "", "100.64.0.2")},
			want: []entry{sriov("sr", "", dom, ""), guestOnly("sit0", "", "100.64.0.2")},
		}},
		{row: row{
			id: "7 zero MACs", domain: nics(d("a", "00:00:00:00:00:00")),
			guest: []guest{g("wg0", "00:00:00:00:00:00", "10.9.0.1"), g("tun0", "00:00:00:00:00:00", "10.8.0.1")},
			want: []entry{
				nic("a", "00:00:00:00:00:00", dom, ""),
				guestOnly("tun0", "00:00:00:00:00:00", "10.8.0.1"), guestOnly("wg0", "00:00:00:00:00:00", "10.9.0.1"),
			},
		}},
		{row: row{
			id: "8 dashes", spec: []spec{{"sr", "S", "mul", "DE-AD-00-00-BE-EF", ""}}, domain: sr, guest: []guest{g("eth1", "de:ad:00:00:be:ef", "10.1.0.1")},
			want: []entry{sriov("sr", "DE-AD-00-00-BE-EF", dga, "eth1", "10.1.0.1")},
		}},
		{row: row{
			id: "8 dots", spec: []spec{{"sr", "S", "mul", "dead.0000.BEEF", ""}}, domain: sr, guest: []guest{g("eth1", "de:ad:00:00:be:ef")},
			want: []entry{sriov("sr", "dead.0000.BEEF", dga, "eth1")},
		}},
		{row: row{
			id: "9 upper case", spec: prim, domain: nics(d("prim", upper)), guest: []guest{g("eth0", lower, g4)},
			want: []entry{nic("prim", upper, dga, "eth0", g4)},
		}},
		{
			row:    row{id: "12 masquerade, pod unknown", spec: masq, domain: nics(d("prim", lower)), guest: []guest{g("eth0", lower, g4)}, want: []entry{nic("prim", lower, dga, "eth0")}},
			family: []entry{nic("prim", lower, dga, "eth0", g4)},
		},
		{
			row:    row{id: "13 masquerade, v4 only", spec: masq, domain: nics(d("prim", lower)), pods: pods{"prim": read(p4)}, guest: []guest{g("eth0", lower, g4, g6)}, want: []entry{nic("prim", lower, dga, "eth0", p4)}},
			family: []entry{nic("prim", lower, dga, "eth0", p4, g6)},
		},
		{
			row:    row{id: "14 only an attacker's v6", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read(p4)}, guest: []guest{g("eth0", lower, "2001:db8::66")}, want: []entry{nic("prim", lower, dga, "eth0", p4)}},
			family: []entry{nic("prim", lower, dga, "eth0", "2001:db8::66")},
		},
		{
			row:    row{id: "16 no address in the guest", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read(p4, p6)}, guest: []guest{g("eth0", lower)}, want: []entry{nic("prim", lower, dga, "eth0", p4, p6)}},
			family: []entry{nic("prim", lower, dga, "eth0")}, warnings: []vmistatus.Code{vmistatus.NoGuestAddress},
		},
		{row: row{
			id: "17 VIP (pod-only, as documented)", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read("10.1.0.5")},
			guest: []guest{g("eth0", lower, "10.1.0.5", "10.1.0.100")}, want: []entry{nic("prim", lower, dga, "eth0", "10.1.0.5")},
		}},
		{
			row:    row{id: "19 v6 first", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read(p6, p4)}, guest: []guest{g("eth0", lower, p4, p6)}, want: []entry{nic("prim", lower, dga, "eth0", p6, p4)}},
			family: []entry{nic("prim", lower, dga, "eth0", p4, p6)},
		},
		{
			row: row{
				id: "20 agent gone for a moment, and who looks has never heard it", spec: both, domain: nics(d("prim", lower), d("sec", other)), pods: pods{"prim": read(p4)},
				before: []entry{nic("prim", lower, dga, "eth0", p4), nic("sec", other, dga, "eth1", "192.168.1.5"), guestOnly("br0", "52:54:00:aa:00:03", "10.9.0.1")},
				want:   []entry{nic("prim", lower, dga, "eth0", p4), nic("sec", other, dga, "eth1", "192.168.1.5"), guestOnly("br0", "52:54:00:aa:00:03", "10.9.0.1")},
			},
			changed: agent(vmistatus.AgentSilent), warnings: []vmistatus.Code{vmistatus.StaleAgent},
		},
		{
			row: row{
				id: "20 and the new pod of a migration", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read("10.244.7.7")},
				before: []entry{nic("prim", lower, dga, "eth0", p4)}, want: []entry{nic("prim", lower, dga, "eth0", "10.244.7.7")},
			},
			changed: agent(vmistatus.AgentSilent), warnings: []vmistatus.Code{vmistatus.StaleAgent, vmistatus.AddressConflict},
		},
		{
			row: row{
				id: "20 agent gone, and who looks has never heard it", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read(p4)},
				before: []entry{nic("prim", lower, dga, "eth0", p4)}, want: []entry{nic("prim", lower, dom, "", p4)},
			},
			changed: agent(vmistatus.AgentDisconnected),
		},
		{
			row: row{
				id: "20 agent gone", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read(p4)}, guest: []guest{g("eth0", lower), g("br0", other)},
				before: []entry{nic("prim", lower, dga, "eth0")}, want: []entry{nic("prim", lower, dom, "", p4)},
			},
			changed: agent(vmistatus.AgentDisconnected), warnings: []vmistatus.Code{vmistatus.StaleAgent},
		},
		{
			row: row{
				id: "21 paused", spec: prim, domain: nics(d("prim", lower)), guest: []guest{g("eth0", lower, g4)}, want: []entry{nic("prim", lower, dga, "eth0", g4)},
			},
			changed: agent(vmistatus.AgentSilent), warnings: []vmistatus.Code{vmistatus.StaleAgent},
		},
		{
			row: row{
				id: "21 the agent's answer is broken", spec: both, domain: nics(d("prim", lower), d("sec", other)), pods: pods{"prim": read(p4)},
				before: []entry{nic("prim", lower, dga, "eth0", p4), nic("sec", other, dga, "eth1", g4), guestOnly("wg0", "", "10.9.0.1")},
				want:   []entry{nic("prim", lower, dga, "eth0", p4), nic("sec", other, dga, "eth1", g4), guestOnly("wg0", "", "10.9.0.1")},
			},
			changed:  func(in *vmistatus.Input) { in.Domain.GuestErr = errors.New("broken") },
			warnings: []vmistatus.Code{vmistatus.SourceUnreadable},
		},
		{row: row{
			id: "22 loopback", domain: nics(),
			guest: []guest{g("lo", "00:00:00:00:00:00", "127.0.0.1", "::1"), g("Loopback Pseudo-Interface 1", "", "127.0.0.1"), g("x", "", "127.0.0.1", "::1"), g("eth5", other, "127.0.0.1", "10.0.0.1")},
			want:  []entry{guestOnly("eth5", other)}, // it is the first entry, whose address is dialled: not of the guest's choice
		}, family: []entry{guestOnly("eth5", other, "10.0.0.1")}},
		{row: row{
			id: "14 the first entry is only the guest's", spec: masq, domain: nics(), guest: []guest{g("dummy0", other, "10.96.0.1"), g("dummy1", "52:54:00:aa:00:03", "10.96.0.2")},
			want: []entry{guestOnly("dummy0", other), guestOnly("dummy1", "52:54:00:aa:00:03", "10.96.0.2")},
		}, family: []entry{guestOnly("dummy0", other, "10.96.0.1"), guestOnly("dummy1", "52:54:00:aa:00:03", "10.96.0.2")}},
		{row: row{
			id: "23 an alias", spec: sec, domain: nics(d("sec", lower)), guest: []guest{g("eth0:1", "", "10.0.0.2"), g("eth0", lower, "10.0.0.1")},
			want: []entry{nic("sec", lower, dga, "eth0", "10.0.0.1", "10.0.0.2")},
		}},
		{row: row{
			id: "25 mapped", spec: sec, domain: nics(d("sec", lower)), guest: []guest{g("eth0", lower, "::ffff:10.0.0.9", "10.0.0.9", "fe80::1%eth0", "2001:0db8::0001/64", "2001:db8::1", "nonsense", "0.0.0.0", "224.0.0.1")},
			want: []entry{nic("sec", lower, dga, "eth0", "10.0.0.9", "fe80::1", "2001:db8::1")},
		}},
		{
			row: row{id: "27 too much", spec: sec, domain: nics(d("sec", lower)), guest: []guest{g("eth0", lower, many...), g(strings.Repeat("x", 64<<10), other, many...)}, want: []entry{
				nic("sec", lower, dga, "eth0", many[:32]...), guestOnly(strings.Repeat("x", 63), other, many[:32]...),
			}},
			warnings: []vmistatus.Code{vmistatus.AddressLimit, vmistatus.AddressLimit, vmistatus.NameLimit},
		},
		{row: row{
			id: "28 multus alone", spec: append(both[:2:2], spec{"third", "B", "mul", "", ""}, spec{"fourth", "B", "mul", "", ""}), domain: nics(d("prim", lower)),
			guest:  []guest{g("wg0", "", "10.9.0.1")},
			before: []entry{bare("fourth", mul, ""), bare("sec", mul, ""), bare("third", mul, "")},
			want:   []entry{nic("prim", lower, dom, ""), bare("sec", mul, ""), bare("third", mul, ""), bare("fourth", mul, ""), guestOnly("wg0", "", "10.9.0.1")},
		}, warnings: []vmistatus.Code{vmistatus.UnmatchedNIC}},
		{row: row{
			id: "30 no alias, no MAC", spec: prim, domain: nics(d("", lower), d("prim", "")), want: []entry{nic("prim", "", dom, "")},
		}, warnings: []vmistatus.Code{vmistatus.DeviceSkipped}},
		{row: row{
			id: "32 the primary is away", spec: both, domain: nics(d("sec", other)), pods: pods{"prim": read(p4)},
			before: []entry{podIf(nic("prim", lower, dga, "eth0", p4), "eth0"), nic("sec", other, dom, "")},
			want: []entry{func() entry {
				e := with(bare("prim", "", "eth0"), p4)
				e.MAC = lower
				return e
			}(), nic("sec", other, dom, "")},
		}},
		{row: row{
			id: "32 as a Multus default network", spec: []spec{{"sec", "B", "mul", "", ""}, {"prim", "B", "default", "", ""}}, domain: nics(d("sec", other), d("prim", lower)),
			want: []entry{nic("prim", lower, dom, ""), nic("sec", other, dom, "")},
		}},
		{row: row{
			id: "41 absent, still there", spec: append(prim[:1:1], spec{"sec", "B", "mul", "", "absent"}), domain: nics(d("prim", lower), d("sec", other)), pods: pods{"sec": read(s4)},
			want: []entry{nic("prim", lower, dom, ""), nic("sec", other, dom, "", s4)},
		}},
		{row: row{
			id: "42 absent and gone", spec: append(prim[:1:1], spec{"sec", "B", "mul", "", "absent"}), domain: nics(d("prim", lower)),
			before: []entry{podIf(nic("sec", other, dgm, "eth1", s4), "pod5")}, want: []entry{nic("prim", lower, dom, ""), bare("sec", mul, "pod5")},
		}},
		{
			row: row{
				id: "44 old launcher", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": read(p4)}, guest: []guest{g("", lower)},
				want: []entry{nic("prim", lower, dom, "", p4)},
			},
			family: []entry{nic("prim", lower, dom, "")}, warnings: []vmistatus.Code{vmistatus.NoGuestAddress},
		},
		{row: row{
			id: "45 another MAC in the guest", spec: prim, domain: nics(d("prim", lower)), guest: []guest{g("eth0", other, "10.0.0.1")},
			want: []entry{nic("prim", lower, dom, ""), guestOnly("eth0", other, "10.0.0.1")},
		}, warnings: []vmistatus.Code{vmistatus.UnmatchedNIC}},
		{
			row:      row{id: "the domain is unreadable", spec: both, domain: &vmistatus.Domain{Err: errors.New("torn")}, pods: pods{"prim": read(p4)}, guest: []guest{g("eth1", other, g4)}, before: []entry{nic("prim", lower, dga, "eth0", "10.3.3.3"), nic("sec", other, dom, ""), guestOnly("wg0", "", "10.9.0.1")}, want: []entry{nic("prim", lower, dom, "", p4), nic("sec", other, dga, "eth1", g4)}},
			warnings: []vmistatus.Code{vmistatus.SourceUnreadable, vmistatus.UnmatchedNIC},
		},
		{
			row:      row{id: "the pod's file is unreadable", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": {Err: errors.New("denied")}}, guest: []guest{g("eth0", lower, g4)}, before: []entry{nic("prim", lower, dom, "", p4)}, want: []entry{nic("prim", lower, dga, "eth0", p4)}},
			warnings: []vmistatus.Code{vmistatus.AddressConflict, vmistatus.SourceUnreadable},
		},
		{
			row:      row{id: "the pod's file was never readable", spec: prim, domain: nics(d("prim", lower)), pods: pods{"prim": {Err: errors.New("denied")}}, guest: []guest{g("eth0", lower, g4)}, want: []entry{nic("prim", lower, dga, "eth0")}},
			family:   []entry{nic("prim", lower, dga, "eth0", g4)},
			warnings: []vmistatus.Code{vmistatus.SourceUnreadable},
		},
		{
			row:     row{id: "Multus decides", spec: both, domain: nics(d("prim", lower)), before: []entry{bare("prim", mul, "")}, want: []entry{nic("prim", lower, dom, ""), bare("sec", mul, "")}},
			changed: func(in *vmistatus.Input) { in.Multus = &vmistatus.MultusReport{Names: []string{"sec", "other"}} },
		},
		{
			row:      row{id: "37 Multus is unreadable", spec: both, domain: nics(d("prim", lower)), before: []entry{bare("sec", mul, "")}, want: []entry{nic("prim", lower, dom, ""), bare("sec", mul, "")}},
			changed:  func(in *vmistatus.Input) { in.Multus = &vmistatus.MultusReport{Err: errors.New("torn")} },
			warnings: []vmistatus.Code{vmistatus.SourceUnreadable},
		},
		{
			row: row{
				id: "one MAC twice", spec: both, domain: nics(d("prim", lower), d("sec", upper)), guest: []guest{g("eth0", lower, g4), g("bond0", lower, "10.5.0.1")},
				want: []entry{nic("prim", lower, dga, "eth0", g4, "10.5.0.1"), nic("sec", upper, dom, "")},
			},
			warnings: []vmistatus.Code{vmistatus.SharedMAC},
		},
		{row: row{
			id: "veths of one MAC", domain: nics(), guest: []guest{g("cali2", "ee:ee:ee:ee:ee:ee"), g("cali10", "ee:ee:ee:ee:ee:ee")},
			want: []entry{guestOnly("cali2", "ee:ee:ee:ee:ee:ee")},
		}},
	} {
		c.check(t, vmistatus.PodAuthoritative, c.want)
		if c.family != nil {
			c.check(t, vmistatus.FamilyMerge, c.family)
		} else {
			c.check(t, vmistatus.FamilyMerge, c.want)
		}
	}
}

func (c six) check(t *testing.T, p vmistatus.Policy, want []entry) {
	t.Helper()
	t.Run(c.id+"/"+string(p), func(t *testing.T) {
		in := c.input()
		in.Policy = p
		if c.changed != nil {
			c.changed(&in)
		}
		r := vmistatus.Merge(in)
		compare(t, want, r.Interfaces)
		if p == vmistatus.PodAuthoritative {
			var codes []vmistatus.Code
			for _, w := range r.Warnings {
				codes = append(codes, w.Code)
			}
			sorted := cmpopts.SortSlices(func(a, b vmistatus.Code) bool { return a < b })
			if diff := cmp.Diff(c.warnings, codes, cmpopts.EquateEmpty(), sorted); diff != "" {
				t.Errorf("warnings (-want +got):\n%s\n%v", diff, r.Warnings)
			}
		}
		in.Previous = r.Interfaces
		if again := vmistatus.Merge(in).Interfaces; !vmistatus.Equal(again, r.Interfaces) {
			compare(t, r.Interfaces, again)
		}
	})
}

// TestStatusIsBounded is case 27 for all of a status.
func TestStatusIsBounded(t *testing.T) {
	var all []spec
	var domain vmistatus.Domain
	for i := range 60 {
		name, mac := fmt.Sprintf("net-%d", i), fmt.Sprintf("52:54:00:00:01:%02x", i)
		all = append(all, spec{name, "B", "mul", "", ""})
		domain.Interfaces = append(domain.Interfaces, d(name, mac))
		guest := g(fmt.Sprintf("eth%d", i), mac)
		for j := range 40 {
			guest.IPs = append(guest.IPs, fmt.Sprintf("2001:db8:aaaa:bbbb:cccc:dddd:%x:%x", i+0x1000, j+0x1000))
		}
		domain.Guest = append(domain.Guest, guest)
	}
	in := vmistatus.Input{Domain: &domain}
	in.Interfaces, in.Networks = specs(all)
	r := vmistatus.Merge(in)
	text, err := json.Marshal(r.Interfaces)
	if err != nil || len(text) > vmistatus.MaxStatus || len(r.Interfaces) != len(all) {
		t.Errorf("%d bytes of %d entries (%v)", len(text), len(r.Interfaces), err)
	}
	if last := r.Warnings[len(r.Warnings)-1]; last.Code != vmistatus.SizeLimit {
		t.Errorf("nothing says so: %v", last)
	}
}

// TestOrderHasNoMeaning is case 40.
func TestOrderHasNoMeaning(t *testing.T) {
	var a []entry
	for i := range 12 {
		a = append(a, guestOnly(fmt.Sprintf("br%d", i), fmt.Sprintf("52:54:00:00:02:%02x", i), "10.0.0.1"))
	}
	a = append([]entry{nic("prim", m1, dgm, "eth0", p4, p6, g6)}, append(a, bare("sec", mul, "pod5"))...)
	b := append([]entry{nic("prim", m1, "multus-status, domain, guest-agent", "eth0", p4, g6, p6)}, a[len(a)-1])
	for i := len(a) - 2; i > 0; i-- {
		b = append(b, a[i])
	}
	if !vmistatus.Equal(a, b) {
		t.Error("the same in another order is not equal")
	}
	b[0], b[1] = b[1], b[0]
	if vmistatus.Equal(a, b) {
		t.Error("another entry at the primary's place is equal")
	}
	b[0], b[1] = b[1], with(b[0], p4)
	if vmistatus.Equal(a, b) {
		t.Error("an address more is equal")
	}
}

// TestStaleIsMarked: what is kept of a source that cannot be read says so, value by value, and what the
// other sources have does not.
func TestStaleIsMarked(t *testing.T) {
	const mac = "52:54:00:aa:00:01"
	kept := vmistatus.Origin{Source: vmistatus.FromBefore, Rule: vmistatus.KeptStale}
	first := func(s vmistatus.Source) vmistatus.Origin {
		return vmistatus.Origin{Source: s, Rule: vmistatus.FirstSource}
	}
	alone := vmistatus.Origin{Source: vmistatus.FromPod, Rule: vmistatus.PodAlone}
	for name, c := range map[string]struct {
		change func(*vmistatus.Input)
		want   map[vmistatus.Field]vmistatus.Origin
	}{
		"all can be read": {
			func(*vmistatus.Input) {},
			map[vmistatus.Field]vmistatus.Origin{
				vmistatus.MAC: first(vmistatus.FromDomain), vmistatus.LinkState: first(vmistatus.FromDomain),
				vmistatus.QueueCount: first(vmistatus.FromDomain), vmistatus.Addresses: alone,
			},
		},
		"the domain": {
			func(in *vmistatus.Input) { in.Domain = &vmistatus.Domain{Err: errors.New("torn")} },
			map[vmistatus.Field]vmistatus.Origin{
				vmistatus.MAC: kept, vmistatus.LinkState: kept, vmistatus.QueueCount: kept, vmistatus.Addresses: alone,
			},
		},
		"the pod's file": {
			func(in *vmistatus.Input) { in.PodCache = pods{"prim": {Err: errors.New("torn")}} },
			map[vmistatus.Field]vmistatus.Origin{
				vmistatus.MAC: first(vmistatus.FromDomain), vmistatus.LinkState: first(vmistatus.FromDomain),
				vmistatus.QueueCount: first(vmistatus.FromDomain), vmistatus.Addresses: kept,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := vmistatus.Input{Domain: nics(d("prim", mac)), PodCache: pods{"prim": read(p4)}, Previous: []entry{nic("prim", mac, dom, "", p4)}}
			in.Interfaces, in.Networks = specs([]spec{{"prim", "B", "pod", "", ""}})
			c.change(&in)
			r := vmistatus.Merge(in)
			compare(t, in.Previous, r.Interfaces)
			for f, want := range c.want {
				if got := r.Explain[0].Fields[f]; got != want {
					t.Errorf("%s is explained by %s %s, want %s %s", f, got.Source, got.Rule, want.Source, want.Rule)
				}
			}
			unreadable := slices.ContainsFunc(r.Warnings, func(w vmistatus.Warning) bool {
				return w.Code == vmistatus.SourceUnreadable && strings.Contains(w.Text, "torn")
			})
			if unreadable == (name == "all can be read") {
				t.Errorf("warnings: %v", r.Warnings)
			}
		})
	}
}

// However a loopback address is spelled, a record that has nothing else is not shown; one with anything
// else is.
func TestLoopbackSpellings(t *testing.T) {
	for s, shown := range map[string]bool{
		"127.0.0.1": false, "127.255.255.254": false, "127.0.0.1/8": false, "::1": false, "::1/128": false,
		"0:0:0:0:0:0:0:1": false, "0000::0001": false, "::ffff:127.0.0.1": false, "0::ffff:7f00:1": false,
		"": true, "x": true, "127": true, "127.0.0.256": true, "128.0.0.1": true, "0.0.0.0": true, "::": true,
		"::2": true, "fe80::1": true, "::ffff:10.0.0.1": true, "127.0.0.1 ": true, "1:0:0:0:0:0:0:1": true,
	} {
		r := vmistatus.Merge(vmistatus.Input{Domain: &vmistatus.Domain{Guest: []vmistatus.GuestInterface{g("x0", "", "127.0.0.2", s)}}})
		if got := len(r.Interfaces) == 1; got != shown {
			t.Errorf("%q: shown %v, want %v", s, got, shown)
		}
	}
}

// The first entry of the guest alone has no address under pod-authoritative: of a guest that is only
// remembered it is still that one, or each merge would take the next one's.
func TestRememberedFirstEntryStays(t *testing.T) {
	in := vmistatus.Input{Policy: vmistatus.PodAuthoritative, Domain: nics()}
	in.Domain.Guest = []guest{g("br0", "52:54:00:aa:00:01", "10.0.0.1"), g("br1", "52:54:00:aa:00:02", "10.0.0.2"), g("br2", "52:54:00:aa:00:03", "10.0.0.3")}
	want := vmistatus.Merge(in).Interfaces
	in.Previous, in.Domain = want, &vmistatus.Domain{Agent: vmistatus.AgentSilent}
	compare(t, want, vmistatus.Merge(in).Interfaces)
}
