// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/kube/rest"
)

// objects are an API server's, by the kind of the resource.
type objects map[string][]string

func (o objects) List(_ context.Context, res rest.Resource, namespace string) (all []rest.Object, err error) {
	for _, text := range o[res.Kind] {
		var object rest.Object
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			return nil, err
		}
		if namespace == "" || object.Meta.Namespace == namespace {
			all = append(all, object)
		}
	}
	return all, nil
}

func driverWorld() objects {
	return objects{
		"ResourceSlice": {
			`{"metadata":{"name":"s1"},"spec":{"nodeName":"n1","driver":"networkdriver.cilium.io","pool":{"name":"n1/fast"},"devices":[
				{"name":"b","attributes":{"pool":{"string":"fast"},"deviceManager":{"string":"sr-iov"}}},
				{"name":"a","attributes":{"pool":{"string":"fast"},"deviceManager":{"string":"sr-iov"},"numa":{"int":1}}}]}}`,
			`{"metadata":{"name":"s2"},"spec":{"nodeName":"n1","driver":"gpu.example.com","pool":{"name":"n1"},"devices":[{"name":"gpu-0"}]}}`,
		},
		"ResourceClaim": {
			`{"metadata":{"namespace":"web","name":"nic"},"status":{"reservedFor":[{"resource":"pods","name":"p","uid":"u"}],
				"allocation":{"devices":{"results":[{"request":"r","driver":"networkdriver.cilium.io","pool":"n1/fast","device":"b"},
					{"request":"g","driver":"gpu.example.com","pool":"n1","device":"gpu-0"}]}},
				"devices":[{"driver":"networkdriver.cilium.io","pool":"n1/fast","device":"b","conditions":[{"type":"Ready","status":"True"}],"networkData":{"interfaceName":"sriov0"}}]}}`,
			`{"metadata":{"namespace":"web","name":"gpu"},"status":{"allocation":{"devices":{"results":[{"request":"g","driver":"gpu.example.com","pool":"n1","device":"gpu-0"}]}}}}`,
			`{"metadata":{"namespace":"web","name":"waits"}}`,
			`{"metadata":{"namespace":"other","name":"nic"},"status":{"allocation":{"devices":{"results":[{"request":"r","driver":"networkdriver.cilium.io","pool":"n1/fast","device":"a"}]}}}}`,
		},
		"CiliumNetworkDriverNodeConfig": {
			`{"metadata":{"name":"n1","generation":2,"labels":{"app.kubernetes.io/managed-by":"weft-operator"},"annotations":{"networkdriver.cilium.io/cluster-config":"c"}},"spec":{"deviceManagerConfigs":{"sriov":{"enabled":true},"dummy":{"enabled":true,"count":2}},"pools":[{"name":"fast","filter":{}}]},
				"status":{"conditions":[{"type":"Accepted","status":"True","observedGeneration":2},{"type":"Ready","status":"False","observedGeneration":2,"message":"PF ens1f0: is not there"}]}}`,
			`{"metadata":{"name":"n2","generation":1},"spec":{"pools":[{"name":"a/b"}]}}`,
			`{"metadata":{"name":"n3","generation":3},"spec":{},"status":{"conditions":[{"type":"Accepted","status":"True","observedGeneration":2}]}}`,
			`{"metadata":{"name":"n4"},"spec":{"pools":"all"}}`,
		},
	}
}

func table(t *testing.T, v interface{ WriteTable(w io.Writer) error }) string {
	t.Helper()
	var b strings.Builder
	if err := v.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// TestDriverOfServer: devices, claims and configurations as an API server knows them; those of other
// drivers are left out.
func TestDriverOfServer(t *testing.T) {
	api := driverWorld()
	devices, err := Devices(t.Context(), api)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := Claims(t.Context(), api, "web")
	if err != nil {
		t.Fatal(err)
	}
	configs, err := Configs(t.Context(), api)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ got, want string }{
		"devices": {table(t, devices), `NODE POOL NAME MANAGER CLAIM
n1 fast a sr-iov other/nic
n1 fast b sr-iov web/nic`},
		"claims": {table(t, claims), `NAMESPACE NAME PODS NODE POOL DEVICE READY INTERFACE
web nic p n1 fast b yes sriov0`},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	got := map[string]string{}
	for _, c := range configs.Configs {
		got[c.Node] = strings.Join([]string{c.Accepted, c.Ready, strings.Join(c.Managers, ","), c.Cluster, c.Problem}, "|")
	}
	for node, want := range map[string]string{
		"n1": "True|False|sr-iov,dummy|c|PF ens1f0: is not there",
		"n2": "Unknown|Unknown|||spec.pools[0].name",
		"n3": "True|Unknown|||the node's agent has not seen the last change yet",
		"n4": "||||cannot be read",
	} {
		if !strings.HasPrefix(got[node], want) {
			t.Errorf("configuration of %s: %q, want %q…", node, got[node], want)
		}
	}
}

// TestDriverOfAgent: what a node's agent says, and what of it names a pod that is gone.
func TestDriverOfAgent(t *testing.T) {
	devices := &NodeDevices{DevicesAnswer: debug.DevicesAnswer{Devices: []debug.Device{
		{Name: "dummy0", Manager: "dummy", Present: true},
		{Name: "dummy1", Manager: "dummy", Uses: []debug.Use{
			{Pool: "trial", Namespace: "web", Claim: "net", Pod: "p"}, {Pool: "trial", Namespace: "web", Claim: "old", PodUID: "u"},
		}},
	}}}
	claims := &NodeClaims{ClaimsAnswer: debug.ClaimsAnswer{Claims: []debug.Claim{
		{Namespace: "web", Name: "net", Pod: "p", Devices: []debug.ClaimDevice{{Pool: "trial", Device: "dummy1", Interface: "net9", VLAN: 7}}, Fault: "one\ntwo"},
	}}}
	for what, c := range map[string]struct{ got, want string }{
		"devices": {table(t, devices), `NAME MANAGER PRESENT POOL CLAIM POD
dummy0 dummy yes - - -
dummy1 dummy no trial web/net web/p
dummy1 dummy no trial web/old UID u, which the agent does not know`},
		"claims": {table(t, claims), `NAMESPACE NAME POD POOL DEVICE INTERFACE VLAN PROBLEM
web net web/p trial dummy1 net9 7 one two`},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
}
