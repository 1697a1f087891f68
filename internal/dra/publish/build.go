// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/pool"
)

// Attributes that are added to those of a device.
const (
	AttributePool         resourceapi.QualifiedName = "pool"          // the name that the user wrote
	AttributeManager      resourceapi.QualifiedName = "deviceManager" // who looks after it
	AttributeResourceName resourceapi.QualifiedName = "k8s.cni.cncf.io/resourceName"
)

// Config is what slices are made from, besides the tables. It is not changed once it was given.
type Config struct {
	Driver string
	Node   string
	Pools  []v2alpha1.DevicePool
	// Elsewhere holds the devices of this node that a claim has under a pool which is not Weft's:
	// a driver that was here before allocated them. The allocator would take them for free. The
	// value names that pool.
	Elsewhere map[string]string
}

// Kind says what kind of problem it is.
type Kind int

// Kinds of problems.
const (
	DriverInvalid    Kind = iota + 1 // no slices can have that driver's or node's name
	PoolInvalid                      // no slices can have that pool's name
	DeviceInvalid                    // no slice can hold that device
	AttributeLeftOut                 // an attribute that a pool's devices would have is impossible
	Conflict                         // a device matches several pools
	Ambiguous                        // a device's allocations contradict each other
	PoolGone                         // a device was prepared from a pool that is not offered any more
	Elsewhere                        // a device is allocated under another driver's pool
)

func (k Kind) String() string {
	switch k {
	case DriverInvalid:
		return "driver_invalid"
	case PoolInvalid:
		return "pool_invalid"
	case DeviceInvalid:
		return "device_invalid"
	case AttributeLeftOut:
		return "attribute_left_out"
	case Conflict:
		return "conflict"
	case Ambiguous:
		return "ambiguous"
	case PoolGone:
		return "pool_gone"
	case Elsewhere:
		return "elsewhere"
	}
	return fmt.Sprintf("kind %d", int(k))
}

// Fault says that somebody has to mend it; what is no fault passes with time.
func (k Kind) Fault() bool { return k != PoolGone && k != Elsewhere }

// Problem is one thing that is not offered as it should be.
type Problem struct {
	Kind   Kind
	Pool   string // the user's name; "" when it concerns no pool, or several
	Device string // "" when it concerns all devices of the pool
	Reason string
}

func (p Problem) String() string {
	var subject []string
	if p.Pool != "" {
		subject = append(subject, "pool "+p.Pool)
	}
	if p.Device != "" {
		subject = append(subject, "device "+p.Device)
	}
	if len(subject) == 0 {
		return p.Reason
	}
	return strings.Join(subject, ", ") + ": " + p.Reason
}

// Build makes the slices of all pools, by the name of the slices' pool, and tells what is not in
// them as it should be.
func Build(c Config, devices []device.Device, allocations []device.Allocation) (resourceslice.DriverResources, []Problem) {
	return build(c, devices, allocations, resourceslice.DriverResources{})
}

// build is Build where before was made earlier for the same driver: what is as it was is taken
// from there.
func build(c Config, devices []device.Device, allocations []device.Allocation, before resourceslice.DriverResources) (resourceslice.DriverResources, []Problem) {
	out := resourceslice.DriverResources{Pools: make(map[string]resourceslice.Pool, len(c.Pools))}
	if reason := driverFault(c.Driver, c.Node); reason != "" {
		return out, []Problem{{Kind: DriverInvalid, Reason: reason}}
	}
	assigned := pool.Assign(devices, allocations, c.Pools)
	problems := assignmentProblems(assigned)
	limits := newLimits(c.Driver)
	for _, name := range slices.Sorted(maps.Keys(assigned.Pools)) {
		slicePool := device.SlicePool(c.Node, name)
		if reason := poolFault(name, slicePool); reason != "" {
			problems = append(problems, Problem{Kind: PoolInvalid, Pool: name, Reason: reason})
			continue
		}
		p := onePool{config: c, name: name, limits: limits, before: attributesOf(before.Pools[slicePool])}
		out.Pools[slicePool] = resourceslice.Pool{Slices: split(p.devices(assigned.Pools[name]))}
		problems = append(problems, p.problems...)
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Pool, b.Pool), strings.Compare(a.Device, b.Device), int(a.Kind)-int(b.Kind))
	})
	return out, problems
}

// onePool makes the devices of a pool.
type onePool struct {
	config   Config
	name     string
	limits   limits
	before   map[string]device.Attributes // of devices, which no slice refuses
	problems []Problem
}

