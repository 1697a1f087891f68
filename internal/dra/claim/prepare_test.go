// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/weftnet/weft/internal/dra/device"
)

// prepare is the kubelet's call with what the API has.
func (r *rig) prepare(t testing.TB, claims ...*resourceapi.ResourceClaim) map[types.UID]kubeletplugin.PrepareResult {
	t.Helper()
	fresh := make([]*resourceapi.ResourceClaim, 0, len(claims))
	for _, c := range claims {
		r.api.set(func() {
			fresh = append(fresh, r.api.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}].DeepCopy())
		})
	}
	results, err := r.plugin.PrepareResourceClaims(t.Context(), fresh)
	if err != nil || len(results) != len(claims) {
		t.Fatalf("%v, %v", results, err)
	}
	return results
}

func (r *rig) mustPrepare(t testing.TB, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	for uid, result := range r.prepare(t, claims...) {
		if result.Err != nil {
			t.Fatalf("claim %s: %v", uid, result.Err)
		}
	}
}

func (r *rig) unprepare(t testing.TB, c *resourceapi.ResourceClaim) error {
	t.Helper()
	results, err := r.plugin.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{
		{UID: c.UID, NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name}},
	})
	if err != nil || len(results) != 1 {
		t.Fatalf("%v, %v", results, err)
	}
	return results[c.UID]
}

// clean fails when anything is left of any claim.
func (r *rig) clean(t testing.TB) {
	t.Helper()
	if vlans := r.hw.vlans(); len(vlans) > 0 {
		t.Errorf("VLANs are left: %v", vlans)
	}
	if rows := r.rows.Allocations(); len(rows) > 0 {
		t.Errorf("rows are left: %v", rows)
	}
	files, err := os.ReadDir(filepath.Join(r.dir, "devices"))
	if err != nil || len(files) > 0 {
		t.Errorf("records are left: %v, %v", files, err)
	}
	if len(r.book.booked) > 0 || len(r.book.faults) > 0 {
		t.Errorf("the book has %v, %v", r.book.booked, r.book.faults)
	}
}

func TestPrepareAsSpecified(t *testing.T) { // T-22
	r := newRig(t)
	claim := t22()
	foreign := resourceapi.AllocatedDeviceStatus{Driver: "gpu.example.com", Pool: "gpus", Device: "gpu0"}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{foreign}
	r.api.add(claim)

	result := r.prepare(t, claim)[claim.UID]
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	want := []kubeletplugin.Device{{Requests: []string{"net0"}, PoolName: "n1/sriov-pool", DeviceName: vfName(0)}}
	if diff := cmp.Diff(want, result.Devices); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int32{vfName(0): 1001}, r.hw.vlans()); diff != "" {
		t.Error(diff)
	}

	devices := r.api.devices(claim)
	if len(devices) != 2 || !equal(devices[0], foreign) {
		t.Fatalf("status.devices: %+v", devices)
	}
	got, data := devices[1], devices[1].Data
	got.Data = nil
	if diff := cmp.Diff(resourceapi.AllocatedDeviceStatus{
		Driver: driver, Pool: "n1/sriov-pool", Device: vfName(0),
		Conditions:  []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready", Message: "Device is ready", ObservedGeneration: 1}},
		NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: "sriov0", HardwareAddress: "02:00:00:00:00:00"},
	}, got, cmpopts.IgnoreTypes(metav1.Time{})); diff != "" {
		t.Error(diff)
	}
	const wantData = `{"Manager":"sr-iov","Dev":{"Addr":"0000:03:00.2","Driver":"mlx5_core","Vendor":"0x15b3","DeviceID":"0x101e","PFName":"ens1f0","VFID":0,"KernelIfaceName":"ens1f0v0"},"Config":{"podIfName":"sriov0","vlan":1001}}`
	if string(data.Raw) != wantData {
		t.Errorf("data\n%s\nwant\n%s", data.Raw, wantData)
	}

	rows := r.rows.OfPod("uid-p1")
	if len(rows) != 1 || rows[0].Pool != "sriov-pool" || rows[0].ClaimUID != claim.UID || rows[0].Claim.String() != "default/c1" || rows[0].Config.VLAN != 1001 {
		t.Errorf("rows: %+v", rows)
	}

	// Again: nothing is touched, nothing is written.
	calls, writes := r.hw.count("setup")+r.hw.count("inspect"), r.api.writes
	r.mustPrepare(t, claim)
	if now := r.hw.count("setup") + r.hw.count("inspect"); now != calls || r.api.writes != writes || writes != 1 {
		t.Errorf("a repeat made %d calls and %d writes", now-calls, r.api.writes-writes)
	}

	for range 2 { // T-34
		if err := r.unprepare(t, claim); err != nil {
			t.Fatal(err)
		}
	}
	r.clean(t)
	if len(r.api.devices(claim)) != 2 {
		t.Error("the status entry was removed, which is the API server's to do")
	}
	if r.hw.count("return") == 0 {
		t.Error("the links were not brought home first")
	}
}

