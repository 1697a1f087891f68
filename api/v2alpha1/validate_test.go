// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api/v2alpha1"
)

func nodeSpec(t *testing.T, text string) *v2alpha1.CiliumNetworkDriverNodeConfigSpec {
	t.Helper()
	s := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func messages(err error) []string {
	var all []string
	for _, one := range split(err) {
		all = append(all, one.Error())
	}
	return all
}

// sriov is what the walk-through has, with every other field besides.
const sriov = `
driverName: networkdriver.cilium.io
draRegistrationRetryInterval: 1
draRegistrationTimeout: 5
draRegistrationMaxAttempts: 10
deviceManagerConfigs:
  sriov: {enabled: true, sysBusPCIDevPath: /host/sys, ifaces: [{ifName: ens1f0, vfCount: 4}, {ifName: ens1f1}]}
  dummy: {enabled: true, count: 3}
pools:
- name: sriov-pool
  filter: {deviceManagers: [sr-iov], pfNames: [ens1f0], pciAddrs: ["0000:03:00.2"], vendorIDs: ["0x15b3"], deviceIDs: ["0x101e"], drivers: [mlx5_core, ""]}
- name: a.b-2
  filter: {ifNames: [dummy0, dummy1], parentIfNames: [bond0]}
- {name: everything, filter: {}}
- {name: nothing}
- {name: nothing-either}
`

func TestValidateAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"nothing at all": `{}`, "everything": sriov, "T-16, two pools without filter": `pools: [{name: a}, {name: b}]`,
		"different links":                     `pools: [{name: a, filter: {ifNames: [x, y]}}, {name: b, filter: {ifNames: [z]}}]`,
		"other values may be in several":      `pools: [{name: a, filter: {pfNames: [x], pciAddrs: ["0000:03:00.1"]}}, {name: b, filter: {pfNames: [x], pciAddrs: ["0000:03:00.1"]}}]`,
		"one link twice in one pool's fields": `pools: [{name: a, filter: {ifNames: [x], pfNames: [x]}}]`,
		"limits": fmt.Sprintf(`{driverName: %s, deviceManagerConfigs: {dummy: {count: 4096}, sriov: {sysBusPCIDevPath: /, ifaces: [{ifName: fifteen-letters, vfCount: 65535}]}},
			pools: [{name: %s}], draRegistrationTimeout: 3600}`, strings.Repeat("a", 63), strings.Repeat("a", 64)),
		"odd names":      `deviceManagerConfigs: {sriov: {ifaces: [{ifName: ...}, {ifName: "a\\b"}, {ifName: "é"}, {ifName: "x@y"}]}}`,
		"future manager": `pools: [{name: a, filter: {deviceManagers: [macvlan]}}]`,
	} {
		if err := nodeSpec(t, text).ValidateFor("n1"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	const link = "must hold no slash, colon or white space, as the name of an interface"
	for _, c := range []struct {
		text string
		want []string
	}{
		{`driverName: Net_Driver`, []string{`spec.driverName: Invalid value: "Net_Driver": must be a lower-case DNS subdomain: letters a to z, digits and hyphens, in parts that dots separate and that begin and end with a letter or digit`}},
		{`driverName: ` + strings.Repeat("a", 64), []string{`spec.driverName: Invalid value: "` + strings.Repeat("a", 64) + `": has 64 bytes, must have at most 63`}},
		{`{draRegistrationRetryInterval: -1, draRegistrationTimeout: 3601, draRegistrationMaxAttempts: -9}`, []string{
			`spec.draRegistrationRetryInterval: Invalid value: -1: must be 0 to 3600`,
			`spec.draRegistrationTimeout: Invalid value: 3601: must be 0 to 3600`,
			`spec.draRegistrationMaxAttempts: Invalid value: -9: must be 0 to 1000000`,
		}},
		{`deviceManagerConfigs: {dummy: {count: -1}}`, []string{`spec.deviceManagerConfigs.dummy.count: Invalid value: -1: must be 0 to 4096`}},
		{`deviceManagerConfigs: {dummy: {count: 4097}}`, []string{`spec.deviceManagerConfigs.dummy.count: Invalid value: 4097: must be 0 to 4096`}},
		{`deviceManagerConfigs: {sriov: {sysBusPCIDevPath: sys}}`, []string{`spec.deviceManagerConfigs.sriov.sysBusPCIDevPath: Invalid value: "sys": must be an absolute path, the root of sysfs`}},
		{`deviceManagerConfigs: {sriov: {sysBusPCIDevPath: /a/../b}}`, []string{`spec.deviceManagerConfigs.sriov.sysBusPCIDevPath: Invalid value: "/a/../b": must be a path without ., .. and double slashes: /b`}},
		{`deviceManagerConfigs: {sriov: {ifaces: [{ifName: a}, {ifName: a, vfCount: -4}, {ifName: ""}, {ifName: ".."}, {ifName: sixteen-letters1}]}}`, []string{
			`spec.deviceManagerConfigs.sriov.ifaces[1].ifName: Duplicate value: "a"`,
			`spec.deviceManagerConfigs.sriov.ifaces[1].vfCount: Invalid value: -4: must be 0 to 65535`,
			`spec.deviceManagerConfigs.sriov.ifaces[2].ifName: Invalid value: "": must not be empty`,
			`spec.deviceManagerConfigs.sriov.ifaces[3].ifName: Invalid value: "..": cannot be the name of an interface`,
			`spec.deviceManagerConfigs.sriov.ifaces[4].ifName: Invalid value: "sixteen-letters1": has 16 bytes, the name of an interface at most 15`,
		}},
		{`pools: [{name: Fast_Net}, {name: ""}, {name: a/b}, {name: ` + strings.Repeat("a", 65) + `}]`, []string{ // T-12
			`spec.pools[0].name: Invalid value: "Fast_Net": must be a lower-case DNS subdomain: letters a to z, digits and hyphens, in parts that dots separate and that begin and end with a letter or digit`,
			`spec.pools[1].name: Required value: a pool has a name`,
			`spec.pools[2].name: Invalid value: "a/b": must be a lower-case DNS subdomain: letters a to z, digits and hyphens, in parts that dots separate and that begin and end with a letter or digit`,
			`spec.pools[3].name: Invalid value: "` + strings.Repeat("a", 65) + `": has 65 bytes, must have at most 64`,
		}},
		{`pools: [{name: a}, {name: b, filter: {ifNames: [x, e0]}}, {name: a, filter: {ifNames: [z, e0]}}]`, []string{ // T-17
			`spec.pools[2].name: Duplicate value: "a"`,
			`spec.pools[2].filter.ifNames[1]: Invalid value: "e0": names one device, which is of pools[1] ("b") already`,
		}},
		{`pools: [{name: a, filter: {deviceManagers: [""], ifNames: ["a b"], pfNames: ["a:b", x, x], parentIfNames: ["a/b"], pciAddrs: ["03:00.1", "0000:0A:00.1", "0000:03:20.0"], vendorIDs: [15b3, "0x15B3"], deviceIDs: ["0x1"]}}]`, []string{
			`spec.pools[0].filter.deviceManagers[0]: Invalid value: "": must be the name of a device manager: sr-iov, dummy`,
			`spec.pools[0].filter.ifNames[0]: Invalid value: "a b": ` + link,
			`spec.pools[0].filter.pfNames[0]: Invalid value: "a:b": ` + link,
			`spec.pools[0].filter.pfNames[2]: Duplicate value: "x"`,
			`spec.pools[0].filter.parentIfNames[0]: Invalid value: "a/b": ` + link,
			`spec.pools[0].filter.pciAddrs[0]: Invalid value: "03:00.1": must be a PCI address with domain, in lower case, such as 0000:03:00.2`,
			`spec.pools[0].filter.pciAddrs[1]: Invalid value: "0000:0A:00.1": must be a PCI address with domain, in lower case, such as 0000:03:00.2`,
			`spec.pools[0].filter.pciAddrs[2]: Invalid value: "0000:03:20.0": must be a PCI address with domain, in lower case, such as 0000:03:00.2`,
			`spec.pools[0].filter.vendorIDs[0]: Invalid value: "15b3": must be 0x and four hexadecimal digits in lower case, such as 0x15b3`,
			`spec.pools[0].filter.vendorIDs[1]: Invalid value: "0x15B3": must be 0x and four hexadecimal digits in lower case, such as 0x15b3`,
			`spec.pools[0].filter.deviceIDs[0]: Invalid value: "0x1": must be 0x and four hexadecimal digits in lower case, such as 0x15b3`,
		}},
	} {
		if d := cmp.Diff(c.want, messages(nodeSpec(t, c.text).Validate())); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.text, d)
		}
	}
}

