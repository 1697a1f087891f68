// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/inspect"
)

// lintText is what lint finds in one file.
func lintText(t *testing.T, name, text string) []string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := inspect.Load([]string{path}, "")
	if err != nil {
		t.Fatal(err)
	}
	r := w.Lint(t.Context())
	var all []string
	for _, f := range append(r.Faults, r.Warnings...) {
		var b strings.Builder
		if err := f.Write(&b); err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimPrefix(strings.TrimSpace(b.String()), dir+"/"))
	}
	return all
}

func TestLintNodeConfig(t *testing.T) {
	got := lintText(t, "n.yaml", `# a comment
apiVersion: cilium.io/v2alpha1
kind: CiliumNetworkDriverNodeConfig
metadata:
  name: Node_1
spec:
  driverName: Net_Driver
  publishInterval: 10
  draRegistrationTimeout: "5"
  deviceManagerConfigs:
    sriov:
      enabled: "yes"
      ifaces:
        - ifName: ens1f0
          vfCount: -4
        - vfCount: 1
    dummy: {enabled: true, count: 5000}
    macvlan:
      enabled: true
  pools:
    - name: Fast_Net
    - nonsense
    - name: b
      filter:
        ifNames: [dummy0, on]
        vendorIDs:
          - 0x15b3
          - "0x15B3"
    - name: b
      filter: {ifNames: [x, dummy0], deviceManagers: [sriov]}
      name: c
`)
	subdomain := "must be a lower-case DNS subdomain: letters a to z, digits and hyphens, in parts that dots separate and that begin and end with a letter or digit"
	object := "CiliumNetworkDriverNodeConfig Node_1: "
	want := []string{
		"n.yaml:5: fault: " + object + `metadata.name: Invalid value: "Node_1": a lowercase RFC 1123 subdomain must consist of`,
		"n.yaml:7: fault: " + object + `spec.driverName: Invalid value: "Net_Driver": ` + subdomain,
		"n.yaml:9: fault: " + object + "spec.draRegistrationTimeout: is a string, must be a whole number",
		"n.yaml:12: fault: " + object + "spec.deviceManagerConfigs.sriov.enabled: is a string, must be true or false",
		"n.yaml:15: fault: " + object + "spec.deviceManagerConfigs.sriov.ifaces[0].vfCount: Invalid value: -4: must be 0 to 65535",
		"n.yaml:16: fault: " + object + `spec.deviceManagerConfigs.sriov.ifaces[1].ifName: Invalid value: "": must not be empty`,
		"n.yaml:17: fault: " + object + "spec.deviceManagerConfigs.dummy.count: Invalid value: 5000: must be 0 to 4096",
		"n.yaml:21: fault: " + object + `spec.pools[0].name: Invalid value: "Fast_Net": ` + subdomain,
		"n.yaml:22: fault: " + object + "spec.pools[1]: is a string, must be an object",
		"n.yaml:25: fault: " + object + `spec.pools[2].filter.ifNames[1]: is true or false, must be a string: write "on"`,
		"n.yaml:27: fault: " + object + `spec.pools[2].filter.vendorIDs[0]: is a whole number, must be a string: write "0x15b3"`,
		"n.yaml:28: fault: " + object + `spec.pools[2].filter.vendorIDs[1]: Invalid value: "0x15B3": must be 0x and four hexadecimal digits in lower case, such as 0x15b3`,
		"n.yaml:29: fault: " + object + `spec.pools[3].name: Duplicate value: "b"`,
		"n.yaml:30: fault: " + object + `spec.pools[3].filter.ifNames[1]: Invalid value: "dummy0": names one device, which is of pools[2] ("b") already`,
		"n.yaml:31: fault: " + object + "spec.pools[3].name: stands there twice",
		"n.yaml:8: warning: " + object + "spec.publishInterval: is no field that Weft knows; it has no effect",
		"n.yaml:18: warning: " + object + "spec.deviceManagerConfigs.macvlan: is no field that Weft knows; it has no effect",
		"n.yaml:21: warning: " + object + "spec.pools[0]: has no filter: nothing is in it, and it is not published; {} stands for all devices",
		"n.yaml:30: warning: " + object + `spec.pools[3].filter.deviceManagers[0]: "sriov" is no device manager that Weft has (sr-iov, dummy): none of its devices will be there`,
	}
	compareFindings(t, want, got)
}

// compareFindings compares the beginnings of texts that are not ours.
func compareFindings(t *testing.T, want, got []string) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		if strings.HasPrefix(got[i], want[i]) {
			got[i] = want[i]
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
}

func TestLintClusterConfig(t *testing.T) {
	got := lintText(t, "c.json", `{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumNetworkDriverClusterConfig", "metadata": {"name": "a"},
 "spec": {"nodeSelector": {"matchLabels": {"a": 1},
   "matchExpressions": [{"key": "a", "operator": "Foo"}]},
  "spec": {"pools": [{"name": "x", "filter": null}, {"name": "y", "filter": {}}]}}},
{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumNetworkDriverClusterConfig", "metadata": {"name": "b"},
 "spec": {}},
{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumNetworkDriverClusterConfig", "metadata": {"name": "c"}}
]}`)
	compareFindings(t, []string{
		`c.json:3: fault: CiliumNetworkDriverClusterConfig a: spec.nodeSelector.matchLabels.a: is a whole number, must be a string: write "1"`,
		`c.json:4: fault: CiliumNetworkDriverClusterConfig a: spec.nodeSelector.matchExpressions[0].operator: Invalid value: "Foo": must be In, NotIn, Exists or DoesNotExist`,
		`c.json:7: fault: CiliumNetworkDriverClusterConfig b: spec.spec: Required value: it is what the selected nodes get`,
		`c.json:8: fault: CiliumNetworkDriverClusterConfig c: spec: is missing`,
		`c.json:5: warning: CiliumNetworkDriverClusterConfig a: spec.spec.pools[0]: has no filter: nothing is in it, and it is not published; {} stands for all devices`,
	}, got)
}

