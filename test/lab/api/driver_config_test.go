// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/test/lab"
)

// driverConfigs is a resource of the network driver, whose definitions are installed.
func driverConfigs(t *testing.T, resource string) dynamic.ResourceInterface {
	t.Helper()
	lab.InstallCRDs(t)
	client, err := dynamic.NewForConfig(lab.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(schema.GroupVersionResource{Group: "cilium.io", Version: "v2alpha1", Resource: resource})
}

// driverConfig is an object whose spec is a YAML text.
func driverConfig(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(spec), &parsed); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": parsed,
	}}
}

const (
	nodeConfigKind    = "CiliumNetworkDriverNodeConfig"
	clusterConfigKind = "CiliumNetworkDriverClusterConfig"
	nodeConfigs       = "ciliumnetworkdrivernodeconfigs"
	clusterConfigs    = "ciliumnetworkdriverclusterconfigs"
)

// The examples of the walk-through, and what stands at the limits, are accepted.
func TestDriverConfigAccepted(t *testing.T) {
	resource := driverConfigs(t, nodeConfigs)
	for name, spec := range map[string]string{
		"empty":    `{}`,
		"dummy":    `{deviceManagerConfigs: {dummy: {enabled: true, count: 3}}, pools: [{name: fast-net, filter: {deviceManagers: [dummy]}}]}`,
		"sriov":    `{deviceManagerConfigs: {sriov: {enabled: true, ifaces: [{ifName: ens1f0, vfCount: 4}]}}, pools: [{name: sriov-pool, filter: {deviceManagers: [sr-iov], pfNames: [ens1f0]}}]}`,
		"filters":  `{pools: [{name: a}, {name: b, filter: {}}, {name: c.d-1, filter: {ifNames: [x], pfNames: ["é"], parentIfNames: [...], pciAddrs: ["0000:03:00.2"], vendorIDs: ["0x15b3"], deviceIDs: ["0x101e"], drivers: ["", vfio-pci]}}]}`,
		"limits":   `{driverName: ` + strings.Repeat("a", 63) + `, draRegistrationTimeout: 3600, pools: [{name: ` + strings.Repeat("a", 64) + `}], deviceManagerConfigs: {dummy: {count: 4096}, sriov: {sysBusPCIDevPath: /host/sys, ifaces: [{ifName: fifteen-letters, vfCount: 65535}]}}}`,
		"defaults": `{driverName: "", draRegistrationTimeout: 0}`,
	} {
		if _, err := resource.Create(t.Context(), driverConfig(t, nodeConfigKind, "lab-"+name, spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every rule of the definition fires, and says which field it is about.
func TestDriverConfigRefused(t *testing.T) {
	const link = "must be interface names: neither . nor .., without slash, colon and white space"
	resource := driverConfigs(t, nodeConfigs)
	for spec, want := range map[string][]string{
		`{driverName: Net_Driver}`:                                                   {"spec.driverName", "driverName must be a lower-case DNS subdomain"},
		`{driverName: ` + strings.Repeat("a", 64) + `}`:                              {"spec.driverName", "63"},
		`{draRegistrationRetryInterval: -1}`:                                         {"spec.draRegistrationRetryInterval", "greater than or equal to 0"},
		`{draRegistrationTimeout: 3601}`:                                             {"spec.draRegistrationTimeout", "less than or equal to 3600"},
		`{draRegistrationMaxAttempts: -1}`:                                           {"spec.draRegistrationMaxAttempts", "greater than or equal to 0"},
		`{deviceManagerConfigs: {dummy: {count: -1}}}`:                               {"spec.deviceManagerConfigs.dummy.count", "greater than or equal to 0"},
		`{deviceManagerConfigs: {dummy: {count: 4097}}}`:                             {"spec.deviceManagerConfigs.dummy.count", "less than or equal to 4096"},
		`{deviceManagerConfigs: {sriov: {sysBusPCIDevPath: sys}}}`:                   {"spec.deviceManagerConfigs.sriov.sysBusPCIDevPath"},
		`{deviceManagerConfigs: {sriov: {ifaces: [{vfCount: 4}]}}}`:                  {"spec.deviceManagerConfigs.sriov.ifaces[0].ifName", "Required value"},
		`{deviceManagerConfigs: {sriov: {ifaces: [{ifName: ""}]}}}`:                  {"spec.deviceManagerConfigs.sriov.ifaces[0].ifName", "at least 1"},
		`{deviceManagerConfigs: {sriov: {ifaces: [{ifName: a/b}]}}}`:                 {"spec.deviceManagerConfigs.sriov.ifaces[0].ifName", "ifName must be an interface name"},
		`{deviceManagerConfigs: {sriov: {ifaces: [{ifName: ".."}]}}}`:                {"spec.deviceManagerConfigs.sriov.ifaces[0].ifName", "ifName must be an interface name"},
		`{deviceManagerConfigs: {sriov: {ifaces: [{ifName: a, vfCount: -1}]}}}`:      {"spec.deviceManagerConfigs.sriov.ifaces[0].vfCount", "greater than or equal to 0"},
		`{deviceManagerConfigs: {sriov: {ifaces: [{ifName: a, vfCount: 65536}]}}}`:   {"spec.deviceManagerConfigs.sriov.ifaces[0].vfCount", "less than or equal to 65535"},
		`{deviceManagerConfigs: {sriov: {ifaces: [{ifName: a}, {ifName: a}]}}}`:      {"spec.deviceManagerConfigs.sriov.ifaces[1]", "Duplicate value"},
		`{pools: [{filter: {}}]}`:                                                    {"spec.pools[0].name", "Required value"},
		`{pools: [{name: ok}, {name: Fast_Net}]}`:                                    {"spec.pools[1].name", "name must be a lower-case DNS subdomain"}, // T-12
		`{pools: [{name: a/b}]}`:                                                     {"spec.pools[0].name", "name must be a lower-case DNS subdomain"},
		`{pools: [{name: ` + strings.Repeat("a", 65) + `}]}`:                         {"spec.pools[0].name", "64"},
		`{pools: [{name: a}, {name: b}, {name: a, filter: {}}]}`:                     {"spec.pools[2]", "Duplicate value", `"a"`}, // T-17
		`{pools: [{name: a, filter: {ifNames: [x, x]}}]}`:                            {"spec.pools[0].filter.ifNames[1]", "Duplicate value"},
		`{pools: [{name: a, filter: {ifNames: [sixteen-letters1]}}]}`:                {"spec.pools[0].filter.ifNames[0]", "15"},
		`{pools: [{name: a, filter: {ifNames: ["a b"]}}]}`:                           {"spec.pools[0].filter.ifNames", "ifNames " + link},
		`{pools: [{name: a, filter: {pfNames: ["a:b"]}}]}`:                           {"spec.pools[0].filter.pfNames", "pfNames " + link},
		`{pools: [{name: a, filter: {parentIfNames: ["."]}}]}`:                       {"spec.pools[0].filter.parentIfNames", "parentIfNames " + link},
		`{pools: [{name: a, filter: {pciAddrs: ["03:00.2"]}}]}`:                      {"spec.pools[0].filter.pciAddrs", "pciAddrs must be PCI addresses"},
		`{pools: [{name: a, filter: {pciAddrs: ["0000:0A:00.2"]}}]}`:                 {"spec.pools[0].filter.pciAddrs", "in lower case"},
		`{pools: [{name: a, filter: {vendorIDs: [15b3]}}]}`:                          {"spec.pools[0].filter.vendorIDs", "vendorIDs must be 0x and four"},
		`{pools: [{name: a, filter: {deviceIDs: ["0x15B3"]}}]}`:                      {"spec.pools[0].filter.deviceIDs", "deviceIDs must be 0x and four"},
		`{pools: [{name: a, filter: {deviceManagers: [""]}}]}`:                       {"spec.pools[0].filter.deviceManagers[0]", "at least 1"},
		`{pools: [{name: a, filter: {drivers: [` + strings.Repeat("a", 65) + `]}}]}`: {"spec.pools[0].filter.drivers[0]", "64"},
	} {
		refused(t, resource, driverConfig(t, nodeConfigKind, "lab-refused", spec), want...)
	}
}

func refused(t *testing.T, resource dynamic.ResourceInterface, object *unstructured.Unstructured, want ...string) {
	t.Helper()
	_, err := resource.Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !apierrors.IsInvalid(err) {
		t.Errorf("%v: %v, want it refused", object.Object["spec"], err)
		return
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v\n got %v\nwant %s in it", object.Object["spec"], err, part)
		}
	}
}

func TestDriverClusterConfig(t *testing.T) {
	resource := driverConfigs(t, clusterConfigs)
	for _, spec := range []string{
		`{spec: {}}`, `{nodeSelector: {}, spec: {pools: [{name: a}]}}`,
		`{nodeSelector: {matchLabels: {node-role: sriov-worker}, matchExpressions: [{key: a, operator: NotIn, values: [b]}, {key: c, operator: DoesNotExist}]}, spec: {}}`,
	} {
		if _, err := resource.Create(t.Context(), driverConfig(t, clusterConfigKind, "lab-accepted", spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	for spec, want := range map[string][]string{
		`{nodeSelector: {}}`: {"spec.spec", "Required value"},
		`{spec: {}, nodeSelector: {matchExpressions: [{key: a, operator: Foo}]}}`:                 {"spec.nodeSelector", "an operator must be In, NotIn, Exists or DoesNotExist"}, // T-65
		`{spec: {}, nodeSelector: {matchExpressions: [{key: a, operator: In}]}}`:                  {"spec.nodeSelector", "In and NotIn must have values"},
		`{spec: {}, nodeSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}`: {"spec.nodeSelector", "Exists and DoesNotExist must have none"},
		`{spec: {pools: [{name: Fast_Net}]}}`:                                                     {"spec.spec.pools[0].name", "name must be a lower-case DNS subdomain"},
	} {
		refused(t, resource, driverConfig(t, clusterConfigKind, "lab-refused", spec), want...)
	}
}

// What is stored has the defaults, and nothing of what this version does not have; a change of any
// field is taken, vfCount as well.
func TestDriverConfigStored(t *testing.T) {
	resource := driverConfigs(t, nodeConfigs)
	object := driverConfig(t, nodeConfigKind, "lab-stored", `
publishInterval: 10
deviceManagerConfigs:
  sriov: {enabled: true, ifaces: [{ifName: ens1f0, vfCount: 4, bridgeName: br0}]}
  macvlan: {enabled: true, ifaces: [{parentIfName: eth1, count: 3, mode: bridge}]}
  eswitchSriov: {enabled: true, bridges: [{name: br0, params: {a: b}}]}
pools: [{name: a, filter: {deviceManagers: [macvlan]}}]
`)
	created, err := resource.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := resource.Delete(t.Context(), "lab-stored", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	want := map[string]any{
		"driverName": "networkdriver.cilium.io", "draRegistrationRetryInterval": int64(1), "draRegistrationTimeout": int64(5), "draRegistrationMaxAttempts": int64(10),
		"deviceManagerConfigs": map[string]any{"sriov": map[string]any{"enabled": true, "ifaces": []any{map[string]any{"ifName": "ens1f0", "vfCount": int64(4)}}}},
		"pools":                []any{map[string]any{"name": "a", "filter": map[string]any{"deviceManagers": []any{"macvlan"}}}},
	}
	if d := cmp.Diff(want, created.Object["spec"]); d != "" {
		t.Errorf("stored (-want +got):\n%s", d)
	}
	patch := `{"spec":{"deviceManagerConfigs":{"sriov":{"ifaces":[{"ifName":"ens1f0","vfCount":8}]}}}}`
	changed, err := resource.Patch(t.Context(), "lab-stored", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("change vfCount: %v", err)
	}
	if changed.GetGeneration() != created.GetGeneration()+1 {
		t.Errorf("generation %d after %d", changed.GetGeneration(), created.GetGeneration())
	}
}

// The status is written by itself, does not count as a change of the spec, and is what the columns
// show under the short names.
func TestDriverConfigStatus(t *testing.T) {
	for _, c := range []struct {
		resource, kind, short, spec, status string
		want                                []string
	}{
		{
			nodeConfigs, nodeConfigKind, "ndnc", `{}`,
			`{"conditions":[{"type":"Accepted","status":"True","reason":"Valid","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"},
			  {"type":"Ready","status":"False","reason":"PFMissing","message":"ens9f0","lastTransitionTime":"2026-01-02T03:04:05Z"}]}`,
			[]string{"NAME ACCEPTED READY AGE", "lab-status True False"},
		},
		{
			clusterConfigs, clusterConfigKind, "ndcc", `{spec: {}}`,
			`{"nodeCount":3,"nodes":["a","b","c"],"observedGeneration":1,"conditions":[{"type":"cilium.io/ConflictingClusterConfiguration","status":"True",
			  "reason":"configurationConflict","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}`,
			[]string{"NAME NODES CONFLICTING AGE", "lab-status 3 True"},
		},
	} {
		resource := driverConfigs(t, c.resource)
		object := driverConfig(t, c.kind, "lab-status", c.spec)
		created, err := resource.Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := resource.Delete(t.Context(), "lab-status", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}()
		apply := `{"apiVersion":"cilium.io/v2alpha1","kind":"` + c.kind + `","metadata":{"name":"lab-status"},"status":` + c.status + `}`
		got, err := resource.Patch(t.Context(), "lab-status", types.ApplyPatchType, []byte(apply), metav1.PatchOptions{FieldManager: "weft-test", Force: new(true)}, "status")
		if err != nil {
			t.Fatal(err)
		}
		if got.GetGeneration() != created.GetGeneration() {
			t.Errorf("%s: the status counts as a change of the spec", c.kind)
		}
		out, err := lab.Cluster(t).Kubectl(t.Context(), "", "get", c.short, "lab-status")
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
			if words := strings.Join(strings.Fields(line), " "); i >= len(c.want) || !strings.HasPrefix(words, c.want[i]) {
				t.Errorf("kubectl get %s:\n%s\nwant %q", c.short, out, c.want)
			}
		}
		if out, err := lab.Cluster(t).Kubectl(t.Context(), "", "get", "cilium", "--output=name"); err != nil || !strings.Contains(out, "/lab-status") {
			t.Errorf("kubectl get cilium: %s, %v", out, err)
		}
	}
}

// A definition of others whose status has no conditions, or which has no status at all, answers an
// apply of conditions so; internal/kube/nodeconfig tells events instead then.
func TestDriverStatusOfOthers(t *testing.T) {
	for plural, c := range map[string]struct {
		schema, subresources string
		code                 int32
	}{
		"plains":  {`{}`, `{}`, 404},
		"narrows": {`{status: {type: object, properties: {managedBy: {type: string}}}}`, `{status: {}}`, 500},
	} {
		kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
		lab.Apply(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+plural+`.lab.weft}
spec:
  group: lab.weft
  scope: Cluster
  names: {kind: `+kind+`, plural: `+plural+`, singular: `+strings.ToLower(kind)+`}
  versions:
  - {name: v1, served: true, storage: true, subresources: `+c.subresources+`, schema: {openAPIV3Schema: {type: object, properties: `+c.schema+`}}}
`)
		if _, err := lab.Cluster(t).Kubectl(t.Context(), "", "wait", "--for=condition=Established", "--timeout=60s", "crd/"+plural+".lab.weft"); err != nil {
			t.Fatal(err)
		}
		client, err := dynamic.NewForConfig(lab.Cluster(t).Config())
		if err != nil {
			t.Fatal(err)
		}
		resource := client.Resource(schema.GroupVersionResource{Group: "lab.weft", Version: "v1", Resource: plural})
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "lab.weft/v1", "kind": kind, "metadata": map[string]any{"name": "n1"}}}
		if _, err := resource.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		apply := `{"apiVersion":"lab.weft/v1","kind":"` + kind + `","metadata":{"name":"n1"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
		got, err := resource.Patch(t.Context(), "n1", types.ApplyPatchType, []byte(apply), metav1.PatchOptions{FieldManager: "weft-test", Force: new(true)}, "status")
		status, ok := err.(apierrors.APIStatus)
		if !ok || status.Status().Code != c.code {
			t.Errorf("%s: %v, %v; want code %d", kind, got, err, c.code)
		} else {
			t.Logf("%s: %+v", kind, status.Status())
		}
	}
}
