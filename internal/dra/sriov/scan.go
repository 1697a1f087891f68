// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"slices"

	"github.com/weftnet/weft/internal/host/kernel"
)

// ethernet is the PCI class of Ethernet controllers, without the programming interface. InfiniBand
// (0x0207) and "other" network controllers (0x0280) are not offered.
const ethernet = 0x0200

// inventory is what sysfs shows, by address.
type inventory struct {
	functions map[kernel.PCIAddr]kernel.Function
	vfs       map[kernel.PCIAddr][]kernel.Function // the Ethernet VFs of each PF
	count     int                                  // of all those VFs
}

func sorted(functions []kernel.Function) inventory {
	inv := inventory{
		functions: make(map[kernel.PCIAddr]kernel.Function, len(functions)),
		vfs:       map[kernel.PCIAddr][]kernel.Function{},
	}
	for _, f := range functions {
		inv.functions[f.Addr] = f
		if f.PF != "" && f.Class>>8 == ethernet {
			inv.vfs[f.PF] = append(inv.vfs[f.PF], f)
			inv.count++
		}
	}
	return inv
}

// named finds the PF with a link of that name.
func (inv inventory) named(ifName string) (kernel.Function, bool) {
	for _, f := range inv.functions {
		if f.PF == "" && slices.Contains(f.Netdevs, ifName) {
			return f, true
		}
	}
	return kernel.Function{}, false
}

// devices are the VFs in the order of their addresses, without those that are held back.
func (inv inventory) devices(held map[kernel.PCIAddr]bool) []Device {
	devices := make([]Device, 0, inv.count)
	for pf, vfs := range inv.vfs {
		for _, vf := range vfs {
			if !held[vf.Addr] {
				devices = append(devices, fromFunction(vf, inv.functions[pf]))
			}
		}
	}
	slices.SortFunc(devices, func(a, b Device) int {
		switch {
		case a.Addr < b.Addr:
			return -1
		case a.Addr > b.Addr:
			return 1
		}
		return 0
	})
	return devices
}
