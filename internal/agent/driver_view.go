// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/dra/device"
)

// driverView is the network driver as the debug socket shows it.
type driverView struct{ d *networkDriver }

// podNames are the names of the node's pods by UID.
func (v driverView) podNames() map[string]string {
	names := map[string]string{}
	for _, p := range v.d.cluster.Pods() {
		names[p.UID] = p.Name
	}
	return names
}

// Devices implements debug.DriverView.
func (v driverView) Devices() []debug.Device {
	rows, allocations := v.d.store.Snapshot()
	byName := map[string]*debug.Device{}
	var all []*debug.Device
	add := func(name string, manager device.ManagerType, dev device.Device) *debug.Device {
		d := byName[name]
		if d == nil {
			raw, err := json.Marshal(dev)
			if err != nil { // a device's JSON is read again from claims: it has one
				raw = []byte("null")
			}
			d = &debug.Device{Name: name, Manager: string(manager), Dev: raw}
			byName[name] = d
			all = append(all, d)
		}
		return d
	}
	for _, row := range rows {
		add(row.Name, row.Manager, row.Dev).Present = true
	}
	pods := v.podNames()
	for _, a := range allocations {
		d := add(a.DeviceName, a.Manager, a.PreparedDevice)
		d.Uses = append(d.Uses, debug.Use{
			Pool: a.Pool, Namespace: a.Claim.Namespace, Claim: a.Claim.Name, ClaimUID: string(a.ClaimUID),
			Pod: pods[string(a.PodUID)], PodUID: string(a.PodUID),
		})
	}
	out := make([]debug.Device, len(all))
	for i, d := range all {
		out[i] = *d
	}
	slices.SortFunc(out, func(a, b debug.Device) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Claims implements debug.DriverView.
func (v driverView) Claims() []debug.Claim {
	pods := v.podNames()
	byUID := map[types.UID]int{}
	var all []debug.Claim
	for _, a := range v.d.store.Allocations() {
		i, known := byUID[a.ClaimUID]
		if !known {
			i = len(all)
			byUID[a.ClaimUID] = i
			all = append(all, debug.Claim{
				Namespace: a.Claim.Namespace, Name: a.Claim.Name, UID: string(a.ClaimUID),
				Pod: pods[string(a.PodUID)], PodUID: string(a.PodUID),
			})
			if r := v.d.made(); r != nil {
				if err := r.claims.Ready(a.PodUID); err != nil {
					all[i].Fault = err.Error()
				}
			}
		}
		all[i].Devices = append(all[i].Devices, debug.ClaimDevice{
			Pool: a.Pool, Device: a.DeviceName, Manager: string(a.Manager), Interface: a.Config.PodIfName, VLAN: a.Config.VLAN,
		})
	}
	slices.SortFunc(all, func(a, b debug.Claim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all
}