func TestValidateLists(t *testing.T) {
	s := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{DeviceManagerConfigs: &v2alpha1.DeviceManagerConfigs{SRIOV: &v2alpha1.SRIOVConfig{}}}
	f := &v2alpha1.DeviceFilter{}
	for i := range 257 {
		s.DeviceManagerConfigs.SRIOV.Ifaces = append(s.DeviceManagerConfigs.SRIOV.Ifaces, v2alpha1.SRIOVInterface{IfName: fmt.Sprint("e", i)})
		f.Drivers = append(f.Drivers, fmt.Sprint("d", i))
	}
	for i := range 65 {
		s.Pools = append(s.Pools, v2alpha1.DevicePool{Name: fmt.Sprint("p", i)})
	}
	s.Pools[64].Filter = f
	want := []string{
		"spec.deviceManagerConfigs.sriov.ifaces: Too many: 257: must have at most 256 items",
		"spec.pools: Too many: 65: must have at most 64 items",
		"spec.pools[64].filter.drivers: Too many: 257: must have at most 256 items",
	}
	if d := cmp.Diff(want, messages(s.Validate())); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

// What is accepted for a node is the name of a pool in a ResourceSlice of that node.
func TestValidateFor(t *testing.T) {
	s := nodeSpec(t, `pools: [{name: `+strings.Repeat("b", 64)+`}, {name: c}]`)
	label := strings.Repeat("n", 63)
	fits := strings.Join([]string{label, label, label[:60]}, ".") // 188 bytes
	if err := s.ValidateFor(fits); err != nil {
		t.Errorf("%d bytes: %v", len(fits)+65, err)
	}
	long := fits + "n"
	want := []string{`spec.pools[0].name: Invalid value: "` + strings.Repeat("b", 64) + `": with the node's name "` + long + `" before it, it has 254 bytes, of which a ResourceSlice takes 253`}
	if d := cmp.Diff(want, messages(s.ValidateFor(long))); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
	if got := messages((&v2alpha1.CiliumNetworkDriverNodeConfigSpec{}).ValidateFor("Node_1")); len(got) != 1 || !strings.HasPrefix(got[0], `metadata.name: Invalid value: "Node_1": `) {
		t.Errorf("node name: %q", got)
	}
}

func TestValidateClusterConfig(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{`spec: {}`, nil},
		{`{nodeSelector: {}, spec: {pools: [{name: a}]}}`, nil},
		{`{nodeSelector: {matchLabels: {node-role: sriov-worker}, matchExpressions: [{key: a, operator: In, values: [b]}, {key: c, operator: Exists}]}, spec: {}}`, nil},
		{`nodeSelector: {}`, []string{`spec.spec: Required value: it is what the selected nodes get`}},
		{`{nodeSelector: {matchExpressions: [{key: a, operator: Foo}]}, spec: {pools: [{name: A}]}}`, []string{ // T-65
			`spec.nodeSelector.matchExpressions[0].operator: Invalid value: "Foo": must be In, NotIn, Exists or DoesNotExist`,
			`spec.spec.pools[0].name: Invalid value: "A": must be a lower-case DNS subdomain: letters a to z, digits and hyphens, in parts that dots separate and that begin and end with a letter or digit`,
		}},
		{`{nodeSelector: {matchExpressions: [{key: a, operator: In}]}, spec: {}}`, []string{
			"spec.nodeSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
		}},
	} {
		s := &v2alpha1.CiliumNetworkDriverClusterConfigSpec{}
		if err := yaml.UnmarshalStrict([]byte(c.text), s); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, messages(s.Validate())); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.text, d)
		}
	}
}

