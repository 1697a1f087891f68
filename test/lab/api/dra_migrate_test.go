// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/test/lab"
)

// oldSlice is what a driver publishes whose pools do not name their nodes.
const oldSlice = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %[1]s-old}
spec:
  driver: networkdriver.cilium.io
  nodeName: %[1]s
  pool: {name: trial, generation: 1, resourceSliceCount: 1}
  devices: [{name: 0000-03-10-2, attributes: {pool: {string: trial}}}]
`

// A device that the Cilium Network Driver has prepared, in a pod when Weft takes its place, is taken
// over from the claim: it is offered to nobody else, given back under its old name, and offered then.
func TestDRAFromCilium(t *testing.T) {
	kube := draCluster(t)
	n := newNode(t, kube, "worker-node-1")
	if err := n.host.SetNumVFs("0000:03:00.0", 4); err != nil {
		t.Fatal(err)
	}
	before := n.host.Snapshot()
	ns := lab.Namespace(t)
	trialClass(t, kube, ns, "[]")
	lab.Apply(t, fmt.Sprintf(oldSlice, n.name))
	trialPods(t, ns, "old")
	claim, _ := bound(t, kube, ns, "old")
	n.asCilium(claim)
	if err := kube.ResourceV1().ResourceSlices().Delete(t.Context(), n.name+"-old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	n.start()
	n.configure(trialConfig)
	n.holds(claim)
	n.offers("0000-03-10-0", "0000-03-10-4", "0000-03-10-6")
	taken := claimOf(t, kube, ns, claim.Name)
	if d := cmp.Diff(claim.Status.Devices, taken.Status.Devices, cmpopts.IgnoreFields(runtime.RawExtension{}, "Raw")); d != "" {
		t.Errorf("the claim's status (-other driver's +after):\n%s", d)
	}
	n.host.DestroyNamespace("/run/netns/old")
	n.unprepare(claim)
	if d := cmp.Diff(before, n.host.Snapshot()); d != "" {
		t.Errorf("the host (-before +after):\n%s", d)
	}
	if err := kube.CoreV1().Pods(ns).Delete(t.Context(), "old", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	n.offers("0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6")
}

// asCilium does with a claim's one device what that driver does: VLAN, status, and the link in the pod.
func (n *draNode) asCilium(claim *resourceapi.ResourceClaim) {
	n.t.Helper()
	if err := n.host.SetVF("0000:03:00.0", 1, kernel.VFChange{VLAN: new(1001)}); err != nil {
		n.t.Fatal(err)
	}
	pod := n.host.AddNamespace("/run/netns/old")
	link, err := n.host.Link(kernel.Namespace{}, "ens1f0v1")
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.host.Move(kernel.Namespace{}, link.Index, pod, "sriov0"); err != nil {
		n.t.Fatal(err)
	}
	r := claim.Status.Allocation.Devices.Results[0]
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: r.Driver, Pool: r.Pool, Device: r.Device, NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: r.Device},
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", Message: "Device is ready", LastTransitionTime: metav1.Now().Rfc3339Copy()}},
		Data: &runtime.RawExtension{Raw: []byte(`{"Manager":"SR-IOV","Dev":{"Addr":"0000:03:10.2","Driver":"mlx5_corevf","Vendor":"0x15b3","DeviceID":"0x10ca",` +
			`"PFName":"ens1f0","VFID":1,"KernelIfaceName":"ens1f0v1"},"Config":{"podIfName":"sriov0","vlan":1001},"More":1}`)},
	}}
	if _, err := n.kube.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(n.t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}
