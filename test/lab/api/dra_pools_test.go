// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
	"github.com/weftnet/weft/internal/dra/publish"
	"github.com/weftnet/weft/test/lab"
)

// dummyConfig has so many dummy links in one pool, and a pool without a filter, which is none.
func dummyConfig(count int) string {
	return fmt.Sprintf(`{deviceManagerConfigs: {dummy: {enabled: true, count: %d}}, pools: [{name: trial, filter: {}}, {name: none}]}`, count)
}

func dummies(count int) (names []string) {
	for i := range count {
		names = append(names, fmt.Sprint("dummy", i))
	}
	return names
}

// T-11, I9: 129 and 300 devices of a pool are in as many slices as the API asks for, all of one generation
// that only rises, and every one is allocated; a claim of 30 has its status in one write. T-57: the
// configuration changes under claims that have devices, and goes.
func TestDRAManyDevices(t *testing.T) {
	kube := draCluster(t)
	n := startNode(t, kube, "worker-node-1")
	n.configure(dummyConfig(129))
	n.offers(dummies(129)...)
	before := n.wholePool(129, 2)
	n.configure(dummyConfig(300))
	n.offers(dummies(300)...)
	if after := n.wholePool(300, 3); after < before {
		t.Errorf("generation %d after %d", after, before)
	}

	ns := lab.Namespace(t)
	trialClass(t, kube, ns, "[]")
	claims := n.claimMany(ns, 10, 30)
	host := n.host.Snapshot()
	first := claims[0]
	if err := n.prepare(first); err != nil {
		t.Fatal(err)
	}
	prepared := claimOf(t, kube, ns, first.Name)
	if len(prepared.Status.Devices) != 30 {
		t.Errorf("%d entries", len(prepared.Status.Devices))
	}
	n.configure(dummyConfig(2))
	left := map[string]bool{"dummy0": true, "dummy1": true}
	for _, r := range first.Status.Allocation.Devices.Results {
		left[r.Device] = true
	}
	n.offers(slices.Collect(maps.Keys(left))...)
	n.unprepare(first)
	n.offers("dummy0", "dummy1")
	if got := n.host.Snapshot(); !maps.Equal(host, got) {
		t.Errorf("the host is %v, and was %v", got, host)
	}
	if err := n.configs().Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no slices", func() error {
		if all := n.slices(); len(all) > 0 {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
}

// wholePool waits until the node's slices are those of one whole pool, and gives its generation.
func (n *draNode) wholePool(devices, slices int) (generation int64) {
	n.t.Helper()
	eventually(n.t, "the pool to be whole", func() error {
		generation = 0
		all, found := n.slices(), 0
		for _, s := range all {
			found += len(s.Spec.Devices)
			pool := s.Spec.Pool
			if len(s.Spec.Devices) > resourceapi.ResourceSliceMaxDevices || pool.Name != n.name+"/trial" || pool.ResourceSliceCount != int64(slices) || generation != 0 && pool.Generation != generation {
				return fmt.Errorf("a slice of %d devices is of %+v", len(s.Spec.Devices), pool)
			}
			generation = pool.Generation
		}
		if len(all) != slices || found != devices {
			return fmt.Errorf("%d devices in %d slices", found, len(all))
		}
		return nil
	})
	return generation
}

// claimMany has pods claim several devices each, and waits until all have them, nobody one of another's.
func (n *draNode) claimMany(namespace string, pods, devices int) (claims []*resourceapi.ResourceClaim) {
	n.t.Helper()
	var b strings.Builder
	for i := range pods {
		fmt.Fprintf(&b, `
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: many-%[1]d}
spec: {devices: {requests: [{name: net, exactly: {deviceClassName: %[2]s, count: %[3]d}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: many-%[1]d}
spec: {resourceClaims: [{name: net, resourceClaimName: many-%[1]d}], containers: [{name: app, image: app}]}
`, i, namespace, devices)
	}
	lab.Apply(n.t, b.String(), "--namespace="+namespace)
	had := map[string]bool{}
	for i := range pods {
		claim, _ := bound(n.t, n.kube, namespace, fmt.Sprint("many-", i))
		for _, r := range claim.Status.Allocation.Devices.Results {
			had[r.Device] = true
		}
		claims = append(claims, claim)
	}
	if len(had) != pods*devices {
		n.t.Fatalf("%d devices were allocated, of %d", len(had), pods*devices)
	}
	return claims
}

// I9: whatever devices there are, what is made of them is what the API server accepts; what it would
// refuse is left out, and told of.
func TestDRASlicesAccepted(t *testing.T) {
	kube := draCluster(t)
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	with := func(pairs ...any) device.Attributes {
		all := device.Attributes{}
		for i := 0; i < len(pairs); i += 2 {
			all[resourceapi.QualifiedName(pairs[i].(string))] = pairs[i+1].(resourceapi.DeviceAttribute)
		}
		return all
	}
	full := device.Attributes{}
	for i := range resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice + 1 {
		full[resourceapi.QualifiedName(fmt.Sprint("a", i))] = text("x")
	}
	nearly := maps.Clone(full)
	for _, name := range []resourceapi.QualifiedName{"a0", "a1", "a2", "a3"} {
		delete(nearly, name) // room for those that publishing adds
	}
	devices := []device.Device{}
	for name, attributes := range map[string]device.Attributes{
		"plain": nil, "full": full, "nearly-full": nearly, "Upper": nil, "dot.ted": nil, "": nil, strings.Repeat("l", 63): nil, strings.Repeat("m", 64): nil,
		"empty": with("x", text("")), "long": with("x", text(strings.Repeat("é", 32))), "longer": with("x", text(strings.Repeat("x", 65))),
		"none": with("x", resourceapi.DeviceAttribute{}), "both": with("x", resourceapi.DeviceAttribute{StringValue: new("a"), IntValue: new(int64(1))}),
		"version": with("x", resourceapi.DeviceAttribute{VersionValue: new("1.0.0")}), "no-version": with("x", resourceapi.DeviceAttribute{VersionValue: new("1.0")}),
		"dash": with("a-b", text("x")), "domain": with("example.com/x", text("x")), "no-domain": with("/x", text("x")), "no-id": with("example.com/", text("x")),
		"long-id": with(strings.Repeat("a", 33), text("x")), "utf": with("x", text("a\xff")), "control": with("x", text("a\x00\n")),
		"own": with(draDriver+"/pool", text("mine")), "twice": with("x", text("1"), draDriver+"/x", text("2")),
	} {
		devices = append(devices, devicetest.Device{ID: name, Kind: device.Dummy, Attrs: attributes})
	}
	for _, pool := range []string{"trial", strings.Repeat("p", 64), "Fast_Net"} { // T-12
		made, problems := publish.Build(publish.Config{
			Driver: draDriver, Node: "worker-node-1", Pools: []v2alpha1.DevicePool{{Name: pool, Filter: &v2alpha1.DeviceFilter{}}},
		}, devices, nil)
		count := 0
		for name, p := range made.Pools {
			for i, s := range p.Slices {
				count += len(s.Devices)
				spec := resourceapi.ResourceSliceSpec{
					Driver: draDriver, NodeName: new("worker-node-1"), Devices: s.Devices,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(p.Slices))},
				}
				object := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "lab-"}, Spec: spec}
				if _, err := kube.ResourceV1().ResourceSlices().Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
					t.Errorf("slice %d of pool %s: %v", i, name, err)
				}
			}
		}
		if want := map[bool]int{false: 8}[pool == "Fast_Net"]; count != want || len(problems) == 0 {
			t.Errorf("pool %s: %d devices are offered, with %d problems", pool, count, len(problems))
		}
	}
}
