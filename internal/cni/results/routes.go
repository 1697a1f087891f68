// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package results

import (
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weftnet/weft/internal/cni/plan"
)

// mainTable is the number of the kernel's main routing table.
const mainTable = 254

// DefaultRoute reports whether r is a default route of the main table, and of which
// family.
func DefaultRoute(r *types.Route) (v4, ok bool) {
	ones, bits := r.Dst.Mask.Size()
	if ones != 0 || bits == 0 || r.Table != nil && *r.Table != 0 && *r.Table != mainTable {
		return false, false
	}
	return bits == 32, true
}

// EditDefaultRoutes makes the results of a plan's attachments, in its order, tell the
// default routes as they are after the plan's gateways were set: for each family that
// was asked for, the asking attachment has exactly the asked default route and no
// other attachment has one. Families that nobody asked for stay as the plugins left
// them, and so do the routes of tables other than main. A nil result is passed over.
func EditDefaultRoutes(rs []*Result, p plan.Plan) {
	for i, a := range p.Attachments {
		for _, gw := range a.Gateways {
			gw = gw.Unmap()
			for j, r := range rs {
				if r == nil {
					continue
				}
				var want []*types.Route
				if i == j {
					want = append(want, defaultVia(gw))
				}
				r.setDefaults(gw.Is4(), want)
			}
		}
	}
}

// setDefaults replaces the default routes of one family. What does not change
// anything leaves the plugin's own bytes alone.
func (r *Result) setDefaults(v4 bool, want []*types.Route) {
	var kept, had []*types.Route
	for _, route := range r.Current.Routes {
		if is4, ok := DefaultRoute(route); ok && is4 == v4 {
			had = append(had, route)
		} else {
			kept = append(kept, route)
		}
	}
	if slices.EqualFunc(had, want, func(a, b *types.Route) bool { return a.GW.Equal(b.GW) }) {
		return
	}
	r.Current.Routes = append(kept, want...)
	r.raw = nil
}

func defaultVia(gw netip.Addr) *types.Route {
	size := gw.BitLen() / 8
	r := &types.Route{GW: gw.AsSlice()}
	r.Dst.IP, r.Dst.Mask = make([]byte, size), make([]byte, size)
	return r
}
