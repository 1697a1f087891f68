// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/vmistatus"
)

const (
	p4, p6 = "10.244.1.120", "fd10:244::8c4c"
	g4, g6 = "10.0.2.2", "fd10:0:2::2"
	s4, s6 = "10.255.1.1", "fd20::1"
	// MACs as they may come: upper case, and none at all.
	m1, m2 = "1C:CE:C0:01:BE:E7", "C0:01:BE:E7:15:G0:0D"
)

// Shorthand of the tables: the spec's interfaces with their networks, and what a domain, a guest,
// a pod and the previous status have.
type (
	vmi   = v1.VirtualMachineInstance
	entry = vmistatus.Interface
	guest = vmistatus.GuestInterface
	ips   = []string
	pods  = map[string]vmistatus.PodRead
)

type spec struct {
	name    string
	binding string // B, M or S
	network string // pod, mul or default
	mac     string
	state   v1.InterfaceState
}

func (s spec) iface() v1.Interface {
	i := v1.Interface{Name: s.name, MacAddress: s.mac, State: s.state}
	switch s.binding {
	case "B":
		i.Bridge = &v1.InterfaceBridge{}
	case "M":
		i.Masquerade = &v1.InterfaceMasquerade{}
	case "S":
		i.SRIOV = &v1.InterfaceSRIOV{}
	}
	return i
}

func (s spec) net() v1.Network {
	n := v1.Network{Name: s.name}
	switch s.network {
	case "pod":
		n.Pod = &v1.PodNetwork{}
	case "mul":
		n.Multus = &v1.MultusNetwork{NetworkName: s.name + "-net"}
	case "default":
		n.Multus = &v1.MultusNetwork{NetworkName: s.name + "-net", Default: true}
	case "claim":
		n.ResourceClaim = &v1.ClaimRequest{}
	}
	return n
}

func specs(all []spec) (interfaces []v1.Interface, networks []v1.Network) {
	for _, s := range all {
		interfaces = append(interfaces, s.iface())
		networks = append(networks, s.net())
	}
	return interfaces, networks
}

func d(name, mac string) vmistatus.NIC {
	return vmistatus.NIC{Name: name, MAC: mac, Queues: 1, LinkState: "up"}
}

func nics(n ...vmistatus.NIC) *vmistatus.Domain { return &vmistatus.Domain{Interfaces: n} }

func g(name, mac string, ips ...string) guest { return guest{Name: name, MAC: mac, IPs: ips} }

func read(ips ...string) vmistatus.PodRead {
	if len(ips) == 0 {
		return vmistatus.PodRead{}
	}
	return vmistatus.PodRead{PodIP: ips[0], PodIPs: ips}
}

// nic is an entry of the domain.
func nic(name, mac, source, guestName string, ips ...string) entry {
	e := bare(name, source, "")
	e.MAC, e.InterfaceName, e.QueueCount, e.LinkState = mac, guestName, 1, "up"
	return with(e, ips...)
}

func sriov(name, mac, source, guestName string, ips ...string) entry {
	e := bare(name, source, "")
	e.MAC, e.InterfaceName = mac, guestName
	return with(e, ips...)
}

func guestOnly(name, mac string, ips ...string) entry {
	return with(entry{MAC: mac, InterfaceName: name, InfoSource: ga}, ips...)
}

func bare(name, source, podIf string) entry {
	return entry{Name: name, InfoSource: source, PodInterfaceName: podIf}
}

func with(e entry, ips ...string) entry {
	if len(ips) > 0 {
		e.IP, e.IPs = ips[0], ips
	}
	return e
}

func podIf(e entry, name string) entry {
	e.PodInterfaceName = name
	return e
}

const (
	dom, ga, mul = "domain", "guest-agent", "multus-status"
	dga          = "domain, guest-agent"
	dgm          = "domain, guest-agent, multus-status"
)

// row is one id of the conformance table of NetStat.
type row struct {
	id     string
	spec   []spec
	domain *vmistatus.Domain
	guest  []guest
	pods   pods
	before []entry
	want   []entry
}

func (r row) input() vmistatus.Input {
	in := vmistatus.Input{Domain: r.domain, PodCache: r.pods, Previous: r.before}
	in.Interfaces, in.Networks = specs(r.spec)
	if r.domain != nil {
		d := *r.domain
		d.Guest = r.guest
		in.Domain = &d
	}
	return in
}

// compare ignores the difference between no and an empty list, which JSON does not know.
func compare(t *testing.T, want, got []entry) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
}

