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
					want = append(want, DefaultVia(gw))
				}
				r.SetDefaults(gw.Is4(), want)
			}
		}
	}
}

// Defaults are the default routes of one family that the result tells.
func (r *Result) Defaults(v4 bool) []*types.Route {
	had, _ := r.split(v4)
	return had
}

func (r *Result) split(v4 bool) (defaults, others []*types.Route) {
	for _, route := range r.Current.Routes {
		if is4, ok := DefaultRoute(route); ok && is4 == v4 {
			defaults = append(defaults, route)
		} else {
			others = append(others, route)
		}
	}
	return defaults, others
}

// SetDefaults replaces the default routes of one family. What does not change
// anything leaves the plugin's own bytes alone.
func (r *Result) SetDefaults(v4 bool, want []*types.Route) {
	had, kept := r.split(v4)
	if slices.EqualFunc(had, want, func(a, b *types.Route) bool { return a.GW.Equal(b.GW) }) {
		return
	}
	r.Current.Routes = append(kept, want...)
	r.raw = nil
}

// Gateway is the gateway of the first address of a family that has one.
func (r *Result) Gateway(v4 bool) (netip.Addr, bool) {
	for _, ip := range r.Current.IPs {
		if gw, ok := netip.AddrFromSlice(ip.Gateway); ok && gw.Unmap().Is4() == v4 {
			return gw.Unmap(), true
		}
	}
	return netip.Addr{}, false
}

// DefaultVia is a default route through a gateway.
func DefaultVia(gw netip.Addr) *types.Route {
	size := gw.BitLen() / 8
	r := &types.Route{GW: gw.AsSlice()}
	r.Dst.IP, r.Dst.Mask = make([]byte, size), make([]byte, size)
	return r
}
