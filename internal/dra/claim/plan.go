// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
)

// planned is what is to be done for one claim: everything that can be said without touching a
// device.
type planned struct {
	body    record.Claim
	devices []device.Device // of body.Devices
	uses    []use           // of body.Devices
}

// use is one device that a claim has, or is about to get.
type use struct {
	claim  types.NamespacedName
	uid    types.UID
	pod    types.UID
	device string
	share  string
	ifName string // what it is to be called in the pod; "": that is not known
	asked  bool   // for that name; else it is the one that it has on the host
}

// view is what a plan is made from besides the claim.
type view struct {
	node, driver string
	device       func(name string) (device.Device, bool)
	managed      func(device.ManagerType) bool
	name         naming
	entries      []said // of the claim
	uses         []use  // of all claims
}

// said is what one configuration of a claim says, read once for all devices that it is for: the
// plan is made under a lock that hooks wait for.
type said struct {
	requests []string
	says     v2alpha1.Parameters
	field    string // where it stands
	raw      []byte
	err      error
}

// entriesOf reads what the class and then the claim say: nothing depends on the API's order.
func entriesOf(claim *resourceapi.ResourceClaim, driver string) (all []said) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for i, c := range claim.Status.Allocation.Devices.Config {
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != driver {
				continue
			}
			e := said{requests: c.Requests, field: fmt.Sprintf("config[%d] (%s)", i, source), raw: c.Opaque.Parameters.Raw}
			e.says, e.err = v2alpha1.ReadParameters(e.raw)
			all = append(all, e)
		}
	}
	return all
}

// faultsOf are the entries that cannot be read, each one once, whatever it is for.
func faultsOf(entries []said, claim types.NamespacedName, results []resourceapi.DeviceRequestAllocationResult) (faults []error) {
	for _, e := range entries {
		of := func(r resourceapi.DeviceRequestAllocationResult) bool { return applies(e.requests, r.Request) }
		if i := slices.IndexFunc(results, of); e.err != nil && i >= 0 {
			const most = 200
			f := &Fault{Claim: claim, Field: e.field, Value: string(e.raw[:min(len(e.raw), most)]), Reason: "is not valid", Err: e.err}
			if len(e.requests) > 0 {
				f.Request, f.Device = results[i].Request, results[i].Device
			}
			faults = append(faults, f)
		}
	}
	return faults
}

// plan checks a claim against everything that is known, and says what is to be prepared. The error
// joins every *Fault and *BusyError.
func plan(claim *resourceapi.ResourceClaim, v view) (planned, error) {
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	p := planned{body: record.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID), Driver: v.driver}}
	results := ours(claim, v.driver)
	if len(results) == 0 {
		return p, nil
	}
	pod, err := consumer(claim)
	if err != nil {
		return p, err
	}
	p.body.PodUIDs = []string{string(pod)}
	faults := faultsOf(v.entries, name, results)
	for _, result := range results {
		d, dev, err := planDevice(claim, result, v)
		if err != nil || dev == nil {
			faults = append(faults, err)
			continue
		}
		mine := use{
			claim: name, uid: claim.UID, pod: pod, device: d.Name, share: d.ShareID,
			ifName: v.name(dev.Manager(), dev, d.Config, nil), asked: d.Config.PodIfName != "",
		}
		faults = append(faults, taken(mine, d.Request, v.uses), shared(mine, d.Request, dev, v), clash(p.body.Devices, d, name))
		p.body.Devices, p.devices, p.uses = append(p.body.Devices, d), append(p.devices, dev), append(p.uses, mine)
	}
	return p, errors.Join(faults...)
}

// ours are the results that are to be prepared: those of the driver, without those that only look
// (adminAccess): the device of such a one may be another claim's.
func ours(claim *resourceapi.ResourceClaim, driver string) (results []resourceapi.DeviceRequestAllocationResult) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == driver && (r.AdminAccess == nil || !*r.AdminAccess) {
			results = append(results, r)
		}
	}
	return results
}

// consumer is the one pod that a claim is reserved for. A link can be in one pod only, and the
// kubelet does not call again for a second pod, which would then start without it.
func consumer(claim *resourceapi.ResourceClaim) (types.UID, error) {
	fault := &Fault{Claim: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, Field: "status.reservedFor"}
	var names []string
	for _, r := range claim.Status.ReservedFor {
		names = append(names, r.Resource+"/"+r.Name)
	}
	fault.Value = strings.Join(names, ", ")
	switch {
	case len(names) == 0:
		fault.Reason = "it is reserved for no pod"
	case len(names) > 1:
		fault.Reason = fmt.Sprintf("it is reserved for %d pods, and its devices can be in one pod only: "+
			"give each pod a claim of its own, by a ResourceClaimTemplate", len(names))
	case claim.Status.ReservedFor[0].APIGroup != "" || claim.Status.ReservedFor[0].Resource != "pods":
		fault.Reason = "it is not reserved for a pod"
	default:
		return claim.Status.ReservedFor[0].UID, nil
	}
	return "", fault
}