func TestPrepareRestoresWhatWas(t *testing.T) { // T-35
	r := newRig(t)
	r.hw.vlan[vfName(0)] = 77
	claim := t22()
	r.api.add(claim)
	r.mustPrepare(t, claim)
	if err := r.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	if got := r.hw.vlan[vfName(0)]; got != 77 {
		t.Errorf("VLAN is %d", got)
	}
}

func TestPrepareUndoesWhatItBegan(t *testing.T) { // T-30
	for _, call := range []string{"setup", "inspect"} {
		r := newRig(t)
		r.hw.fault[call+" "+vfName(1)] = errors.New("PF says no")
		claim := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":5}`, "net1": `{"vlan":6}`}, 0, 1)
		r.api.add(claim)
		err := r.prepare(t, claim)[claim.UID].Err
		if err == nil || !strings.Contains(err.Error(), "request net1: device "+vfName(1)) || !strings.Contains(err.Error(), "PF says no") {
			t.Fatalf("%s: %v", call, err)
		}
		r.clean(t)
		if len(r.api.devices(claim)) != 0 || !strings.Contains(r.api.texts(), "Pod p1: PrepareFailed") {
			t.Errorf("%s: status %v, events %s", call, r.api.devices(claim), r.api.texts())
		}
		delete(r.hw.fault, call+" "+vfName(1))
		r.mustPrepare(t, claim)
	}
}

func TestPrepareRefusesADeviceUntilItIsFree(t *testing.T) {
	r := newRig(t)
	first, second := t22(), newClaim("c2", "p2", nil, 0)
	r.api.add(first, second)
	r.mustPrepare(t, first)
	err := r.prepare(t, second)[second.UID].Err
	if _, ok := errors.AsType[*BusyError](err); !ok || !strings.Contains(err.Error(), "default/c1") {
		t.Fatalf("got %v", err)
	}
	if err := r.unprepare(t, first); err != nil {
		t.Fatal(err)
	}
	r.mustPrepare(t, second)
}

// Two claims of a pod, one of which asks for the name that the other's link keeps: whichever comes second
// is refused before anything is touched, and says which name it is.
func TestPrepareNamesOfTwoClaims(t *testing.T) { // T-29
	asks := func(pod string) *resourceapi.ResourceClaim {
		return newClaim("asks", pod, map[string]string{"net0": `{"podIfName":"ens1f0v1"}`}, 0)
	}
	keeps := newClaim("keeps", "p1", nil, 1)
	for _, c := range []struct {
		name          string
		first, second *resourceapi.ResourceClaim
		want          string
	}{
		{"asked for second", keeps, asks("p1"), `claim default/asks: request net0: device 0000-03-00-2: podIfName "ens1f0v1": claim default/keeps (device 0000-03-00-3) of the same pod keeps that name, which it has on the host`},
		{"kept second", asks("p1"), keeps, `claim default/keeps: request net0: device 0000-03-00-3: name in the pod "ens1f0v1": claim default/asks (device 0000-03-00-2) of the same pod asks for that name as well: give one of them another podIfName`},
		{"of two pods", keeps, asks("p2"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.api.add(c.first, c.second)
			r.mustPrepare(t, c.first)
			err := r.prepare(t, c.second)[c.second.UID].Err
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Fatalf("got %v", err)
			}
			if c.want == "" {
				return
			}
			if n := r.hw.count("inspect"); n != 1 {
				t.Errorf("%d devices were looked at", n)
			}
			if err := r.unprepare(t, c.first); err != nil {
				t.Fatal(err)
			}
			r.mustPrepare(t, c.second)
		})
	}
}

