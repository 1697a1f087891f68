// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	. "github.com/weftnet/weft/test/conformance"
)

const (
	networks = NetworksAnnotation
	ok1      = "pa ADD eth0"
)

// section is a part of the table.
type section struct {
	name  string
	cases []kase
}

func sections() []section {
	return []section{
		{"Annotation and naming", naming()},
		{"Isolation and default network", isolation()},
		{"runtimeConfig, arguments, devices", handed()},
		{"ADD that fails, status", failures()},
		{"An API server that misbehaves", broken()},
		{"Default routes", routeCases()},
		{"DEL and records", deletions()},
		{"Other verbs", verbs()},
		{"Further inputs that broke Multus (section 1)", further()},
	}
}

func naming() []kase {
	neta := func(members string) *string { return new(`[{"name":"neta",` + members + `}]`) }
	all := []kase{
		{
			number: "B1", networks: new("neta"), steps: []step{{
				verb: "ADD", calls: []string{ok1, "pb ADD net1"}, prints: `{"cniVersion":"1.0.0"}`,
				status:   `[{"name":"defnet","default":true},{"name":"default/neta"}]`,
				requests: &[]string{"get pods default/pod-a", "get network-attachment-definitions default/neta", "patch pods/status default/pod-a"},
			}},
		},
		{number: "B2", networks: new("neta,other/netb@foo0,neta"), steps: []step{add(ok1, "pb ADD net1", "pc ADD foo0", "pb ADD net3")}},
		{
			number: "B4", networks: new("neta@dup,neta@dup"), steps: []step{told(refused(networks+"[1]", `"dup"`, networks+"[0]"))},
			multus: "finds the clash when it attaches the second: pa and pb have run by then",
		},
		{
			number: "B5", networks: new("neta@eth0"), steps: []step{told(refused(networks+"[0]", `"eth0"`, "delegates[0]"))},
			multus: "runs both",
		},
		{
			number: "B7", networks: new("neta,"), steps: []step{add(ok1, "pb ADD net1")},
			multus: "looks for a NAD without a name",
		},
		{
			number: "B7", variant: "blank element inside", networks: new("neta,,neta"), steps: []step{told(refused(networks+"[1]", "is empty"))},
			multus: "looks for a NAD without a name",
		},
		{
			number: "B8", networks: new(" "), steps: []step{add(ok1)},
			multus: "looks for a NAD without a name",
		},
		{
			number: "B9", networks: new(`{"name":"neta"}`), steps: []step{told(refused(networks + ": is an object, an array is needed"))},
			multus: "an unmarshal error, and no event",
		},
	}
	for _, name := range []string{"abcdefghijklmnop", "x/y", "a:b", ".", ".."} {
		all = append(all, kase{
			number: "B10", variant: `"` + name + `"`, networks: neta(`"interface":"` + name + `"`),
			steps: []step{told(refused(networks+"[0].interface", `"`+name+`"`))}, multus: "attaches the default network first",
		})
	}
	return append(all, []kase{
		{
			number: "B11", networks: new(`[{"name":"other/netb"}]`),
			steps:  []step{{verb: "ADD", calls: []string{ok1, "pc ADD net1"}, warn: "key namespace", event: "QuestionableNetworks"}},
			multus: "an invalid resource name",
		},
		{
			number: "B11", variant: "strict", conf: `"strict":true`, networks: new(`[{"name":"other/netb"}]`),
			steps: []step{told(refused(networks+"[0].name", "key namespace"))}, multus: "an invalid resource name",
		},
		{
			number: "B12", networks: neta(`"mac":"24:8a:07:03:00:8d:ae:2f"`),
			steps: []step{told(refused(networks+"[0].mac", "6 bytes"))}, multus: "accepts it",
		},
		{
			number: "B12", variant: "GUID", networks: neta(`"infiniband-guid":"24:8a:07:03:00:8d"`),
			steps: []step{told(refused(networks+"[0].infiniband-guid", "8 bytes"))}, multus: "accepts it",
		},
		{
			number: "B13", networks: neta(`"ips":["10.1.1.5/24"]`),
			steps: []step{{
				verb: "ADD", calls: []string{ok1, "pb ADD net1"}, warn: "capability ips", event: "QuestionableNetworks",
				gets: map[string]string{
					"pb ADD net1 runtimeConfig": "",
					"pb ADD net1 CNI_ARGS":      Args("default", "pod-a", "uid-1") + ";IP=10.1.1.5/24",
				},
			}},
			multus: "drops the request without a word",
		},
		{
			number: "B13", variant: "strict", conf: `"strict":true`, networks: neta(`"ips":["10.1.1.5/24"]`),
			steps: []step{told(refused(networks+"[0].ips", "capability ips"))}, multus: "drops the request without a word",
		},
		{
			number: "B14", networks: neta(`"portMappings":[{"hostPort":99999,"containerPort":80}]`),
			steps: []step{told(refused(networks+"[0].portMappings[0].hostPort", "99999", "65535"))}, multus: "accepts it",
		},
		{number: "B15", networks: neta(`"interfaceRequest":"old0"`), steps: []step{add(ok1, "pb ADD old0")}},
		{number: "B15", variant: "both", networks: neta(`"interfaceRequest":"old0","interface":"new0"`), steps: []step{add(ok1, "pb ADD new0")}},
		{
			number: "B17", nads: map[string]string{"default/neta": `{"cniVersion":"1.0.0","type":"pb","args":"str"}`},
			networks: neta(`"cni-args":{"a":1}`), steps: []step{told(refused("NetworkAttachmentDefinition default/neta", "spec.config args", "is a string"))},
			multus: "panics",
		},
		{
			number: "B18", nads: map[string]string{"default/neta": `{"cniVersion":"1.0.0","plugins":[{"type":"pb","args":{"cni":{"a":9,"z":8},"other":1}},{"type":"pc"}]}`},
			networks: neta(`"cni-args":{"a":1,"b":2}`), steps: []step{{
				verb: "ADD", calls: []string{ok1, "pb ADD net1", "pc ADD net1"},
				gets: map[string]string{
					"pb ADD net1 args": `{"cni":{"a":1,"z":8,"b":2},"other":1}`,
					"pc ADD net1 args": `{"cni":{"a":1,"b":2}}`,
				},
			}},
		},
		{
			number:   "B19",
			nads:     map[string]string{"default/neta": `{"type":"pb","result":{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"$DIR/netns"}],"ips":[{"address":"10.2.0.2/24","interface":0}]}}`},
			networks: new("neta"), steps: []step{{
				verb: "ADD", calls: []string{ok1, "pb ADD net1"},
				gets:   map[string]string{"pb ADD net1 cniVersion": `"1.0.0"`},
				status: `[{"name":"defnet","default":true},{"name":"default/neta","interface":"net1","ips":["10.2.0.2"],"mac":"02:00:00:00:00:01"}]`,
			}},
			multus: "takes the result for one of 0.1.0 and loses its interfaces",
		},
		{
			number: "B20", nads: map[string]string{"default/neta": ""}, networks: new("neta"),
			files: map[string]string{"conf/01-broken.conf": "{bad", "conf/10-a.conflist": `{"cniVersion":"1.0.0","name":"neta","plugins":[{"type":"pb"}]}`},
			steps: []step{{verb: "ADD", calls: []string{ok1, "pb ADD net1"}, warn: "01-broken.conf"}}, multus: "fails at the broken file",
		},
	}...)
}

