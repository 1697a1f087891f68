// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Family is an address family. The zero value is invalid.
type Family int

// The two families.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// defaultMetric is the metric that the kernel gives a route without one.
func (f Family) defaultMetric() int {
	if f == IPv4 {
		return 0
	}
	return 1024
}

// Hop is one way that a route leaves by.
type Hop struct {
	Link    string     // "" when the route has none (blackhole)
	Gateway netip.Addr // invalid when the destination is on the link
}

// Route is a default route of the main table.
type Route struct {
	Hops   []Hop // more than one: multipath
	Metric int
	route  netlink.Route // what the kernel said, for deleting it
}

// ErrNotSet tells that a default route was set, and reads back differently.
var ErrNotSet = errors.New("default route reads back differently")

// DefaultRoutes lists the default routes of the main table, of any type and metric, without
// those that router advertisements made: those belong to the network, not to who configures it.
func (n *Netns) DefaultRoutes(family Family) ([]Route, error) {
	own, _, err := n.defaults(family)
	return own, err
}

// defaults lists the default routes of a family, and those of router advertisements apart.
func (n *Netns) defaults(family Family) (own, advertised []Route, err error) {
	routes, err := dump(func() ([]netlink.Route, error) {
		return n.handle.RouteListFiltered(int(family), &netlink.Route{}, 0) // no filter: the main table
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list %s routes of %s: %w", family, n.path, err)
	}
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return !isDefault(r) })
	if len(routes) == 0 {
		return nil, nil, nil
	}
	links, err := dump(n.handle.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list links of %s: %w", n.path, err)
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, r := range routes {
		// Only IPv6 has router advertisements; in IPv4 the number means nothing.
		if family == IPv6 && r.Protocol == unix.RTPROT_RA {
			advertised = append(advertised, toRoute(r, names))
		} else {
			own = append(own, toRoute(r, names))
		}
	}
	return own, advertised, nil
}

// isDefault tells whether a route covers everything. The library gives such a route a prefix
// of length zero; a nil one is what older versions of it gave. 0.0.0.0/8 is no default route.
func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, bits := r.Dst.Mask.Size()
	return ones == 0 && bits > 0
}

func toRoute(r netlink.Route, names map[int]string) Route {
	route := Route{Metric: r.Priority, route: r}
	for _, h := range r.MultiPath {
		route.Hops = append(route.Hops, Hop{Link: names[h.LinkIndex], Gateway: gateway(h.Gw, h.Via)})
	}
	if len(r.MultiPath) == 0 {
		route.Hops = []Hop{{Link: names[r.LinkIndex], Gateway: gateway(r.Gw, r.Via)}}
	}
	return route
}

// gateway is the next hop's address; an IPv4 route may have one of IPv6 (RTA_VIA).
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && v != nil {
		gw = v.Addr
	}
	addr, _ := netip.AddrFromSlice(gw)
	return addr.Unmap()
}

// SetDefaultRoute makes "via gw dev ifName" the one default route of gw's family in the main
// table; those of router advertisements stay, with less preference. A gateway that is not
// reachable through ifName is an error, and then nothing was changed. The table is read back:
// errors.Is(err, ErrNotSet) when it is not as asked.
func (n *Netns) SetDefaultRoute(ifName string, gw netip.Addr) error {
	if !gw.IsValid() || gw.IsUnspecified() || gw.IsMulticast() {
		return fmt.Errorf("set default route via %s dev %s: not the address of a gateway", gw, ifName)
	}
	gw = gw.Unmap().WithZone("")
	link, err := n.link(ifName)
	if err != nil {
		return fmt.Errorf("set default route via %s dev %s: %w", gw, ifName, err)
	}
	// The kernel takes an own address for a gateway in IPv4, and then routes to nowhere.
	if taken, err := n.hasAddr(gw); err != nil {
		return fmt.Errorf("set default route via %s dev %s: %w", gw, ifName, err)
	} else if taken {
		return fmt.Errorf("set default route via %s dev %s: the gateway is an own address", gw, ifName)
	}
	if err := n.setDefault(link, gw); err != nil {
		return fmt.Errorf("set default route via %s dev %s: %w", gw, ifName, err)
	}
	return nil
}

