// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pool decides which pool a device is offered in: by what was prepared of it, else by the
// pools' filters.
//
// Invariants: a device is in at most one pool; a prepared device stays in the pool that it was
// prepared from, whatever the filters say now, and is offered nowhere when that pool is gone or
// when its allocations name several; of several pools that match, the first of the alphabet has
// it, whatever their order. A pool without a filter matches nothing and is not offered, one with
// an empty filter matches everything. Every pool with a filter is in the result, also when it
// is empty.
//
// A prepared device that no manager reports any more (a lower count, a manager that was turned
// off) is offered as it was prepared until its last allocation is gone.
//
// It takes values and returns values, and never looks into a device: what a device's properties
// are is its own to say.
//
// Implements: architecture 4.5; spec/dra.md 1.1 (filters) and 1.7.
package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
)

// Reason says why a device is offered in no pool.
type Reason int

// Reasons.
const (
	Ambiguous Reason = iota + 1 // its allocations name several pools
	Unnamed                     // an allocation names no pool
	Gone                        // it was prepared from a pool that is not offered any more
)

func (r Reason) String() string {
	switch r {
	case Ambiguous:
		return "its allocations name several pools"
	case Unnamed:
		return "an allocation of it names no pool"
	case Gone:
		return "it was prepared from a pool that is not offered any more"
	}
	return fmt.Sprintf("reason %d", int(r))
}

// Withheld is a device that is offered in no pool though it is prepared.
type Withheld struct {
	Device string
	Reason Reason
	Pools  []string // of its allocations, sorted
}

// Conflict is a device that matches several pools.
type Conflict struct {
	Device string
	Pool   string   // that has it; "" when it is withheld
	Pools  []string // that match, sorted
}

// Assignment is the outcome: lists are sorted by the name of the device.
type Assignment struct {
	Pools     map[string][]device.Device
	Withheld  []Withheld
	Conflicts []Conflict
}

// Assign gives each device its pool. Of devices with one name the first counts.
func Assign(devices []device.Device, allocations []device.Allocation, pools []v2alpha1.DevicePool) Assignment {
	offered := withFilter(pools)
	out := Assignment{Pools: make(map[string][]device.Device, len(offered))}
	for _, p := range offered {
		out.Pools[p.Name] = nil
	}
	pins := pinsOf(allocations)
	for _, d := range known(devices, allocations) {
		matching := matchesOf(d, offered)
		chosen := ""
		if len(matching) > 0 {
			chosen = matching[0]
		}
		if pin, ok := pins[d.Name()]; ok {
			var reason Reason
			if chosen, reason = pinned(pin, out.Pools); reason != 0 {
				out.Withheld = append(out.Withheld, Withheld{Device: d.Name(), Reason: reason, Pools: pin})
			}
		}
		if chosen != "" {
			out.Pools[chosen] = append(out.Pools[chosen], d)
		}
		if len(matching) > 1 {
			out.Conflicts = append(out.Conflicts, Conflict{Device: d.Name(), Pool: chosen, Pools: matching})
		}
	}
	return out
}

// withFilter gives the pools with a filter, sorted by name.
func withFilter(pools []v2alpha1.DevicePool) []v2alpha1.DevicePool {
	var with []v2alpha1.DevicePool
	for _, p := range pools {
		if p.Filter != nil {
			with = append(with, p)
		}
	}
	slices.SortStableFunc(with, func(a, b v2alpha1.DevicePool) int { return strings.Compare(a.Name, b.Name) })
	// A configuration with a second pool of one name is refused; should one come, it must not offer a device twice.
	return slices.CompactFunc(with, func(a, b v2alpha1.DevicePool) bool { return a.Name == b.Name })
}

// pinsOf gives the pools that each device's allocations name, sorted.
func pinsOf(allocations []device.Allocation) map[string][]string {
	pins := map[string][]string{}
	for _, a := range allocations {
		if at, found := slices.BinarySearch(pins[a.DeviceName], a.Pool); !found {
			pins[a.DeviceName] = slices.Insert(pins[a.DeviceName], at, a.Pool)
		}
	}
	return pins
}

// pinned gives the pool of a prepared device, or why it has none.
func pinned(pin []string, offered map[string][]device.Device) (string, Reason) {
	switch {
	case pin[0] == "":
		return "", Unnamed
	case len(pin) > 1:
		return "", Ambiguous
	}
	if _, there := offered[pin[0]]; !there {
		return "", Gone
	}
	return pin[0], 0
}

// known are the devices that are there, and those that were prepared and are not, by name.
func known(devices []device.Device, allocations []device.Allocation) []device.Device {
	named := make(map[string]device.Device, len(devices))
	for _, d := range devices {
		if d != nil && named[d.Name()] == nil {
			named[d.Name()] = d
		}
	}
	for _, a := range allocations {
		// A device that calls itself something else is a broken row: the name is what claims use.
		if named[a.DeviceName] == nil && a.PreparedDevice != nil && a.PreparedDevice.Name() == a.DeviceName {
			named[a.DeviceName] = a.PreparedDevice
		}
	}
	return slices.SortedFunc(maps.Values(named), func(a, b device.Device) int { return cmp.Compare(a.Name(), b.Name()) })
}

// matchesOf names the pools whose filter a device passes, in their order.
func matchesOf(d device.Device, offered []v2alpha1.DevicePool) []string {
	var names []string
	for _, p := range offered {
		managers := p.Filter.DeviceManagers
		if (len(managers) == 0 || slices.Contains(managers, string(d.Manager()))) && d.Matches(p.Filter) {
			names = append(names, p.Name)
		}
	}
	return names
}