func TestLintParameters(t *testing.T) {
	got := lintText(t, "claims.yaml", `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: sriov-claim}
spec:
  spec:
    devices:
      requests: [{name: net, exactly: {deviceClassName: c}}]
      config:
      - requests: [net]
        opaque:
          driver: networkdriver.cilium.io
          parameters:
            vlan: 4095
            vlann: 1
            podIfName: eth0
            podIfName: x
      - opaque: {driver: gpu.example.com, parameters: {vlan: x}}
      - opaque: {driver: other.example.com, parameters: {vlan: x}}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: c, namespace: ns}
spec: {devices: {config: [{opaque: {driver: networkdriver.cilium.io, parameters: []}}, {opaque: {driver: networkdriver.cilium.io}}]}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: k}
spec:
  config:
  - opaque: {driver: networkdriver.cilium.io, parameters: {vlan: 1001, podIfName: sriov0}}
---
apiVersion: cilium.io/v2alpha1
kind: CiliumNetworkDriverNodeConfig
metadata: {name: n1}
spec: {driverName: other.example.com}
`)
	template, claim := "ResourceClaimTemplate default/sriov-claim: spec.spec.devices.config", "ResourceClaim ns/c: spec.devices.config"
	compareFindings(t, []string{
		"claims.yaml:14: fault: " + template + "[0].opaque.parameters.vlan: 4095 is no VLAN, which is 1 to 4094, or 0 to leave it alone",
		"claims.yaml:15: fault: " + template + "[0].opaque.parameters.vlann: is no parameter of this driver, which has podIfName and vlan",
		"claims.yaml:17: fault: " + template + `[0].opaque.parameters.podIfName: "eth0" is the name of an interface that every pod has`,
		"claims.yaml:17: fault: " + template + "[0].opaque.parameters.podIfName: stands there twice",
		"claims.yaml:19: fault: " + template + `[2].opaque.parameters.vlan: "x" is no whole number`,
		"claims.yaml:24: fault: " + claim + "[0].opaque.parameters: are no object",
		"claims.yaml:24: fault: " + claim + "[1].opaque.parameters: is missing",
	}, got)
}

// The examples of the walk-through have nothing wrong with them, and no file makes it panic.
func TestLintDriverQuiet(t *testing.T) {
	for _, text := range []string{
		"apiVersion: cilium.io/v2alpha1\nkind: CiliumNetworkDriverNodeConfig\nmetadata: {name: worker-node-1}\nspec:\n  deviceManagerConfigs: {dummy: {enabled: yes}, sriov: {enabled: true, ifaces: [{ifName: ens1f0, vfCount: 4}]}}\n  pools:\n  - name: sriov-pool\n    filter: {deviceManagers: [sr-iov], pfNames: [ens1f0]}\n",
		"apiVersion: cilium.io/v2alpha1\nkind: CiliumNetworkDriverClusterConfig\nmetadata: {name: w}\nspec: {nodeSelector: {matchLabels: {node-role: sriov-worker}}, spec: {}}\n",
		"apiVersion: cilium.io/v1\nkind: CiliumNetworkDriverNodeConfig\nmetadata: {name: X}\n",
		"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {config: 7}}\n",
		"apiVersion: cilium.io/v2alpha1\nkind: CiliumNetworkDriverNodeConfig\nmetadata: {name: n}\nspec: &a {pools: [], driverName: null}\n",
	} {
		if got := lintText(t, "f.yaml", text); len(got) > 0 {
			t.Errorf("%s\n%q", text, got)
		}
	}
}

func FuzzLintDriver(f *testing.F) {
	f.Add([]byte("apiVersion: cilium.io/v2alpha1\nkind: CiliumNetworkDriverNodeConfig\nmetadata: {name: n}\nspec: &a {pools: [*a, {filter: *a}]}\n"))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: &a [{kind: List, items: *a}]\n"))
	f.Add([]byte("apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nspec: {config: [{opaque: {driver: networkdriver.cilium.io, parameters: {vlan: .nan, ? [a] : b}}}]}\n"))
	f.Add([]byte("apiVersion: cilium.io/v2alpha1\nkind: CiliumNetworkDriverClusterConfig\nspec: {spec: {draRegistrationTimeout: 99999999999999999999, pools: {}}, nodeSelector: []}\n---\n---\n{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := inspect.Load([]string{path}, "")
		if err != nil {
			return
		}
		for _, finding := range w.Lint(t.Context()).Faults {
			if finding.Source != nil && finding.Source.Line > strings.Count(string(data), "\n")+2 {
				t.Errorf("%+v is beyond the file", finding)
			}
		}
	})
}