func (p *onePool) devices(assigned []device.Device) []resourceapi.Device {
	own, reason := poolAttributes(p.config.Driver, p.name)
	if reason != "" {
		p.problem(AttributeLeftOut, "", reason)
	}
	offered := make([]resourceapi.Device, 0, len(assigned))
	for _, d := range assigned {
		name := d.Name()
		if other, held := p.config.Elsewhere[name]; held {
			p.problem(Elsewhere, name, fmt.Sprintf("a claim has it under pool %q", other))
			continue
		}
		of, manager := d.Attributes(), string(d.Manager())
		own[AttributeManager] = resourceapi.DeviceAttribute{StringValue: &manager}
		if before, ok := p.before[name]; ok && isMerged(before, of, own) {
			offered = append(offered, resourceapi.Device{Name: name, Attributes: before})
			continue
		}
		entry := resourceapi.Device{Name: name, Attributes: merged(of, own)}
		if reason := p.limits.deviceFault(entry); reason != "" {
			p.problem(DeviceInvalid, name, reason)
			continue
		}
		offered = append(offered, entry)
	}
	return offered
}

func (p *onePool) problem(kind Kind, device, reason string) {
	p.problems = append(p.problems, Problem{Kind: kind, Pool: p.name, Device: device, Reason: reason})
}

func attributesOf(p resourceslice.Pool) map[string]device.Attributes {
	all := map[string]device.Attributes{}
	for _, s := range p.Slices {
		for _, d := range s.Devices {
			all[d.Name] = d.Attributes
		}
	}
	return all
}

func assignmentProblems(a pool.Assignment) []Problem {
	var problems []Problem
	for _, w := range a.Withheld {
		p := Problem{Kind: Ambiguous, Device: w.Device, Reason: fmt.Sprintf("%s: %q", w.Reason, w.Pools)}
		if w.Reason == pool.Gone {
			p.Kind, p.Pool = PoolGone, w.Pools[0]
			p.Reason = w.Reason.String()
		}
		problems = append(problems, p)
	}
	for _, c := range a.Conflicts {
		problems = append(problems, Problem{Kind: Conflict, Pool: c.Pool, Device: c.Device, Reason: fmt.Sprintf("it matches the filters of several pools: %q", c.Pools)})
	}
	return problems
}

// poolAttributes are the attributes that all devices of a pool have; reason says why one is not
// among them.
func poolAttributes(driver, name string) (own device.Attributes, reason string) {
	own = device.Attributes{AttributePool: {StringValue: &name}}
	resource := driver + "/" + name
	if len(resource) > resourceapi.DeviceAttributeMaxValueLength {
		return own, fmt.Sprintf("%s would be %q, with %d of %d bytes: its devices cannot be found by a network's resource name",
			AttributeResourceName, resource, len(resource), resourceapi.DeviceAttributeMaxValueLength)
	}
	own[AttributeResourceName] = resourceapi.DeviceAttribute{StringValue: &resource}
	return own, ""
}

// merged are a device's attributes and those that are not its own to say.
func merged(of, own device.Attributes) device.Attributes {
	all := make(device.Attributes, len(of)+len(own))
	for name, a := range of {
		if !reserved(name) {
			all[name] = a
		}
	}
	maps.Copy(all, own)
	return all
}

// isMerged says whether all is what merged would give: most devices are as they were.
func isMerged(all, of, own device.Attributes) bool {
	n := len(own)
	for name, a := range of {
		if reserved(name) {
			continue
		}
		n++
		if was, ok := all[name]; !ok || !equalAttribute(was, a) {
			return false
		}
	}
	for name, a := range own {
		if was, ok := all[name]; !ok || !equalAttribute(was, a) {
			return false
		}
	}
	return n == len(all)
}

func reserved(name resourceapi.QualifiedName) bool {
	return name == AttributePool || name == AttributeManager || name == AttributeResourceName
}

// split makes slices of at most as many devices as one may hold: one at least.
func split(devices []resourceapi.Device) []resourceslice.Slice {
	limit := resourceapi.ResourceSliceMaxDevices
	if slices.ContainsFunc(devices, hasList) {
		limit = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	all := make([]resourceslice.Slice, 0, len(devices)/limit+1)
	for part := range slices.Chunk(devices, limit) {
		all = append(all, resourceslice.Slice{Devices: part})
	}
	if len(all) == 0 {
		all = append(all, resourceslice.Slice{})
	}
	return all
}

func hasList(d resourceapi.Device) bool {
	for _, a := range d.Attributes {
		if a.IntValues != nil || a.BoolValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return false
}