// What cannot be undone keeps the device from others although there is no row.
func TestPrepareThatCannotBeUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		claim := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":5}`, "net1": `{"vlan":6}`}, 0, 1)
		other := newClaim("c2", "p2", nil, 0)
		r.api.add(claim, other)
		r.hw.fault["setup "+vfName(1)] = errors.New("no")
		r.hw.fault["free "+vfName(0)] = errors.New("PF is gone")
		if err := r.prepare(t, claim)[claim.UID].Err; err == nil || !strings.Contains(err.Error(), "PF is gone") {
			t.Fatal(err)
		}
		if rows := r.rows.Allocations(); len(rows) > 0 {
			t.Errorf("rows: %v", rows)
		}
		if _, ok := errors.AsType[*BusyError](r.prepare(t, other)[other.UID].Err); !ok {
			t.Error("the device is given to another claim")
		}
		go r.Run(t.Context()) //nolint:errcheck // it gives none
		wait(time.Minute)
		if len(r.hw.vlans()) == 0 {
			t.Fatal("it was freed although that fails")
		}
		r.hw.set(func() { clear(r.hw.fault) })
		wait(2 * lastPause)
		synctest.Wait()
		r.clean(t)
		r.mustPrepare(t, other)
	})
}

func TestUnprepareThatFails(t *testing.T) { // T-34
	r := newRig(t)
	claim := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":5}`, "net1": `{"vlan":6}`}, 0, 1)
	r.api.add(claim)
	r.mustPrepare(t, claim)
	r.hw.fault["free "+vfName(0)] = errors.New("PF is gone")
	if err := r.unprepare(t, claim); err == nil || !strings.Contains(err.Error(), "device "+vfName(0)) {
		t.Fatal(err)
	}
	rows := r.rows.Allocations()
	if len(rows) != 1 || rows[0].DeviceName != vfName(0) {
		t.Fatalf("rows: %v", rows)
	}
	// The device that was freed may be another claim's now, and is not freed twice.
	second := newClaim("c2", "p2", map[string]string{"net0": `{"vlan":9}`}, 1)
	r.api.add(second)
	r.mustPrepare(t, second)
	r.start(t) // nor after a restart
	delete(r.hw.fault, "free "+vfName(0))
	if err := r.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int32{vfName(1): 9}, r.hw.vlans()); diff != "" {
		t.Error(diff)
	}
	if err := r.unprepare(t, second); err != nil {
		t.Fatal(err)
	}
	r.clean(t)
}

func TestUnprepareWaitsForTheLinks(t *testing.T) { // T-48
	r := newRig(t)
	claim := t22()
	r.api.add(claim)
	r.mustPrepare(t, claim)
	r.hw.pod[vfName(0)] = string(claim.UID)
	r.hw.fault["return "+string(claim.UID)] = errors.New("namespace is busy")
	if err := r.unprepare(t, claim); err == nil || !strings.Contains(err.Error(), "namespace is busy") {
		t.Fatal(err)
	}
	if r.hw.count("free") != 0 || len(r.rows.Allocations()) != 1 {
		t.Error("a device was freed that a pod has")
	}
	clear(r.hw.fault)
	if err := r.unprepare(t, claim); err != nil || len(r.hw.pod) > 0 {
		t.Fatal(err, r.hw.pod)
	}
	r.clean(t)
}

