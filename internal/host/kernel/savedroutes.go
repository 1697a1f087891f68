// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SavedRoute is a default route of the main table as it once was, in a form that outlives the
// process: links by name, and the attributes that a route to somewhere can have. Tunnels
// (encapsulation) are not kept.
type SavedRoute struct {
	Hops     []SavedHop `json:"hops"`
	Metric   int        `json:"metric,omitempty"`
	Protocol int        `json:"protocol,omitempty"`
	Scope    int        `json:"scope,omitempty"`
	Type     int        `json:"type,omitempty"`
	TOS      int        `json:"tos,omitempty"`
	Source   netip.Addr `json:"source,omitzero"`
	Realm    int        `json:"realm,omitempty"`

	MTU        int    `json:"mtu,omitempty"`
	MTULock    bool   `json:"mtuLock,omitempty"`
	AdvMSS     int    `json:"advMSS,omitempty"`
	Window     int    `json:"window,omitempty"`
	HopLimit   int    `json:"hopLimit,omitempty"`
	InitCwnd   int    `json:"initCwnd,omitempty"`
	InitRwnd   int    `json:"initRwnd,omitempty"`
	RTOMin     int    `json:"rtoMin,omitempty"`
	RTOMinLock bool   `json:"rtoMinLock,omitempty"`
	QuickACK   int    `json:"quickACK,omitempty"`
	Features   int    `json:"features,omitempty"`
	Congestion string `json:"congestion,omitempty"`
}

// SavedHop is one way that a saved route left by.
type SavedHop struct {
	Link    string     `json:"link,omitempty"`
	Gateway netip.Addr `json:"gateway,omitzero"`
	OnLink  bool       `json:"onLink,omitempty"`
	Weight  int        `json:"weight,omitempty"` // as the kernel counts: one less than ip(8) does
}

// SaveDefaultRoutes lists the default routes that DefaultRoutes lists, to be put back later.
func (n *Netns) SaveDefaultRoutes(family Family) ([]SavedRoute, error) {
	own, _, err := n.defaults(family)
	if err != nil {
		return nil, err
	}
	saved := make([]SavedRoute, 0, len(own))
	for _, r := range own {
		saved = append(saved, r.save())
	}
	return saved, nil
}

func (r Route) save() SavedRoute {
	k := r.route
	source, _ := netip.AddrFromSlice(k.Src)
	s := SavedRoute{
		Metric: k.Priority, Protocol: int(k.Protocol), Scope: int(k.Scope), Type: k.Type, TOS: k.Tos, Source: source.Unmap(), Realm: k.Realm,
		MTU: k.MTU, MTULock: k.MTULock, AdvMSS: k.AdvMSS, Window: k.Window, HopLimit: k.Hoplimit, InitCwnd: k.InitCwnd,
		InitRwnd: k.InitRwnd, RTOMin: k.RtoMin, RTOMinLock: k.RtoMinLock, QuickACK: k.QuickACK, Features: k.Features, Congestion: k.Congctl,
	}
	for i, h := range r.Hops {
		hop := SavedHop{Link: h.Link, Gateway: h.Gateway, OnLink: k.Flags&unix.RTNH_F_ONLINK != 0}
		if len(k.MultiPath) > 0 {
			hop.Weight, hop.OnLink = k.MultiPath[i].Hops, k.MultiPath[i].Flags&unix.RTNH_F_ONLINK != 0
		}
		s.Hops = append(s.Hops, hop)
	}
	return s
}

// Through reports whether the route left by a link.
func (s *SavedRoute) Through(link string) bool {
	return slices.ContainsFunc(s.Hops, func(h SavedHop) bool { return h.Link == link })
}

