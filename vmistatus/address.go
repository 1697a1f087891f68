// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"net/netip"
	"strings"
)

// address is an IP address as a source spells it.
type address struct {
	ip     netip.Addr
	as     string
	source Source
	stale  bool
}

// parseIP reads an address that may have a zone or a prefix length. It is false for what no
// interface can be reached by: no address at all, loopback, unspecified, multicast.
func parseIP(s string) (netip.Addr, bool) {
	if i := strings.IndexByte(s, '/'); i >= 0 {
		s = s[:i]
	}
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return ip, false
	}
	ip = ip.Unmap().WithZone("")
	return ip, !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsMulticast()
}

// text is the address' canonical text; it is the source's own where that is already it.
func (a *address) text() string {
	if a.ip.Is4() && strings.IndexByte(a.as, ':') < 0 && strings.IndexByte(a.as, '/') < 0 {
		return a.as // an IPv4 address has one spelling
	}
	var room [64]byte
	b := a.ip.AppendTo(room[:0])
	if string(b) == a.as {
		return a.as
	}
	return string(b)
}

// addresses are the addresses of one interface as one source has them: in its own order, and how
// many it has of each family.
type addresses struct {
	list         []address
	v4, v6       int
	over4, over6 int       // left out because there are too many
	over         []address // the first of them
}

func (a *addresses) reset() {
	a.list, a.over = a.list[:0], a.over[:0]
	a.v4, a.v6, a.over4, a.over6 = 0, 0, 0, 0
}

// add appends an address that is not there yet. No more are kept of a family than a status may have.
func (a *addresses) add(ip netip.Addr, s string, from address) {
	for i := range a.list {
		if a.list[i].ip == ip {
			return
		}
	}
	n, over := &a.v6, &a.over6
	if ip.Is4() {
		n, over = &a.v4, &a.over4
	}
	if *n == MaxAddresses {
		if *over++; len(a.over) < MaxAddresses {
			from.ip, from.as = ip, s
			a.over = append(a.over, from)
		}
		return
	}
	*n++
	from.ip, from.as = ip, s
	a.list = append(a.list, from)
}

// known is the address of a spelling that is there.
func (a *addresses) known(s string) (netip.Addr, bool) {
	for i := range a.list {
		if a.list[i].as == s {
			return a.list[i].ip, true
		}
	}
	return netip.Addr{}, false
}

func (a *addresses) count(v4 bool) int {
	if v4 {
		return a.v4
	}
	return a.v6
}

// disjoint says whether both have global addresses of a family and none in common.
func (a *addresses) disjoint(o *addresses, v4 bool) bool {
	mine, theirs := false, false
	for i := range a.list {
		ip := a.list[i].ip
		if ip.Is4() != v4 || !ip.IsGlobalUnicast() {
			continue
		}
		mine = true
		for j := range o.list {
			if o.list[j].ip == ip {
				return false
			}
		}
	}
	for i := range o.list {
		theirs = theirs || o.list[i].ip.Is4() == v4
	}
	return mine && theirs
}

// text lists the first few of a family.
func (a *addresses) text(v4 bool) string {
	const most = 3
	var b strings.Builder
	n := 0
	for i := range a.list {
		if a.list[i].ip.Is4() != v4 {
			continue
		}
		if n++; n > most {
			b.WriteString(", …")
			break
		}
		if n > 1 {
			b.WriteString(", ")
		}
		b.WriteString(a.list[i].text())
	}
	return b.String()
}