func TestPrepareWithoutStatus(t *testing.T) { // T-31
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}, "c1", errors.New("no rule"))
	// What an API server since 1.36 answers a driver that may write statuses, but no entries of its own.
	noEntries := apierrors.NewInvalid(schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceClaim"}, "c1",
		field.ErrorList{field.Forbidden(field.NewPath("status", "devices"), `changing status.devices requires resource="resourceclaims/driver"`)})
	const hint = "since Kubernetes 1.36 a driver needs the verbs associated-node:update and :patch on resourceclaims/driver"
	for name, set := range map[string]func(*cluster){
		"403":  func(a *cluster) { a.err = forbidden },
		"422":  func(a *cluster) { a.err = noEntries },
		"hang": func(a *cluster) { a.hang = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				claim := t22()
				r.api.add(claim)
				r.api.set(func() { set(r.api) })
				began := time.Now()
				r.mustPrepare(t, claim)
				if took := time.Since(began); took > statusTime {
					t.Errorf("it took %s", took)
				}
				if len(r.hw.vlans()) != 1 || len(r.rows.Allocations()) != 1 || len(r.api.devices(claim)) != 0 {
					t.Errorf("VLANs %v, rows %v, status %v", r.hw.vlans(), r.rows.Allocations(), r.api.devices(claim))
				}
				if !strings.Contains(r.api.texts(), "ResourceClaim c1: StatusNotWritten") {
					t.Errorf("events: %s", r.api.texts())
				}
				if told := strings.Contains(r.api.texts(), hint); told != (name != "hang") {
					t.Errorf("what right is missing is told: %t, in %s", told, r.api.texts())
				}
				go r.Run(t.Context()) //nolint:errcheck // it gives none
				wait(time.Minute)
				r.api.set(func() { r.api.err, r.api.hang = nil, false })
				wait(2 * lastPause)
				synctest.Wait()
				if len(r.api.devices(claim)) != 1 || r.api.writes != 1 {
					t.Errorf("status %v after %d writes", r.api.devices(claim), r.api.writes)
				}
			})
		})
	}
}

// What is still to be written is not written of a claim that was freed.
func TestStatusOfAFreedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		claim := t22()
		r.api.add(claim)
		r.api.set(func() { r.api.err = errors.New("away") })
		r.mustPrepare(t, claim)
		if err := r.unprepare(t, claim); err != nil {
			t.Fatal(err)
		}
		r.api.set(func() { r.api.err = nil })
		r.writeLater(types.NamespacedName{Namespace: "default", Name: "c1"}, claim.UID, 0)
		go r.Run(t.Context()) //nolint:errcheck // it gives none
		wait(time.Hour)
		if r.api.writes != 0 {
			t.Error("the status of a freed claim was written")
		}
	})
}

// No claim waits for another one's API calls, nor an Unprepare for any.
func TestManyPreparesSideBySide(t *testing.T) { // T-37
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		free := t22()
		r.api.add(free)
		r.mustPrepare(t, free)
		var claims []*resourceapi.ResourceClaim
		for i := range vfs - 1 {
			claims = append(claims, newClaim(fmt.Sprintf("d%d", i), fmt.Sprintf("q%d", i), nil, i+1))
		}
		r.api.add(claims...)
		r.api.set(func() { r.api.latency = time.Second })
		began := time.Now()
		done := make(chan bool)
		go func() {
			r.mustPrepare(t, claims...)
			close(done)
		}()
		synctest.Wait() // all of them ask the API
		if err := r.unprepare(t, free); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("an Unprepare waited for %s", took)
		}
		<-done
		if took := time.Since(began); took > time.Second {
			t.Errorf("%d claims took %s", len(claims), took)
		}
	})
}

// eight is a claim of as many devices.
func (r *rig) eight() *resourceapi.ResourceClaim {
	var found []device.Device
	var all []int
	for i := range 8 {
		found, all = append(found, vf(i)), append(all, i)
	}
	r.rows.OnDevices(device.SRIOV)(found)
	claim := newClaim("c1", "p1", nil, all...)
	r.api.add(claim)
	return claim
}