// planDevice checks one result. No device and no error: its configuration is at fault, which
// faultsOf tells.
func planDevice(claim *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult, v view) (record.Device, device.Device, error) {
	fault := func(field, value, reason string, err error) error {
		return &Fault{
			Claim:   types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
			Request: r.Request, Device: r.Device, Field: field, Value: value, Reason: reason, Err: err,
		}
	}
	d := record.Device{Request: r.Request, Slice: r.Pool, Name: r.Device}
	if r.ShareID != nil {
		d.ShareID = string(*r.ShareID)
	}
	var ok bool
	if d.Pool, ok = userPool(v.node, r.Pool); !ok {
		return d, nil, fault("pool", r.Pool, "is no pool of node "+v.node, nil)
	}
	dev, ok := v.device(r.Device)
	if !ok {
		return d, nil, fault("", "", "node "+v.node+" has no such device now", nil)
	}
	d.Manager = string(dev.Manager())
	if !v.managed(dev.Manager()) {
		return d, nil, fault("manager", d.Manager, "is not known", nil)
	}
	if d.Config, ok = parameters(v.entries, r.Request); !ok {
		return d, nil, nil
	}
	var err error
	if err := dev.Check(d.Config); err != nil {
		config, _ := json.Marshal(d.Config) //nolint:errcheck // it came out of JSON
		return d, nil, fault("config", string(config), "cannot be prepared so", err)
	}
	if d.Dev, err = json.Marshal(dev); err != nil {
		return d, nil, fault("", "", "cannot be recorded", err)
	}
	return d, dev, nil
}

// userPool is the name that the user wrote for the pool of a result. Pools of users have no slash,
// so that one without is of a driver that did not name the node in it: what was allocated before a
// change-over, whose node the allocation has seen to.
func userPool(node, slicePool string) (string, bool) {
	if pool, ok := device.UserPool(node, slicePool); ok {
		return pool, true
	}
	return slicePool, slicePool != "" && !strings.Contains(slicePool, "/")
}

// parameters merges what there is for a request, if all of it is right.
func parameters(entries []said, request string) (c v2alpha1.DeviceConfig, ok bool) {
	for _, e := range entries {
		if !applies(e.requests, request) {
			continue
		}
		if e.err != nil {
			return v2alpha1.DeviceConfig{}, false
		}
		e.says.Over(&c)
	}
	return c, true
}

// applies says whether an entry for these requests is for a result's request, which may be that of
// a subrequest: "main/sub".
func applies(requests []string, request string) bool {
	main, _, _ := strings.Cut(request, "/")
	return len(requests) == 0 || slices.Contains(requests, request) || slices.Contains(requests, main)
}

// clash finds what two devices of one claim cannot share.
func clash(devices []record.Device, d record.Device, claim types.NamespacedName) error {
	for _, other := range devices {
		fault := &Fault{Claim: claim, Request: d.Request, Device: d.Name}
		switch {
		case other.Name == d.Name && other.ShareID == d.ShareID:
			fault.Reason = "is allocated to request " + other.Request + " of the same claim as well"
		case d.Config.PodIfName != "" && other.Config.PodIfName == d.Config.PodIfName:
			fault.Field, fault.Value = "podIfName", d.Config.PodIfName
			fault.Reason = "request " + other.Request + " (device " + other.Name + ") of the same claim asks for that name as well"
		default:
			continue
		}
		return fault
	}
	return nil
}

// taken finds another claim's use that stands in the way.
func taken(mine use, request string, uses []use) error {
	for _, u := range uses {
		if u.uid == mine.uid {
			continue
		}
		if u.device == mine.device && (u.share == "" || mine.share == "" || u.share == mine.share) {
			return &BusyError{Claim: mine.claim, Request: request, Device: mine.device, Holder: u.claim, HolderUID: u.uid}
		}
		if u.pod == mine.pod && mine.ifName != "" && u.ifName == mine.ifName {
			return sameName(mine, request, u)
		}
	}
	return nil
}

// shared finds another pod's use of a device that this one is given away together with only. Both are looked
// at as they are found now.
func shared(mine use, request string, dev device.Device, v view) error {
	group, whole := groupOf(dev)
	if !whole || group == "" {
		return nil
	}
	for _, u := range v.uses {
		if u.uid == mine.uid || u.pod == mine.pod || u.device == mine.device {
			continue
		}
		if other, ok := v.device(u.device); ok {
			if its, _ := groupOf(other); its == group {
				return &Fault{
					Claim: mine.claim, Request: request, Device: mine.device, Field: group,
					Reason: "device " + u.device + " of the same group is prepared for claim " + u.claim.String() +
						", and what is given by device files can be one pod's only, with its whole group: it is free once that claim is unprepared",
				}
			}
		}
	}
	return nil
}

func groupOf(dev device.Device) (name string, whole bool) {
	if g, ok := dev.(device.Grouped); ok {
		return g.Group()
	}
	return "", false
}

// sameName says that two devices of a pod would have one name in it.
func sameName(mine use, request string, other use) *Fault {
	f := &Fault{Claim: mine.claim, Request: request, Device: mine.device, Field: "podIfName", Value: mine.ifName}
	if !mine.asked {
		f.Field = "name in the pod"
	}
	has := "asks for that name as well"
	if !other.asked {
		has = "keeps that name, which it has on the host"
	}
	f.Reason = fmt.Sprintf("claim %s (device %s) of the same pod %s: give one of them another podIfName", other.claim, other.device, has)
	return f
}