func (n *Netns) hasAddr(addr netip.Addr) (bool, error) {
	links, err := n.Links()
	for _, l := range links {
		if slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			return true, nil
		}
	}
	return false, err
}

func (n *Netns) setDefault(link netlink.Link, gw netip.Addr) error {
	family := FamilyOf(gw)
	_, advertised, err := n.defaults(family)
	if err != nil {
		return err
	}
	asked := netlink.Route{
		LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Dst: everything(family),
		Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_BOOT, Priority: family.defaultMetric(),
	}
	// Of two IPv6 routes with one metric the kernel makes a multipath route, so stay below theirs.
	for _, r := range advertised {
		if r.Metric <= asked.Priority && r.Metric > 1 {
			asked.Priority = r.Metric - 1
		}
	}
	// Replacing comes first: it is what fails when the gateway is out of reach. EEXIST says that
	// the very same route is there already, beside another one of its metric.
	if err := n.handle.RouteReplace(&asked); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := n.deleteOthers(family, link.Attrs().Name, gw, asked.Priority); err != nil {
		return err
	}
	return n.VerifyDefaultRoute(link.Attrs().Name, gw)
}

// VerifyDefaultRoute reads the main table: errors.Is(err, ErrNotSet) unless "via gw dev ifName"
// is the one default route of gw's family, whatever its metric.
func (n *Netns) VerifyDefaultRoute(ifName string, gw netip.Addr) error {
	own, _, err := n.defaults(FamilyOf(gw))
	if err != nil {
		return err
	}
	if len(own) != 1 || !own[0].is(ifName, gw.Unmap().WithZone(""), own[0].Metric) {
		return fmt.Errorf("%w: %v", ErrNotSet, own)
	}
	return nil
}

// deleteOthers removes every default route of the family but the first that is as asked.
func (n *Netns) deleteOthers(family Family, ifName string, gw netip.Addr, metric int) error {
	own, _, err := n.defaults(family)
	if err != nil {
		return err
	}
	kept := false
	for _, r := range own {
		if !kept && r.is(ifName, gw, metric) {
			kept = true
			continue
		}
		// ESRCH: gone meanwhile.
		if err := n.handle.RouteDel(r.forDeletion()); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete %v: %w", r, err)
		}
	}
	return nil
}

// forDeletion is what identifies the route to the kernel, without attributes that only describe it.
func (r Route) forDeletion() *netlink.Route {
	k := r.route
	return &netlink.Route{
		Family: k.Family, Dst: everything(Family(k.Family)), Table: unix.RT_TABLE_MAIN,
		Priority: k.Priority, Protocol: k.Protocol, Type: k.Type, Scope: k.Scope, Tos: k.Tos,
		LinkIndex: k.LinkIndex, Gw: k.Gw, Via: k.Via, MultiPath: k.MultiPath,
	}
}

func (r Route) is(ifName string, gw netip.Addr, metric int) bool {
	return r.Metric == metric && r.route.Type == unix.RTN_UNICAST && r.route.Tos == 0 &&
		len(r.Hops) == 1 && r.Hops[0] == Hop{Link: ifName, Gateway: gw}
}

// String shows the route as users of ip(8) know it.
func (r Route) String() string {
	var s strings.Builder
	s.WriteString("default")
	for _, h := range r.Hops {
		if h.Gateway.IsValid() {
			s.WriteString(" via " + h.Gateway.String())
		}
		if h.Link != "" {
			s.WriteString(" dev " + h.Link)
		}
	}
	fmt.Fprintf(&s, " metric %d", r.Metric)
	return s.String()
}

func everything(family Family) *net.IPNet {
	bits := 8 * net.IPv4len
	if family == IPv6 {
		bits = 8 * net.IPv6len
	}
	return &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
}
