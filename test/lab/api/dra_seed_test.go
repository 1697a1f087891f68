// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/test/lab"
)

// seedObjects are the node configuration, class, template and pod that users of the Cilium Network
// Driver have, as they stand, but for the one name that is wrong: the pod's template.
func seedObjects(t *testing.T) (nodeConfig, rest string) {
	t.Helper()
	content, err := os.ReadFile("testdata/seed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	mended := strings.Replace(string(content), "resourceClaimTemplateName: sriov-claim-direct", "resourceClaimTemplateName: sriov-claim", 1)
	nodeConfig, rest, _ = strings.Cut(mended, "---\n")
	return nodeConfig, rest
}

// The page of the network driver walks through the very objects that are tested here.
func TestDRAPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/network-driver.md")
	if err != nil {
		t.Fatal(err)
	}
	config, rest := seedObjects(t)
	for _, object := range append([]string{config}, strings.Split(rest, "---\n")...) {
		var shown strings.Builder
		for line := range strings.Lines(strings.TrimSuffix(object, "\n")) {
			shown.WriteString("    " + line)
		}
		if !strings.Contains(string(page), shown.String()) {
			t.Errorf("the page does not show\n%s", object)
		}
	}
}

// The whole way of the seed's walk-through: VFs are made and offered with the seed's attributes (T-1),
// the scheduler allocates one and binds the pod, the kubelet has it prepared and the claim says so
// (T-22), the tables show it to the seed's jq command (T-67), and it is given back.
func TestDRASeed(t *testing.T) {
	kube := draCluster(t)
	n := startNode(t, kube, "worker-node-1")
	config, objects := seedObjects(t)
	lab.Apply(t, config)
	n.configured()
	n.offers("0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6")
	seedAttributes(t, n)
	before := n.host.Snapshot()

	ns := lab.Namespace(t)
	lab.Apply(t, objects, "--namespace="+ns)
	claim, node := bound(t, kube, ns, "dpdk-app")
	if node != n.name {
		t.Fatalf("the pod is on %q", node)
	}
	for range 2 { // the kubelet may ask again
		if err := n.prepare(claim); err != nil {
			t.Fatal(err)
		}
	}
	device := claim.Status.Allocation.Devices.Results[0].Device
	prepared := claimOf(t, kube, ns, claim.Name)
	wantSeedStatus(t, n, prepared, device)
	if got := n.host.Snapshot()["vf "+pciOf(device)]; !strings.Contains(got, "vlan=1001 ") {
		t.Errorf("the VF is %s", got)
	}
	wantSeedTables(t, n, prepared, device)
	if err := n.prepare(claim); err != nil {
		t.Fatal(err)
	}
	if again := claimOf(t, kube, ns, claim.Name); again.ResourceVersion != prepared.ResourceVersion {
		t.Errorf("a repeated Prepare wrote (-before +after):\n%s", cmp.Diff(prepared, again))
	}
	for range 2 {
		n.unprepare(claim) // T-34
	}
	if d := cmp.Diff(before, n.host.Snapshot()); d != "" {
		t.Errorf("the host (-before +after):\n%s", d)
	}
}

func pciOf(device string) string {
	parts := strings.Split(device, "-")
	return parts[0] + ":" + parts[1] + ":" + parts[2] + "." + parts[3]
}

