// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
)

const (
	fromClass = resourceapi.AllocationConfigSourceClass
	fromClaim = resourceapi.AllocationConfigSourceClaim
)

func viewOf(uses ...use) view {
	return view{
		node: node, driver: driver, uses: uses,
		device: func(name string) (device.Device, bool) {
			for i := range vfs {
				d := vf(i)
				if i == 3 {
					d.Fault = "it has no driver"
				}
				if d.ID == name {
					return d, true
				}
			}
			return nil, false
		},
		name: func(_ device.ManagerType, dev device.Device, config v2alpha1.DeviceConfig, _ device.Saved) string {
			if config.PodIfName != "" {
				return config.PodIfName
			}
			return dev.(devicetest.Device).KernelIfaceName
		},
		managed: func(t device.ManagerType) bool { return t == device.SRIOV },
	}
}

func planOf(claim *resourceapi.ResourceClaim, v view) (planned, error) {
	v.entries = entriesOf(claim, v.driver)
	return plan(claim, v)
}

func TestPlanConfigurations(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*resourceapi.ResourceClaim)
		want []v2alpha1.DeviceConfig
	}{
		"none": {func(*resourceapi.ResourceClaim) {}, []v2alpha1.DeviceConfig{{}, {}}},
		"T-24: without requests it is for all": {func(c *resourceapi.ResourceClaim) {
			addConfig(c, fromClaim, driver, `{"vlan":5}`)
		}, []v2alpha1.DeviceConfig{{VLAN: 5}, {VLAN: 5}}},
		"T-23: another driver's is not read": {func(c *resourceapi.ResourceClaim) {
			addConfig(c, fromClaim, "gpu.example.com", `{"vlan":"x"}`)
		}, []v2alpha1.DeviceConfig{{}, {}}},
		"T-26: the claim overrides the class by keys": {func(c *resourceapi.ResourceClaim) {
			addConfig(c, fromClass, driver, `{"vlan":10,"podIfName":"a0"}`, "net0")
			addConfig(c, fromClaim, driver, `{"podIfName":"b0"}`, "net0")
		}, []v2alpha1.DeviceConfig{{VLAN: 10, PodIfName: "b0"}, {}}},
		"T-26: in any order": {func(c *resourceapi.ResourceClaim) {
			addConfig(c, fromClaim, driver, `{"podIfName":"b0"}`, "net0")
			addConfig(c, fromClass, driver, `{"vlan":10,"podIfName":"a0"}`, "net0")
		}, []v2alpha1.DeviceConfig{{VLAN: 10, PodIfName: "b0"}, {}}},
		"the main request covers its subrequests": {func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Request = "net0/fast"
			c.Status.Allocation.Devices.Results[1].Request = "net1/slow"
			addConfig(c, fromClaim, driver, `{"vlan":7}`, "net0")
			addConfig(c, fromClaim, driver, `{"vlan":8}`, "net1/slow")
			addConfig(c, fromClaim, driver, `{"vlan":9}`, "net1/fast")
			addConfig(c, fromClaim, driver, `{"vlan":9}`, "fast")
		}, []v2alpha1.DeviceConfig{{VLAN: 7}, {VLAN: 8}}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := newClaim("c1", "p1", nil, 0, 1)
			c.edit(claim)
			p, err := planOf(claim, viewOf())
			if err != nil {
				t.Fatal(err)
			}
			var got []v2alpha1.DeviceConfig
			for _, d := range p.body.Devices {
				got = append(got, d.Config)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPlanTakesOnlyWhatIsOurs(t *testing.T) {
	claim := newClaim("c1", "p1", nil, 0, 1, 2)
	results := claim.Status.Allocation.Devices.Results
	results[0].Driver = "gpu.example.com"
	results[1].AdminAccess = new(true) // T-36
	results[2].Pool = "sriov-pool"     // of a driver that does not name the node
	// That the device which is only looked at is another claim's is no matter.
	p, err := planOf(claim, viewOf(use{uid: "x", device: vfName(1)}))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.body.Devices) != 1 || p.body.Devices[0].Name != vfName(2) || p.body.Devices[0].Pool != "sriov-pool" {
		t.Errorf("planned %+v", p.body.Devices)
	}
	// A claim in which nothing is ours may be anybody's.
	claim.Status.ReservedFor = nil
	claim.Status.Allocation.Devices.Results = results[:2]
	if p, err := planOf(claim, viewOf()); err != nil || len(p.body.Devices) != 0 {
		t.Errorf("planned %+v, %v", p, err)
	}
}

func TestPlanFaults(t *testing.T) {
	other := use{claim: types.NamespacedName{Namespace: "default", Name: "c0"}, uid: "uid-c0", pod: "uid-p1", device: vfName(2), ifName: "sriov9"}
	config := func(text string) func(*resourceapi.ResourceClaim) {
		return func(c *resourceapi.ResourceClaim) { addConfig(c, fromClaim, driver, text, "net0") }
	}
	for name, c := range map[string]struct {
		edit func(*resourceapi.ResourceClaim)
		want []string // parts of the text
	}{
		"T-27 vlan -1":        {config(`{"vlan":-1}`), []string{"config[0] (FromClaim)", `{\"vlan\":-1}`, "vlan"}},
		"T-27 vlan 4095":      {config(`{"vlan":4095}`), []string{"vlan"}},
		"T-27 name .":         {config(`{"podIfName":"."}`), []string{"podIfName"}},
		"T-27 name lo":        {config(`{"podIfName":"lo"}`), []string{"podIfName"}},
		"T-27 name eth0":      {config(`{"podIfName":"eth0"}`), []string{"podIfName"}},
		"T-28 unknown key":    {config(`{"vlann":5}`), []string{"vlann"}},
		"not JSON":            {config(`{`), []string{"config[0] (FromClaim)"}},
		"a class's too":       {func(c *resourceapi.ResourceClaim) { addConfig(c, fromClass, driver, `{"vlan":-1}`) }, []string{"config[0] (FromClass)"}},
		"T-29 same pod":       {config(`{"podIfName":"sriov9"}`), []string{`podIfName "sriov9"`, "claim default/c0", "device " + vfName(2), "same pod"}},
		"another node's pool": {func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "n2/sriov-pool" }, []string{`pool "n2/sriov-pool"`}},
		"no such device":      {func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = "gone" }, []string{"device gone", "no such device"}},
		"Check":               {func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = vfName(3) }, []string{"it has no driver"}},
		"twice":               {func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[1].Device = vfName(0) }, []string{"request net1", "allocated to request net0"}},
		"T-32 shared": {func(c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "p2", UID: "uid-p2"})
		}, []string{"pods/p1, pods/p2", "2 pods", "ResourceClaimTemplate"}},
		"T-32 nobody's": {func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil }, []string{"status.reservedFor", "no pod"}},
		"T-29 one claim": {func(c *resourceapi.ResourceClaim) {
			addConfig(c, fromClaim, driver, `{"podIfName":"a0"}`)
		}, []string{"request net1", "device " + vfName(1), `podIfName "a0"`, "request net0", vfName(0)}},
		"every fault": {func(c *resourceapi.ResourceClaim) {
			addConfig(c, fromClaim, driver, `{"vlan":4095}`, "net0")
			c.Status.Allocation.Devices.Results[1].Device = "gone"
		}, []string{"4095", "device gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := newClaim("c1", "p1", nil, 0, 1)
			c.edit(claim)
			_, err := planOf(claim, viewOf(other))
			if err == nil {
				t.Fatal("no fault")
			}
			for _, part := range append(c.want, "claim default/c1") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is missing in: %v", part, err)
				}
			}
		})
	}
}