func TestPrepareEightDevicesWritesOnce(t *testing.T) {
	r := newRig(t)
	claim := r.eight()
	r.mustPrepare(t, claim)
	if r.api.writes != 1 || len(r.api.devices(claim)) != 8 {
		t.Errorf("%d writes, status %v", r.api.writes, r.api.devices(claim))
	}
}

// BenchmarkPrepareEightDevices is with a journal that is synced, and devices and an API that are not
// real. Its writes of the status are at most one a claim.
func BenchmarkPrepareEightDevices(b *testing.B) {
	r := newRig(b)
	claim := r.eight()
	prepared := 0
	for b.Loop() {
		r.mustPrepare(b, claim)
		prepared++
		b.StopTimer()
		if err := r.unprepare(b, claim); err != nil {
			b.Fatal(err)
		}
		r.api.set(func() {
			r.api.claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}].Status.Devices = nil
		})
		b.StartTimer()
	}
	b.ReportMetric(float64(r.api.writes)/float64(prepared), "writes/claim")
}

// A claim that was deallocated and allocated anew, without an Unprepare, gets its new devices.
func TestPrepareAnewAllocated(t *testing.T) {
	r := newRig(t)
	claim := t22()
	r.api.add(claim)
	r.mustPrepare(t, claim)
	again := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":7}`}, 2)
	r.api.add(again)
	r.mustPrepare(t, again)
	if diff := cmp.Diff(map[string]int32{vfName(2): 7}, r.hw.vlans()); diff != "" {
		t.Error(diff)
	}
	if rows := r.rows.Allocations(); len(rows) != 1 || rows[0].DeviceName != vfName(2) {
		t.Errorf("rows %v", rows)
	}
}

func TestAdminAccessHasNoRow(t *testing.T) { // T-36
	r := newRig(t)
	claim := t22()
	claim.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	r.api.add(claim)
	if result := r.prepare(t, claim)[claim.UID]; result.Err != nil || len(result.Devices) != 1 {
		t.Fatalf("%+v", result)
	}
	r.clean(t)
	if r.api.writes != 0 {
		t.Error("a status was written")
	}
}

func TestReadEntryOfOthers(t *testing.T) { // 1.6
	const dev = `{"Addr":"0000:03:00.2"}`
	for data, want := range map[string]device.ManagerType{
		`{"Manager":"SR-IOV","Dev":` + dev + `}`:                                            device.SRIOV,
		`{"manager":"sr-iov","dev":` + dev + `,"config":{"ip-pool":"x","vlan":3},"More":1}`: device.SRIOV,
		`{"Manager":"Dummy","Dev":` + dev + `,"Config":null}`:                               device.Dummy,
		`{"Manager":"sr-iov"}`: "", `{"Dev":{}}`: "", `[]`: "", ``: "", `{"Manager":"sr-iov","Dev":` + dev + `,"Config":[]}`: "",
	} {
		e := resourceapi.AllocatedDeviceStatus{Device: "d"}
		if data != "" {
			e.Data = rawExtension(data)
		}
		got, _, _, err := readEntry(e)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", data, got, err)
		}
	}
}

func FuzzReadEntry(f *testing.F) {
	f.Add([]byte(`{"Manager":"sr-iov","Dev":{"Addr":"0000:03:00.2"},"Config":{"vlan":1}}`))
	f.Add([]byte(`{"Manager":"","Dev":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e := resourceapi.AllocatedDeviceStatus{Device: "d", Data: rawExtension(string(data))}
		manager, dev, _, err := readEntry(e)
		if err == nil && (manager == "" || !json.Valid(dev)) {
			t.Errorf("%q, %q", manager, dev)
		}
	})
}

// wait lets time pass inside a bubble.
func wait(d time.Duration) { <-time.After(d) }
