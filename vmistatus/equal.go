// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"cmp"
	"slices"
	"strings"
)

// Equal says whether two statuses say the same: the first entry and each entry's first address
// have their place, the order of all others has no meaning, nor has that of infoSource.
func Equal(a, b []Interface) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 {
		return true
	}
	if compareInterfaces(&a[0], &b[0]) != 0 {
		return false
	}
	x, y := ordered(a[1:]), ordered(b[1:])
	for i := range x {
		if compareInterfaces(x[i], y[i]) != 0 {
			return false
		}
	}
	return true
}

func ordered(list []Interface) []*Interface {
	all := make([]*Interface, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	slices.SortFunc(all, compareInterfaces)
	return all
}

// compareInterfaces is a total order of entries: 0 only for those that say the same.
func compareInterfaces(a, b *Interface) int {
	if c := cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.MAC, b.MAC), cmp.Compare(a.InterfaceName, b.InterfaceName),
		cmp.Compare(a.IP, b.IP), cmp.Compare(a.PodInterfaceName, b.PodInterfaceName), cmp.Compare(a.QueueCount, b.QueueCount),
		cmp.Compare(a.LinkState, b.LinkState)); c != 0 {
		return c
	}
	if c := compareSets(a.IPs, b.IPs); c != 0 {
		return c
	}
	if len(a.IPs) > 0 && a.IPs[0] != b.IPs[0] { // the first is ipAddress, or one of the two is wrong
		return cmp.Compare(a.IPs[0], b.IPs[0])
	}
	if a.InfoSource == b.InfoSource {
		return 0
	}
	return compareSets(strings.Split(a.InfoSource, separator), strings.Split(b.InfoSource, separator))
}

func compareSets(a, b []string) int {
	if slices.Equal(a, b) {
		return 0
	}
	return slices.Compare(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func compareWarnings(a, b Warning) int {
	return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Text, b.Text))
}