// seedAttributes checks one device of the slice, and what the slice says of itself.
func seedAttributes(t *testing.T, n *draNode) {
	t.Helper()
	all := n.slices()
	if len(all) != 1 {
		t.Fatalf("%d slices", len(all))
	}
	spec := all[0].Spec
	if spec.Driver != draDriver || spec.Pool.Name != n.name+"/sriov-pool" || spec.Pool.ResourceSliceCount != 1 || spec.NodeName == nil || *spec.NodeName != n.name {
		t.Errorf("slice %+v", spec)
	}
	if owners := all[0].OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" || owners[0].Name != n.name {
		t.Errorf("owners %+v", owners)
	}
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	want := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"pool": text("sriov-pool"), "deviceManager": text("sr-iov"), "driver": text("mlx5_corevf"), "vendor": text("0x15b3"), "deviceID": text("0x10ca"),
		"pfName": text("ens1f0"), "kernelIfName": text("ens1f0v0"), "resource.kubernetes.io/pciBusID": text("0000:03:10.0"),
		"resource.kubernetes.io/pcieRoot": text("pci0000:00"),
		"k8s.cni.cncf.io/deviceID":        text("0000:03:10.0"), "k8s.cni.cncf.io/resourceName": text(draDriver + "/sriov-pool"),
	}
	for _, d := range spec.Devices {
		if d.Name == "0000-03-10-0" {
			if diff := cmp.Diff(want, d.Attributes); diff != "" {
				t.Errorf("attributes (-want +got):\n%s", diff)
			}
		}
	}
}

// wantSeedStatus checks the entry of spec/dra.md 1.6.
func wantSeedStatus(t *testing.T, n *draNode, claim *resourceapi.ResourceClaim, device string) {
	t.Helper()
	index := map[string]string{"0": "0", "2": "1", "4": "2", "6": "3"}[device[len(device)-1:]]
	var mac string
	for name, link := range n.host.Snapshot() {
		if name == "link host ens1f0v"+index {
			_, mac, _ = strings.Cut(link, "mac=")
			mac, _, _ = strings.Cut(mac, " ")
		}
	}
	want := []resourceapi.AllocatedDeviceStatus{{
		Driver: draDriver, Pool: n.name + "/sriov-pool", Device: device,
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", Message: "Device is ready", ObservedGeneration: claim.Generation}},
		Data: &runtime.RawExtension{Raw: []byte(`{"Manager":"sr-iov","Dev":{"Addr":"` + pciOf(device) + `","Driver":"mlx5_corevf","Vendor":"0x15b3","DeviceID":"0x10ca",` +
			`"PFName":"ens1f0","VFID":` + index + `,"KernelIfaceName":"ens1f0v` + index + `"},"Config":{"podIfName":"sriov0","vlan":1001}}`)},
		NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: "sriov0", HardwareAddress: mac},
	}}
	sameJSON := cmp.Transformer("json", func(r runtime.RawExtension) (v any) {
		if err := json.Unmarshal(r.Raw, &v); err != nil {
			t.Error(err)
		}
		return v
	})
	if d := cmp.Diff(want, claim.Status.Devices, sameJSON, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
}

// wantSeedTables has the tables of the agent read as "weft statedb" prints them, by the command of
// the seed, as it stands there.
func wantSeedTables(t *testing.T, n *draNode, claim *resourceapi.ResourceClaim, device string) {
	t.Helper()
	program, err := os.ReadFile("../../../internal/dra/state/testdata/seed.jq")
	if err != nil {
		t.Fatal(err)
	}
	var tables bytes.Buffer
	if err := inspect.StateDB(t.Context(), n.debug(), &tables); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "jq", string(program))
	cmd.Stdin = &tables
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("jq: %v\n%s", err, out)
	}
	var got struct{ Inventory, Allocations []map[string]any }
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Inventory) != 4 || got.Inventory[0]["Name"] != "0000-03-10-0" || got.Inventory[0]["Manager"] != "sr-iov" {
		t.Errorf("inventory %v", got.Inventory)
	}
	want := []map[string]any{{
		"DeviceName": device, "Manager": "sr-iov", "Pool": "sriov-pool", "PodUID": string(claim.Status.ReservedFor[0].UID), "ClaimUID": string(claim.UID),
		"Config": map[string]any{"podIfName": "sriov0", "vlan": 1001.0},
	}}
	if d := cmp.Diff(want, got.Allocations); d != "" {
		t.Errorf("allocations (-want +got):\n%s", d)
	}
}
