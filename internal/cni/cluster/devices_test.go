// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/cluster"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

const claimed = `
kind: Pod
metadata: {name: web, uid: u1}
spec: {nodeName: n1, resourceClaims: [{name: nic, resourceClaimTemplateName: t}, {name: gpu, resourceClaimName: gpus}]}
status: {resourceClaimStatuses: [{name: nic, resourceClaimName: web-nic-1}]}
---
kind: ResourceClaim
metadata: {name: web-nic-1}
status: {allocation: {devices: {results: [
  {request: r, driver: nic, pool: n1, device: vf-1},
  {request: r, driver: nic, pool: n1, device: vf-0}]}}}
---
kind: ResourceSlice
metadata: {name: nic-n1}
spec: {driver: nic, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [
  {name: vf-0, attributes: {k8s.cni.cncf.io/resourceName: {string: ex.com/vf}, k8s.cni.cncf.io/deviceID: {string: "0000:03:02.0"}}},
  {name: vf-1, attributes: {k8s.cni.cncf.io/resourceName: {string: ex.com/vf}, k8s.cni.cncf.io/deviceID: {string: "0000:03:02.1"}}}]}
---
kind: ResourceSlice
metadata: {name: gpu-n1}
spec: {driver: gpu, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
---
kind: ResourceSlice
metadata: {name: nic-n2}
spec: {driver: nic, nodeName: n2, pool: {name: n2, generation: 1, resourceSliceCount: 1}, devices: [{name: vf-0}]}
`

const gpus = `
kind: ResourceClaim
metadata: {name: gpus}
status: {allocation: {devices: {results: [{request: r, driver: gpu, pool: n1, device: gpu-0}]}}}
`

// B34 against an API server: claims are read once each, slices by one list, whether the
// devices are of one driver or of several.
func TestDevicesOfClaims(t *testing.T) {
	want := map[string][]string{"ex.com/vf": {"0000:03:02.0", "0000:03:02.1"}}
	for name, gpuClaim := range map[string]string{
		"one driver": "kind: ResourceClaim\nmetadata: {name: gpus}\nstatus: {allocation: {}}\n", "two drivers": gpus,
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(claimed)
			s.Apply(gpuClaim)
			src, err := cluster.Open(t.Context(), s.Kubeconfig(nil), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			pod, err := src.Pod(t.Context(), "default", "web")
			if err != nil {
				t.Fatal(err)
			}
			got, err := src.Devices(t.Context(), pod)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("devices (-want +got), %v:\n%s", err, diff)
			}
			for resource, n := range map[string]int{"resourceclaims": 2, "resourceslices": 1, "pods": 1} {
				if all := s.Count("get", resource) + s.Count("list", resource); all != n {
					t.Errorf("%d requests for %s, want %d", all, resource, n)
				}
			}
		})
	}
}

// A claim without devices, or that is not there, is a matter of time.
func TestDevicesNotAllocatedYet(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(claimed)
	src, err := cluster.Open(t.Context(), s.Kubeconfig(nil), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	pod, err := src.Pod(t.Context(), "default", "web")
	if err != nil {
		t.Fatal(err)
	}
	for _, apply := range []string{"", "kind: ResourceClaim\nmetadata: {name: gpus}\n"} {
		if apply != "" {
			s.Apply(apply)
		}
		_, err := src.Devices(t.Context(), pod)
		if all := fault.All(err); len(all) != 1 || all[0].Code != fault.TryLater || all[0].Object != "ResourceClaim default/gpus" {
			t.Errorf("error %v", err)
		}
	}
}
