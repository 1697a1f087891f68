// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informed_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

const claiming = `kind: Pod
metadata: {name: web, uid: u1}
spec: {nodeName: n1, resourceClaims: [{name: nic, resourceClaimTemplateName: t}]}
`

const allocated = `kind: ResourceClaim
metadata: {name: web-nic-1}
status: {allocation: {devices: {results: [{request: r, driver: nic, pool: n1, device: vf-1}, {request: r, driver: nic, pool: n1, device: vf-0}]}}}
---
kind: ResourceSlice
metadata: {name: nic-n1}
spec: {driver: nic, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [
  {name: vf-0, attributes: {k8s.cni.cncf.io/resourceName: {string: ex.com/vf}, k8s.cni.cncf.io/deviceID: {string: "0000:03:02.0"}}},
  {name: vf-1, attributes: {k8s.cni.cncf.io/resourceName: {string: ex.com/vf}, k8s.cni.cncf.io/deviceID: {string: "0000:03:02.1"}}}]}
---
kind: ResourceSlice
metadata: {name: nic-n2}
spec: {driver: nic, nodeName: n2, pool: {name: n2, generation: 1, resourceSliceCount: 1}, devices: [{name: vf-0}]}
`

// TestDevicesOfClaims: a pod without claims costs no request; a copy of the pod that is
// older than its claims is read anew, once.
func TestDevicesOfClaims(t *testing.T) {
	const status = "status: {resourceClaimStatuses: [{name: nic, resourceClaimName: web-nic-1}]}\n"
	s := kubetest.New(t)
	s.Apply(claiming + status + "---\n" + pod("plain", "u2", ""))
	r := start(t, s).ready()
	web, err := r.Pod(t.Context(), "default", "web")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Devices(t.Context(), web); code(err) != fault.TryLater {
		t.Errorf("no claim yet: %v", err)
	}
	r.reads("resourceclaims web-nic-1")
	s.Apply(allocated)
	want := map[string][]string{"ex.com/vf": {"0000:03:02.0", "0000:03:02.1"}}
	for range 2 {
		got, err := r.Devices(t.Context(), web)
		if d := cmp.Diff(want, got); d != "" || err != nil || s.Count("list", "resourceslices") != 1 {
			t.Error(d, err)
		}
		r.reads("resourceclaims web-nic-1")
	}
	plain, err := r.Pod(t.Context(), "default", "plain")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Devices(t.Context(), plain); len(got) != 0 || err != nil || s.Count("", "") != 0 {
		t.Errorf("%v %v, %d requests", got, err, s.Count("", ""))
	}
}

func TestOldCopyOfClaims(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(claiming + "---\n" + allocated)
	r := start(t, s).ready()
	r.blind()
	web, err := r.Pod(t.Context(), "default", "web")
	if err != nil {
		t.Fatal(err)
	}
	s.ResetRequests()
	if _, err := r.Devices(t.Context(), web); code(err) != fault.TryLater {
		t.Errorf("a claim that is still to be made: %v", err)
	}
	r.reads("pods web")
	s.Apply(claiming + "status: {resourceClaimStatuses: [{name: nic, resourceClaimName: web-nic-1}]}\n")
	if got, err := r.Devices(t.Context(), web); len(got["ex.com/vf"]) != 2 || err != nil {
		t.Errorf("%v %v", got, err)
	}
	r.reads("pods web", "resourceclaims web-nic-1")
}