func TestSetDefaults(t *testing.T) {
	want := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{
		DriverName: "networkdriver.cilium.io", DRARegistrationRetryInterval: 1, DRARegistrationTimeout: 5, DRARegistrationMaxAttempts: 10,
	}
	got := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{}
	for range 2 {
		got.SetDefaults()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("defaults (-want +got):\n%s", d)
		}
	}
	set := nodeSpec(t, `{driverName: a.b, draRegistrationRetryInterval: 2, draRegistrationTimeout: 3, draRegistrationMaxAttempts: 4, pools: [{name: x}]}`)
	cluster := &v2alpha1.CiliumNetworkDriverClusterConfigSpec{Spec: set.DeepCopy()}
	cluster.SetDefaults()
	if d := cmp.Diff(set, cluster.Spec); d != "" {
		t.Errorf("what is set was changed:\n%s", d)
	}
	(&v2alpha1.CiliumNetworkDriverClusterConfigSpec{}).SetDefaults()
}

func TestScheme(t *testing.T) {
	s := runtime.NewScheme()
	if err := v2alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{v2alpha1.NodeConfigKind, v2alpha1.ClusterConfigKind} {
		for _, kind := range []string{kind, kind + "List"} {
			if _, err := s.New(v2alpha1.GroupVersion().WithKind(kind)); err != nil {
				t.Error(err)
			}
		}
	}
}