// TestNetStatTable has every id of the table 2.1 that a merge decides; those of the cache (N2,
// N11) are TestCache's.
func TestNetStatTable(t *testing.T) {
	prim := []spec{{"prim", "B", "pod", "", ""}}
	both := []spec{{"prim", "B", "pod", "", ""}, {"sec", "B", "mul", "", ""}}
	masq := []spec{{"prim", "M", "pod", "", ""}}
	mixed := []spec{{"prim", "M", "pod", "", ""}, {"sec", "B", "mul", "", ""}}
	down := d("prim", m1)
	down.LinkState = "down"
	queues := d("prim", "")
	queues.Queues = 8
	onlySec := []spec{{"sec", "B", "mul", "", ""}}
	sr := vmistatus.HostDevice{Name: "sr"}
	srDomain := &vmistatus.Domain{HostDevices: []vmistatus.HostDevice{sr}}
	twoMACs := []guest{g("eth7", "02:00:00:00:07:07", g4, g6), g("eth8", "02:00:00:00:08:08", "10.9.9.9", "fd99::9")}
	cached := pods{"prim": read(p4, p6), "sec": read(s4, s6)}
	var bridges []guest
	for i := range 24 {
		bridges = append(bridges, g(fmt.Sprintf("br%d", i+1), fmt.Sprintf("02:00:00:00:aa:%02x", i+1)))
	}
	var ten []entry
	for i := range 10 {
		ten = append(ten, guestOnly(bridges[i].Name, bridges[i].MAC))
	}
	for _, r := range []row{
		{id: "N1", spec: prim, before: []entry{nic("prim", m1, dom, "", p4)}, want: []entry{nic("prim", m1, dom, "", p4)}},
		{id: "N2", spec: prim, domain: nics(d("prim", "")), pods: pods{"prim": read(p4)}, want: []entry{nic("prim", "", dom, "", p4)}},
		{
			id: "N3", spec: both, domain: nics(d("prim", ""), d("sec", "")), pods: cached,
			want: []entry{nic("prim", "", dom, "", p4, p6), nic("sec", "", dom, "", s4, s6)},
		},
		{id: "N4", spec: prim, domain: nics(queues), pods: cached, want: []entry{func() entry {
			e := nic("prim", "", dom, "", p4, p6)
			e.QueueCount = 8
			return e
		}()}},
		{
			id: "N5", spec: both, domain: nics(d("prim", m1), d("sec", m2)), pods: cached,
			guest: []guest{g("eth0", m1, p4, p6), g("eth1", m2)},
			want:  []entry{nic("prim", m1, dga, "eth0", p4, p6), nic("sec", m2, dga, "eth1")},
		},
		{
			id: "N6", spec: prim, domain: nics(d("prim", m1)), guest: []guest{g("eth0", m1, g4, g6)},
			want: []entry{nic("prim", m1, dga, "eth0", g4, g6)},
		},
		{
			id: "N7", spec: both, domain: nics(d("prim", m1), d("sec", m2)), pods: cached,
			guest:  []guest{g("eth0", m1, p4, p6), g("eth1", m2, g4, g6)},
			before: []entry{bare("prim", mul, ""), bare("sec", mul, ""), bare("foo", mul, "")},
			want:   []entry{nic("prim", m1, dgm, "eth0", p4, p6), nic("sec", m2, dgm, "eth1", s4, s6)},
		},
		{
			id: "N8", spec: masq, domain: nics(d("prim", m1)), pods: cached, guest: []guest{g("eth0", m1, g4, g6)},
			want: []entry{nic("prim", m1, dga, "eth0", p4, p6)},
		},
		{
			id: "N10", spec: prim, domain: nics(d("prim", m2)), pods: cached, before: []entry{nic("prim", m1, "", "", p4, p6)},
			want: []entry{nic("prim", m2, dom, "", p4, p6)},
		},
		{
			id: "N12", spec: prim, domain: nics(d("prim", m1)), pods: cached, guest: []guest{g("eth0", m1)},
			before: []entry{nic("prim", m1, dom, "", p4, p6)}, want: []entry{nic("prim", m1, dga, "eth0")},
		},
		{id: "N13", spec: []spec{{"sr", "S", "mul", m1, ""}}, domain: srDomain, want: []entry{sriov("sr", m1, dom, "")}},
		{
			id: "N14", spec: []spec{{"prim", "B", "pod", "", ""}, {"sr", "S", "mul", "", ""}}, pods: pods{"prim": read(p4)},
			domain: &vmistatus.Domain{Interfaces: []vmistatus.NIC{d("prim", "")}, HostDevices: []vmistatus.HostDevice{sr}},
			want:   []entry{nic("prim", "", dom, "", p4), sriov("sr", "", dom, "")},
		},
		{
			id: "N15", spec: []spec{{"sr", "S", "mul", m1, ""}}, domain: srDomain, guest: []guest{g("eth1", m1)},
			want: []entry{sriov("sr", m1, dga, "eth1")},
		},
		{
			id: "N17", spec: onlySec, domain: nics(d("sec", m1)), guest: []guest{g("eth0", m1, g4, "169.254.0.1", g6, "fe80::1")},
			want: []entry{nic("sec", m1, dga, "eth0", g4, "169.254.0.1", g6, "fe80::1")},
		},
		{
			id: "N18", spec: mixed, domain: nics(d("prim", m1), d("sec", m2)), pods: cached, guest: twoMACs,
			want: []entry{
				nic("prim", m1, dom, "", p4, p6), nic("sec", m2, dom, "", s4, s6),
				guestOnly("eth7", twoMACs[0].MAC, g4, g6), guestOnly("eth8", twoMACs[1].MAC, "10.9.9.9", "fd99::9"),
			},
		},
		{
			id: "N20", spec: mixed, domain: nics(d("prim", m1), d("sec", m2)), pods: cached,
			want: []entry{nic("prim", m1, dom, "", p4, p6), nic("sec", m2, dom, "", s4, s6)},
		},
		{
			id: "N21", spec: mixed, domain: nics(d("prim", m1), d("sec", m2)), pods: cached, guest: bridges,
			want: append([]entry{nic("prim", m1, dom, "", p4, p6), nic("sec", m2, dom, "", s4, s6)}, ten...),
		},
		{
			id: "N22", spec: prim, domain: nics(d("prim", m1)), pods: pods{"prim": read(p4)}, guest: []guest{g("", m1)},
			want: []entry{nic("prim", m1, dom, "")},
		},
		{
			id: "N23", spec: prim, domain: nics(d("prim", m1)), pods: pods{"prim": read(p4)}, guest: []guest{g("eth0", m1, p4)},
			want: []entry{nic("prim", m1, dga, "eth0", p4)},
		},
		{
			id: "N25", spec: both, domain: nics(d("prim", m1)), pods: cached, guest: []guest{g("eth0", m1, p4, p6)},
			before: []entry{bare("prim", mul, ""), bare("sec", mul, "")},
			want:   []entry{nic("prim", m1, dgm, "eth0", p4, p6), bare("sec", mul, "")},
		},
		{
			id: "N26", spec: prim, domain: nics(d("prim", m1)), pods: cached, guest: []guest{g("eth0", m1, p4, p6)},
			before: []entry{bare("prim", mul, ""), bare("sec", mul, "")},
			want:   []entry{nic("prim", m1, dgm, "eth0", p4, p6)},
		},
		{
			id: "N27", spec: prim, domain: nics(d("prim", m1)), pods: cached, guest: []guest{g("eth0", m1, p4, p6)},
			before: []entry{bare("prim", "", "custom-iface")},
			want:   []entry{podIf(nic("prim", m1, dga, "eth0", p4, p6), "custom-iface")},
		},
		{
			id: "N29", spec: onlySec, domain: nics(), before: []entry{bare("sec", mul, "pod123456")},
			want: []entry{bare("sec", mul, "pod123456")},
		},
		{id: "N30a", domain: nics(d("prim", m1)), want: []entry{nic("prim", m1, dom, "")}},
		{id: "N30b", domain: nics(down), want: []entry{func() entry {
			e := nic("prim", m1, dom, "")
			e.LinkState = "down"
			return e
		}()}},
		{id: "N31a", domain: nics(d("prim", m1)), pods: cached, want: []entry{nic("prim", m1, dom, "")}},
		{id: "N31b", spec: prim, domain: nics(), want: nil},
		{id: "N31c", spec: prim, domain: nics(d("prim", m1)), want: []entry{nic("prim", m1, dom, "")}},
		{id: "N31d", domain: nics(), pods: cached, want: nil},
	} {
		t.Run(r.id, func(t *testing.T) {
			compare(t, r.want, vmistatus.Merge(r.input()).Interfaces)
		})
	}
}