// RestoreDefaultRoutes makes saved default routes of a family be there again, and has those
// through the link instead go, which had taken their place. It comes to the same however often it
// is done. Ways through instead, and through links that are gone, are passed over; any other
// default route stays. The table is read back: errors.Is(err, ErrNotSet) when one is missing.
func (n *Netns) RestoreDefaultRoutes(family Family, saved []SavedRoute, instead string) error {
	links, err := dump(n.handle.LinkList)
	if err != nil {
		return fmt.Errorf("list links of %s: %w", n.path, err)
	}
	index := map[string]int{"": 0}
	for _, l := range links {
		if name := l.Attrs().Name; name != instead {
			index[name] = l.Attrs().Index
		}
	}
	var want []SavedRoute
	for _, s := range saved {
		s.Hops = slices.DeleteFunc(slices.Clone(s.Hops), func(h SavedHop) bool { _, there := index[h.Link]; return !there })
		if len(s.Hops) > 0 {
			want = append(want, s)
		}
	}
	// What is to come is there before what is to go is not.
	for _, s := range want {
		if err := n.restoreDefault(family, s, index, instead); err != nil {
			return fmt.Errorf("put back %s default route %+v: %w", family, s.Hops, err)
		}
	}
	own, _, err := n.defaults(family)
	if err != nil {
		return err
	}
	for _, r := range own {
		// ESRCH: gone meanwhile.
		if err := n.deleteThrough(r, instead); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete %v: %w", r, err)
		}
	}
	return n.verifyRestored(family, want)
}

func (n *Netns) deleteThrough(r Route, link string) error {
	if !r.onlyThrough(link) {
		return nil
	}
	return n.handle.RouteDel(r.forDeletion())
}

func (n *Netns) verifyRestored(family Family, want []SavedRoute) error {
	own, _, err := n.defaults(family)
	if err != nil {
		return err
	}
	for _, s := range want {
		if !slices.ContainsFunc(own, s.same) {
			return fmt.Errorf("%w: %v", ErrNotSet, own)
		}
	}
	return nil
}

func (r Route) onlyThrough(link string) bool {
	return len(r.Hops) > 0 && !slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Link != link })
}

// same reports whether r is the saved route, as far as the kernel tells routes apart.
func (s SavedRoute) same(r Route) bool {
	return r.Metric == s.Metric && r.route.Tos == s.TOS && r.route.Type == s.Type &&
		slices.EqualFunc(r.Hops, s.Hops, func(h Hop, s SavedHop) bool { return h == Hop{Link: s.Link, Gateway: s.Gateway} })
}

// restoreDefault puts one route back. The route that took its place is replaced, so that there
// is one at every moment.
func (n *Netns) restoreDefault(family Family, s SavedRoute, index map[string]int, instead string) error {
	own, _, err := n.defaults(family)
	if err != nil || slices.ContainsFunc(own, s.same) {
		return err
	}
	put, rivals := n.handle.RouteAppend, 0
	for _, r := range own {
		if r.Metric != s.Metric || r.route.Tos != s.TOS {
			continue
		}
		if rivals++; r.onlyThrough(instead) && rivals == 1 {
			put = n.handle.RouteReplace
		} else {
			put = n.handle.RouteAppend
		}
	}
	if err := put(s.route(family, index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func (s SavedRoute) route(family Family, index map[string]int) *netlink.Route {
	r := &netlink.Route{
		Family: int(family), Dst: everything(family), Table: unix.RT_TABLE_MAIN,
		Priority: s.Metric, Protocol: netlink.RouteProtocol(s.Protocol), Scope: netlink.Scope(s.Scope), Type: s.Type, Tos: s.TOS, Realm: s.Realm,
		MTU: s.MTU, MTULock: s.MTULock, AdvMSS: s.AdvMSS, Window: s.Window, Hoplimit: s.HopLimit, InitCwnd: s.InitCwnd,
		InitRwnd: s.InitRwnd, RtoMin: s.RTOMin, RtoMinLock: s.RTOMinLock, QuickACK: s.QuickACK, Features: s.Features, Congctl: s.Congestion,
	}
	if s.Source.IsValid() {
		r.Src = s.Source.AsSlice()
	}
	for _, h := range s.Hops {
		hop := &netlink.NexthopInfo{LinkIndex: index[h.Link], Hops: h.Weight}
		switch {
		case !h.Gateway.IsValid():
		case FamilyOf(h.Gateway) == family:
			hop.Gw = h.Gateway.AsSlice()
		default:
			hop.Via = &netlink.Via{AddrFamily: int(FamilyOf(h.Gateway)), Addr: h.Gateway.AsSlice()}
		}
		if h.OnLink {
			hop.Flags = unix.RTNH_F_ONLINK
		}
		r.MultiPath = append(r.MultiPath, hop)
	}
	if len(r.MultiPath) == 1 {
		hop := r.MultiPath[0]
		r.MultiPath, r.LinkIndex, r.Gw, r.Via, r.Flags = nil, hop.LinkIndex, hop.Gw, hop.Via, hop.Flags
	}
	return r
}