// A copy shares nothing with what it was made of.
func TestDeepCopy(t *testing.T) {
	object := &v2alpha1.CiliumNetworkDriverNodeConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"a": "b"}}, Spec: *nodeSpec(t, sriov),
		Status: v2alpha1.CiliumNetworkDriverNodeConfigStatus{Conditions: []metav1.Condition{{Type: "Ready"}}},
	}
	copied, kept := object.DeepCopy(), object.DeepCopy()
	copied.Labels["a"] = "c"
	copied.Spec.Pools[0].Filter.PFNames[0] = "changed"
	copied.Spec.DeviceManagerConfigs.SRIOV.Ifaces[0].VFCount = 9
	copied.Spec.DeviceManagerConfigs.Dummy.Count = 9
	copied.Status.Conditions[0].Type = "changed"
	if d := cmp.Diff(kept, object); d != "" {
		t.Errorf("changed through the copy:\n%s", d)
	}
}

// Any spec ends in faults or none, and one that is accepted holds what the API's limits are.
func FuzzValidate(f *testing.F) {
	f.Add([]byte(sriov), "n1")
	f.Add([]byte(`pools: [{name: a}, {name: a, filter: null}]`), "")
	f.Add([]byte(`{deviceManagerConfigs: {sriov: null, dummy: {}}, pools: [{filter: {ifNames: [""]}}]}`), "a.b")
	f.Fuzz(func(t *testing.T, text []byte, node string) {
		s := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{}
		if err := yaml.Unmarshal(text, s); err != nil {
			return
		}
		s.SetDefaults()
		if s.ValidateFor(node) != nil {
			return
		}
		if len(s.DriverName) > 63 || strings.ToLower(s.DriverName) != s.DriverName {
			t.Errorf("driver %q is accepted", s.DriverName)
		}
		seen := map[string]bool{}
		for _, p := range s.Pools {
			if seen[p.Name] || p.Name == "" || len(node+"/"+p.Name) > 253 || strings.ContainsAny(p.Name, "/_ ") {
				t.Errorf("pool %q of node %q is accepted", p.Name, node)
			}
			seen[p.Name] = true
		}
	})
}