func TestPlanBusy(t *testing.T) {
	holder := use{claim: types.NamespacedName{Namespace: "other", Name: "c0"}, uid: "uid-c0", pod: "uid-p0", device: vfName(0)}
	_, err := planOf(t22(), viewOf(holder))
	busy, ok := errors.AsType[*BusyError](err)
	if !ok || busy.Holder.String() != "other/c0" || busy.Device != vfName(0) {
		t.Errorf("got %v", err)
	}
	holder.uid = "uid-c1" // the claim itself
	if _, err := planOf(t22(), viewOf(holder)); err != nil {
		t.Error(err)
	}
}

// A claim of nothing but faults, as large as the API takes it: it costs little, and so does what is
// said of it.
func TestPrepareHostileParameters(t *testing.T) {
	r := newRig(t)
	claim := newClaim("c1", "p1", nil, 0, 1, 2, 3)
	var b strings.Builder
	for i := 0; b.Len() < 10<<10-16; i++ {
		fmt.Fprintf(&b, `,"%x":0`, i)
	}
	for range 32 {
		addConfig(claim, fromClaim, driver, "{"+b.String()[1:]+"}")
	}
	r.api.add(claim)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	results, err := r.plugin.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	err = results[claim.UID].Err
	if _, ok := errors.AsType[*v2alpha1.ParameterError](err); !ok {
		t.Fatalf("error is %T", err)
	}
	if text := err.Error(); len(text) > mostText+64 || !strings.Contains(text, "config[0] (FromClaim)") || !strings.Contains(text, "bytes more)") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	if texts := r.api.texts(); len(texts) > 2*(mostText+200) {
		t.Errorf("events have %d bytes", len(texts))
	}
	const most = 24 << 20
	if took := after.TotalAlloc - before.TotalAlloc; took > most {
		t.Errorf("%d MiB were taken for 320 KiB", took>>20)
	}
}
