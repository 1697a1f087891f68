// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// given plans pod-a with those networks, all of the NAD vf, and these devices; it gives
// the devices of the attachments after the first.
func given(t *testing.T, networks string, found map[string][]string) ([]string, error) {
	t.Helper()
	conf, _, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"m","type":"X","delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	in := plan.Input{
		Conf:    conf,
		Sandbox: plan.Sandbox{ContainerID: "cid1", IfName: "eth0", Netns: "/n", Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-a"},
		Pod:     &plan.Pod{Namespace: "default", Name: "pod-a", UID: "uid-1", Annotations: map[string]string{plan.NetworksAnnotation: networks}},
		NADs: map[plan.NADRef]plan.NAD{
			{Namespace: "default", Name: "vf"}: {Found: true, Config: `{"cniVersion":"1.0.0","type":"pb"}`, ResourceName: "ex.com/vf"},
		},
	}
	out, err := plan.Make(in)
	if err != nil || !out.NeedDevices {
		t.Fatalf("devices are not asked for: %v", err)
	}
	in.Devices = found
	if out, err = plan.Make(in); err != nil {
		return nil, err
	}
	ids := []string{}
	for _, a := range out.Plan.Attachments[1:] {
		ids = append(ids, a.IfName+" "+a.DeviceID)
	}
	return ids, nil
}

// B29, B30 and B32: the checkpoint's devices go to the networks in order, the same each time.
func TestPlanFromCheckpoint(t *testing.T) {
	for _, ids := range []string{`{"1":["0000:03:02.1"],"0":["0000:03:02.0"]}`, `["0000:03:02.1","0000:03:02.0"]`} {
		for range 3 {
			found, err := devices.Checkpoint(kubelet(t, entries(entry("uid-1", "ex.com/vf", ids))), "uid-1")
			if err != nil {
				t.Fatal(err)
			}
			got, err := given(t, "vf,vf", found)
			if diff := cmp.Diff([]string{"net1 0000:03:02.0", "net2 0000:03:02.1"}, got); err != nil || diff != "" {
				t.Errorf("devices (-want +got), %v:\n%s", err, diff)
			}
			_, err = given(t, "vf,vf,vf", found)
			wantFault(t, err, fault.Config, "networks[2]", `needs a device of "ex.com/vf", and the pod has 2 for 3 networks`)
		}
	}
}

// B34: the VF of the claim is used, the GPU is not; together with the checkpoint's it
// is still one device a network.
func TestPlanFromClaims(t *testing.T) {
	o := read(t, all(podOne, []string{claim("pod-a-nic-x", result("g", "gpu", "gpu-0")+","+result("r", "nic", "vf-1"))},
		[]string{slice("gpu", onePool, gpu), slice("nic", onePool, vf("vf-1", "ex.com/vf", "0000:03:02.1"))}))
	claimed, err := devices.FromClaims(&o.Pod, o.Claims, o.Slices)
	if err != nil {
		t.Fatal(err)
	}
	got, err := given(t, "vf", claimed)
	if err != nil || !slices.Equal(got, []string{"net1 0000:03:02.1"}) {
		t.Errorf("%v, %v", got, err)
	}
	_, err = given(t, "vf,vf", claimed)
	wantFault(t, err, fault.Config, "networks[1]", "has 1 for 2 networks")

	checkpointed := map[string][]string{"ex.com/vf": {"0000:03:02.1", "0000:03:02.0"}}
	got, err = given(t, "vf,vf", devices.Merge(checkpointed, claimed))
	if err != nil || !slices.Equal(got, []string{"net1 0000:03:02.0", "net2 0000:03:02.1"}) {
		t.Errorf("%v, %v", got, err)
	}
	_, err = given(t, "vf,vf,vf", devices.Merge(checkpointed, claimed))
	wantFault(t, err, fault.Config, "has 2 for 3 networks")
}

// A pod without any device that wants one is told so before anything runs.
func TestPlanWithoutDevices(t *testing.T) {
	found, err := devices.Checkpoint(t.TempDir(), "uid-1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = given(t, "vf", devices.Merge(found))
	wantFault(t, err, fault.Config, "pod default/pod-a", "has 0 for 1 networks")
}