func isolation() []kase {
	const on = `"namespaceIsolation":true`
	const cluster = `"delegates":null,"clusterNetwork":"cn","defaultNetworks":["fromfile","third"]`
	nads := map[string]string{
		"kube-system/cn":    `{"cniVersion":"1.0.0","type":"pa"}`,
		"kube-system/third": `{"cniVersion":"1.0.0","type":"pd"}`,
		"kube-system/neta":  `{"cniVersion":"1.0.0","type":"pb"}`,
	}
	files := map[string]string{"conf/20-f.conf": `{"cniVersion":"1.0.0","name":"fromfile","type":"pk"}`}
	netk := map[string]string{"kube-system/netk": `{"cniVersion":"1.0.0","type":"pk","capabilities":{"mac":true,"ips":true}}`}
	return []kase{
		{number: "B21", conf: on, namespace: "ns1", networks: new("other/netb"), steps: []step{told(refused(networks+"[0]", `"other"`, `"ns1"`))}},
		{number: "B21", variant: "default", conf: on, namespace: "ns1", networks: new("default/neta"), steps: []step{add(ok1, "pb ADD net1")}},
		{number: "B21", variant: "made global", conf: on + `,"globalNamespaces":"other"`, namespace: "ns1", networks: new("other/netb"), steps: []step{add(ok1, "pc ADD net1")}},
		{
			number: "B21", variant: "global no more", conf: on + `,"globalNamespaces":"other"`, namespace: "ns1", networks: new("default/neta"),
			steps: []step{told(refused(networks+"[0]", `"default"`, `"ns1"`))},
		},
		{
			number: "B21", variant: "default network", conf: on, namespace: "ns1", def: new("other/netb"),
			steps: []step{told(refused(DefaultAnnotation, `"other"`, `"ns1"`))}, multus: "does not apply isolation to the default network: eth0 is of namespace other",
		},
		{number: "B23", variant: "[]", def: new("[]"), steps: []step{add(ok1)}, multus: "panics"},
		{number: "B23", variant: "empty", def: new(""), steps: []step{add(ok1)}, multus: "an error"},
		{
			number: "B24", nads: netk, def: new(`[{"name":"netk","mac":"02:00:00:00:00:09","ips":["10.1.1.1/24"]}]`), steps: []step{{
				verb: "ADD", calls: []string{"pk ADD eth0"},
				gets: map[string]string{"pk ADD eth0 runtimeConfig": `{"ips":["10.1.1.1/24"],"mac":"02:00:00:00:00:09"}`},
			}},
			multus: "hands over neither",
		},
		{
			number: "B25", nads: netk, def: new("netk@foo0"), steps: []step{told(refused(DefaultAnnotation, "foo0", "eth0"))},
			multus: "renames eth0, which the kubelet then misses",
		},
		{
			number: "B26", conf: cluster, nads: nads, files: files, networks: new("neta"),
			steps: []step{add("pa ADD eth0", "pk ADD net1", "pd ADD net2", "pb ADD net3")},
		},
		{
			number: "B26", variant: "system namespace", conf: cluster, nads: nads, files: files, namespace: "kube-system", networks: new("neta"),
			steps: []step{add("pa ADD eth0", "pb ADD net1")},
		},
	}
}

// told is a refusal that the pod's owner is told by an event.
func told(s step) step {
	s.event = "InvalidNetworks"
	return s
}
