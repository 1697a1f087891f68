// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/vmistatus"
)

const (
	defaultNS = `{"name":"kindnet","ips":["10.244.2.131"],"default":true}`
	eth0NS    = `{"name":"kindnet","interface":"eth0","ips":["10.244.2.131"],"default":true}`
	customNS  = `{"name":"kindnet","interface":"custom-iface","ips":["10.244.2.131"],"default":true}`
	hashed1   = "pod7e0055a6880"
	hashed1NS = `{"name":"ns/iface1-net","interface":"pod7e0055a6880"}`
	redHash   = "podb1f51a511f1"
	greenHash = "podba4788b226a"
)

func list(elements ...string) string {
	text := "["
	for i, e := range elements {
		if i > 0 {
			text += ","
		}
		text += e
	}
	return text + "]"
}

func podWith(annotation string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name = "ns", "launcher"
	if annotation != "" {
		p.Annotations = map[string]string{vmistatus.NetworkStatusAnnotation: annotation}
	}
	return p
}

func vmiOf(all []spec, before []entry) *vmi {
	m := &v1.VirtualMachineInstance{}
	m.Namespace, m.Name, m.UID = "ns", "vm", "vmi-1"
	m.Spec.Domain.Devices.Interfaces, m.Spec.Networks = specs(all)
	m.Status.Interfaces = before
	return m
}

