// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/test/lab"
)

// mixed has a device of another driver beside ours: parameters of the class, some of the claim for
// all of its requests, and some for the other driver that are wrong in ours.
const mixed = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %[2]s-gpu}
spec:
  driver: gpu.example.com
  nodeName: %[2]s
  pool: {name: %[2]s-gpu, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %[1]s-gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: mixed}
spec:
  devices:
    requests:
    - {name: gpu, exactly: {deviceClassName: %[1]s-gpu}}
    - {name: net, firstAvailable: [{name: none, deviceClassName: %[1]s, count: 32}, {name: one, deviceClassName: %[1]s}]}
    config:
    - {requests: [gpu], opaque: {driver: gpu.example.com, parameters: {vlan: x}}}
    - {opaque: {driver: networkdriver.cilium.io, parameters: {podIfName: b0}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: typo}
spec:
  devices:
    requests: [{name: net, exactly: {deviceClassName: %[1]s}}]
    config: [{opaque: {driver: networkdriver.cilium.io, parameters: {vlann: 5}}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: looks}
spec: {devices: {requests: [{name: net, exactly: {deviceClassName: %[1]s, adminAccess: true}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: mixed}
spec: {resourceClaims: [{name: r, resourceClaimName: mixed}], containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: typo}
spec: {resourceClaims: [{name: r, resourceClaimName: typo}], containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: looks}
spec: {resourceClaims: [{name: r, resourceClaimName: looks}], containers: [{name: app, image: app}]}
`

// What the real allocator hands to the driver: results of two drivers (T-23), parameters of class and
// claim (T-26), for all requests (T-24), alternatives of a request, administrators' access (T-36), and
// parameters that are wrong (T-28).
func TestDRAClaims(t *testing.T) {
	kube := draCluster(t)
	n := startNode(t, kube, "worker-node-1")
	n.configure(trialConfig)
	n.offers("0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6")
	ns := lab.Namespace(t)
	if _, err := lab.Cluster(t).Kubectl(t.Context(), "", "label", "namespace", ns, "resource.kubernetes.io/admin-access=true"); err != nil {
		t.Fatal(err)
	}
	trialClass(t, kube, ns, `[{opaque: {driver: networkdriver.cilium.io, parameters: {vlan: 10, podIfName: a0}}}]`)
	n.atEnd("the other class", n.deleteClass(ns+"-gpu"))
	lab.Apply(t, fmt.Sprintf(mixed, ns, n.name), "--namespace="+ns)

	before := n.host.Snapshot()
	claim, _ := bound(t, kube, ns, "mixed")
	foreign := resourceapi.AllocatedDeviceStatus{
		Driver: "gpu.example.com", Pool: n.name + "-gpu", Device: "gpu-0", Data: &runtime.RawExtension{Raw: []byte(`{"Manager":"sr-iov"}`)},
	}
	claim.Status.Devices = append(claim.Status.Devices, foreign)
	if _, err := kube.ResourceV1().ResourceClaims(ns).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := n.prepare(claim); err != nil {
		t.Fatal(err)
	}
	wantMixed(t, n, claimOf(t, kube, ns, claim.Name), foreign)
	n.unprepare(claim)

	typo, _ := bound(t, kube, ns, "typo")
	if err := n.prepare(typo); err == nil || !strings.Contains(err.Error(), "vlann: is no parameter of this driver") {
		t.Errorf("prepare with a parameter that there is none of: %v", err)
	}
	n.event(typo, "PrepareFailed", "vlann: is no parameter of this driver")
	looks, _ := bound(t, kube, ns, "looks")
	if err := n.prepare(looks); err != nil {
		t.Errorf("prepare for an administrator: %v", err)
	}
	if got := claimOf(t, kube, ns, looks.Name); len(got.Status.Devices) != 0 {
		t.Errorf("status for an administrator: %+v", got.Status.Devices)
	}
	n.unprepare(looks)
	if d := cmp.Diff(before, n.host.Snapshot()); d != "" {
		t.Errorf("the host (-before +after):\n%s", d)
	}
}

func (n *draNode) deleteClass(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		return n.kube.ResourceV1().DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{})
	}
}

// wantMixed looks for the foreign entry, as it was, and ours, with the VLAN of the class and the name
// of the claim.
func wantMixed(t *testing.T, n *draNode, claim *resourceapi.ResourceClaim, foreign resourceapi.AllocatedDeviceStatus) {
	t.Helper()
	if len(claim.Status.Devices) != 2 {
		t.Fatalf("status %+v", claim.Status.Devices)
	}
	if d := cmp.Diff(foreign, claim.Status.Devices[0]); d != "" {
		t.Errorf("entry of the other driver (-before +after):\n%s", d)
	}
	ours := claim.Status.Devices[1]
	if ours.Driver != draDriver || ours.NetworkData == nil || ours.NetworkData.InterfaceName != "b0" {
		t.Errorf("entry %+v", ours)
	}
	if vf := n.host.Snapshot()["vf "+pciOf(ours.Device)]; !strings.Contains(vf, "vlan=10 ") {
		t.Errorf("VF %s", vf)
	}
}

// T-54: after a restart the agent has what it prepared, from its journal, or, where that is lost, from
// the claims of the node's pods, by the rights that it has; a claim of which neither knows is left to
// the kubelet (T-56). Each can be given back, and the host is as before.
func TestDRARestart(t *testing.T) {
	kube := draCluster(t)
	n := startNode(t, kube, "worker-node-1")
	n.configure(trialConfig)
	n.offers("0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6")
	before := n.host.Snapshot()
	ns := lab.Namespace(t)
	trialClass(t, kube, ns, `[{opaque: {driver: networkdriver.cilium.io, parameters: {vlan: 10}}}]`)
	direct := strings.NewReplacer("$CLASS", ns).Replace(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: direct}
spec: {devices: {requests: [{name: net, exactly: {deviceClassName: $CLASS}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: direct}
spec: {resourceClaims: [{name: net, resourceClaimName: direct}], containers: [{name: app, image: app}]}
`)
	lab.Apply(t, direct, "--namespace="+ns)
	trialPods(t, ns, "made", "never")
	var claims []*resourceapi.ResourceClaim
	for _, pod := range []string{"direct", "made"} {
		claim, _ := bound(t, kube, ns, pod)
		if err := n.prepare(claim); err != nil {
			t.Fatal(err)
		}
		claims = append(claims, claim)
	}
	never, _ := bound(t, kube, ns, "never")

	for _, lost := range []bool{false, true} {
		n.stop()
		if lost {
			if err := os.RemoveAll(filepath.Join(n.dir, "state", "devices")); err != nil {
				t.Fatal(err)
			}
		}
		n.start()
		n.holds(claims...)
	}
	calls := n.host.Snapshot()
	for _, claim := range claims {
		if err := n.prepare(claim); err != nil {
			t.Error(err)
		}
	}
	if d := cmp.Diff(calls, n.host.Snapshot()); d != "" {
		t.Errorf("preparing what is prepared (-before +after):\n%s", d)
	}
	if err := n.prepare(never); err != nil {
		t.Error(err)
	}
	for _, claim := range append(claims, never) {
		n.unprepare(claim)
	}
	if d := cmp.Diff(before, n.host.Snapshot()); d != "" {
		t.Errorf("the host (-before +after):\n%s", d)
	}
}

// holds waits until the agent has registered, and has exactly these claims.
func (n *draNode) holds(claims ...*resourceapi.ResourceClaim) {
	n.t.Helper()
	want := map[string]bool{}
	for _, c := range claims {
		want[string(c.UID)] = true
	}
	n.kubelet.WaitFor(draDriver)
	eventually(n.t, "the claims of before", func() error {
		answer, err := n.debug().Claims(n.t.Context(), "")
		if err != nil {
			return err
		}
		got := map[string]bool{}
		for _, c := range answer.Claims {
			got[c.UID] = true
		}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("(-want +got):\n%s", d)
		}
		return nil
	})
}