// TestControllerTable has every id of the table 2.2, then what goes wrong upstream.
func TestControllerTable(t *testing.T) {
	prim := []spec{{"default", "B", "pod", "", ""}}
	alt := []spec{{"alternative", "B", "default", "", ""}}
	iface1 := []spec{{"iface1", "B", "mul", "", ""}}
	both := append(prim[:1:1], iface1...)
	claims := append(prim[:1:1], spec{"red", "S", "claim", "", ""}, spec{"blue", "S", "claim", "", ""})
	redGreen := []spec{{"red", "B", "mul", "", ""}, {"green", "B", "mul", "", ""}}
	seen := with(entry{InfoSource: ga, MAC: m1}, "1.2.3.4")
	red, blue := sriov("red", m1, dga, "eth1"), sriov("blue", m2, dga, "eth2")
	for _, r := range []struct {
		id     string
		spec   []spec
		ns     string
		before []entry
		want   []entry
		err    bool
	}{
		{id: "V1a"},
		{id: "V1b", ns: list(defaultNS)},
		{id: "V2a", spec: prim, want: []entry{bare("default", "", "eth0")}},
		{id: "V2b", spec: prim, ns: list(defaultNS), want: []entry{bare("default", "", "eth0")}},
		{id: "V2c", spec: prim, ns: list(eth0NS), want: []entry{bare("default", "", "eth0")}},
		{id: "V3a", spec: prim, before: []entry{bare("default", dga, "")}, want: []entry{bare("default", dga, "eth0")}},
		{id: "V3b", spec: prim, ns: list(defaultNS), before: []entry{bare("default", dga, "")}, want: []entry{bare("default", dga, "eth0")}},
		{id: "V3c", spec: prim, ns: list(eth0NS), before: []entry{bare("default", dga, "")}, want: []entry{bare("default", dga, "eth0")}},
		{
			id: "V4", spec: prim, ns: list(`{"name":"x","interface":"eth0","default":false}`, customNS),
			want: []entry{bare("default", "", "custom-iface")},
		},
		{id: "V5a", spec: alt, want: []entry{bare("alternative", "", "eth0")}},
		{id: "V5b", spec: alt, ns: list(defaultNS), want: []entry{bare("alternative", "", "eth0")}},
		{id: "V5c", spec: alt, ns: list(eth0NS), want: []entry{bare("alternative", "", "eth0")}},
		{id: "V6a", spec: alt, before: []entry{bare("alternative", dga, "")}, want: []entry{bare("alternative", dga, "eth0")}},
		{id: "V6b", spec: alt, ns: list(defaultNS), before: []entry{bare("alternative", dga, "")}, want: []entry{bare("alternative", dga, "eth0")}},
		{id: "V6c", spec: alt, ns: list(eth0NS), before: []entry{bare("alternative", dga, "")}, want: []entry{bare("alternative", dga, "eth0")}},
		{id: "V7", spec: iface1},
		{id: "V8a", spec: iface1, ns: list(defaultNS, hashed1NS), want: []entry{bare("iface1", mul, hashed1)}},
		{id: "V8b", spec: iface1, ns: list(defaultNS, `{"name":"meganet","interface":"net1"}`), want: []entry{bare("iface1", mul, "net1")}},
		{id: "V9a", spec: both, ns: list(defaultNS, hashed1NS), want: []entry{bare("default", "", "eth0"), bare("iface1", mul, hashed1)}},
		{id: "V9b", spec: both, ns: list(customNS, hashed1NS), want: []entry{bare("default", "", "custom-iface"), bare("iface1", mul, hashed1)}},
		{
			id: "V10", spec: both, ns: list(defaultNS, hashed1NS), before: []entry{bare("iface1", mul, "")},
			want: []entry{bare("default", "", "eth0"), bare("iface1", mul, hashed1)},
		},
		{id: "V11", spec: iface1, ns: list(defaultNS, hashed1NS), before: []entry{bare("iface1", mul, "")}, want: []entry{bare("iface1", mul, hashed1)}},
		{id: "V12", spec: iface1, ns: list(defaultNS), before: []entry{bare("iface1", mul, hashed1)}, want: []entry{bare("iface1", "", hashed1)}},
		{id: "V13", spec: iface1, ns: list(defaultNS), before: []entry{bare("iface1", ga, "")}, want: []entry{bare("iface1", ga, hashed1)}},
		{id: "V14", spec: iface1, ns: list(defaultNS, hashed1NS), before: []entry{seen}, want: []entry{bare("iface1", mul, hashed1), seen}},
		{id: "V15", spec: iface1, ns: list(defaultNS), before: []entry{bare("iface1", "", "")}, want: []entry{bare("iface1", "", hashed1)}},
		{
			id: "V16", spec: claims, before: []entry{bare("default", dga, ""), red, blue},
			want: []entry{bare("default", dga, "eth0"), red, blue},
		},
		{
			id: "29 a stray ordinal name", spec: redGreen, before: []entry{bare("red", dom+", "+mul, redHash)},
			ns:   list(defaultNS, `{"name":"ns/red-net","interface":"`+redHash+`"}`, `{"name":"ns/plugin","interface":"net2"}`),
			want: []entry{bare("red", dom+", "+mul, redHash)},
		},
		{
			id: "both schemes", spec: redGreen, ns: list(`{"interface":"`+redHash+`"}`, `{"interface":"net2"}`),
			want: []entry{bare("red", mul, redHash), bare("green", mul, "net2")},
		},
		{
			id: "33 an earlier network is gone", spec: redGreen[1:], before: []entry{bare("green", mul, "net2")},
			ns:   list(`{"name":"ns/red-net","interface":"net1"}`, `{"name":"ns/green-net","interface":"net2"}`),
			want: []entry{bare("green", mul, "net2")},
		},
		{
			id: "33 the same without what was known", spec: redGreen[1:],
			ns:   list(`{"name":"ns/red-net","interface":"net1"}`, `{"name":"ns/green-net","interface":"net2"}`),
			want: []entry{bare("green", mul, "net2")},
		},
		{
			id: "a definition without a link", spec: redGreen, ns: list(`{"name":"ns/green-net"}`),
			want: []entry{bare("green", mul, greenHash)},
		},
		{
			id: "37 malformed", spec: both, ns: `[{"name":"red"`, err: true,
			before: []entry{bare("default", dga, "custom-iface"), bare("iface1", mul, hashed1)},
			want:   []entry{bare("default", dga, "custom-iface"), bare("iface1", mul, hashed1)},
		},
		{
			id: "37 half of it", spec: both, ns: "[" + hashed1NS + `, {"name": 5}]`, err: true,
			before: []entry{bare("iface1", mul, hashed1)}, want: []entry{bare("default", "", "eth0"), bare("iface1", mul, hashed1)},
		},
		{id: "39 null", spec: prim, ns: "null", want: []entry{bare("default", "", "eth0")}},
		{id: "39 an object", spec: prim, ns: "{}", err: true, want: []entry{bare("default", "", "eth0")}},
		{id: "39 null elements", spec: both, ns: list("null", hashed1NS, "null"), want: []entry{bare("default", "", "eth0"), bare("iface1", mul, hashed1)}},
		{id: "39 duplicates", spec: iface1, ns: list(hashed1NS, hashed1NS), want: []entry{bare("iface1", mul, hashed1)}},
		{id: "text after it", spec: iface1, ns: list(hashed1NS) + "x", err: true},
		{id: "not in the spec", spec: prim, before: []entry{bare("ghost", dom, "")}, want: []entry{bare("default", "", "eth0"), bare("ghost", dom, "")}},
		{
			id: "43 a claim's network", spec: claims, ns: list(eth0NS), before: []entry{podIf(red, "pod-red")},
			want: []entry{bare("default", "", "eth0"), podIf(red, "pod-red")},
		},
	} {
		t.Run(r.id, func(t *testing.T) {
			m := vmiOf(r.spec, r.before)
			if err := vmistatus.UpdateFromPod(m, podWith(r.ns)); (err != nil) != r.err {
				t.Errorf("error: %v", err)
			}
			compare(t, r.want, m.Status.Interfaces)
			if err := vmistatus.UpdateFromPod(m, podWith(r.ns)); (err != nil) != r.err {
				t.Errorf("again: %v", err)
			}
			compare(t, r.want, m.Status.Interfaces)
		})
	}
}
