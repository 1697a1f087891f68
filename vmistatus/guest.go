// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"strings"
)

// few is how many of something a machine seldom has more of; more of them cost an allocation.
const few = 64

// record is a guest's record, prepared to be grouped.
type record struct {
	*GuestInterface
	mac    hwaddr
	bare   int32 // bytes of the name without the label of an alias
	rank   rank
	taken  bool // leads a group that an interface of the domain has
	global bool // leads another one, which has an address that others can reach
}

// base is the name without the label of an alias.
func (r *record) base() string { return r.Name[:r.bare] }

// group are the records of one interface, the one that names it first; empty: there are none.
type group []record

// rank orders the records of one MAC: a NIC before what is stacked on it.
type rank uint8

const (
	rankNIC rank = iota
	rankUnknown
	rankBridge
	rankVLAN
	rankBond
	rankVirtual
	rankNameless
)

// rankOf guesses from the name what an interface is: the guest agent tells nothing else.
func rankOf(name string) rank {
	letters := 0
	for letters < len(name) && 'a' <= name[letters]|0x20 && name[letters]|0x20 <= 'z' {
		letters++
	}
	word := name[:letters]
	switch {
	case name == "":
		return rankNameless
	case strings.IndexByte(name, '.') >= 0:
		return rankVLAN
	case strings.HasPrefix(name, "veth"), strings.HasPrefix(name, "cali"), strings.HasPrefix(name, "lxc"):
		return rankVirtual
	}
	switch word {
	case "vlan":
		return rankVLAN
	case "br", "virbr", "vmbr", "cbr", "lxcbr", "lxdbr", "incusbr", "bridge", "docker", "podman", "cni", "kube", "ovs":
		return rankBridge
	case "bond", "team":
		return rankBond
	case "tap", "tun", "wg", "vnet", "vxlan", "flannel", "cilium", "dummy", "ifb", "geneve", "gre",
		"macvlan", "macvtap", "ipvlan", "ipvtap", "mac", "vrf", "sit", "ppp":
		return rankVirtual
	case "eth", "eno", "ens", "enp", "enx", "em", "ib", "usb", "wl", "wlan", "wlp", "vtnet", "hn", "vio", "vmx", "Ethernet":
		return rankNIC
	}
	return rankUnknown
}

// isLoopback says whether a name is that of the guest's loopback interface.
func isLoopback(base string) bool {
	const word = "loopback"
	return base == "lo" || len(base) >= len(word) && strings.EqualFold(base[:len(word)], word)
}

// onlyLoopback says whether a record has addresses, and nothing but loopback.
func onlyLoopback(g *GuestInterface) bool {
	for _, s := range g.IPs {
		if s == "" || s[0] != ':' && s[0] != '0' && !strings.HasPrefix(s, "127.") {
			return false // whatever it is: no loopback address is spelled so
		}
		if ip, ok := parseIP(s); ok || !ip.IsLoopback() {
			return false
		}
	}
	return len(g.IPs) > 0
}

// prepare sorts what the guest reports so that groups stand together.
func prepare(guest []GuestInterface) []record {
	unsorted := make([]record, 0, few) // on the stack, like whatever else only lasts for a sort
	aliases := false
	for i := range guest {
		g := &guest[i]
		base, _, alias := strings.Cut(g.Name, ":")
		if isLoopback(base) || onlyLoopback(g) {
			continue
		}
		r := record{GuestInterface: g, mac: parseMAC(g.MAC), bare: int32(len(base)), rank: rankOf(base)}
		aliases = aliases || alias && r.mac.nothing()
		unsorted = append(unsorted, r)
	}
	if aliases {
		adopt(unsorted)
	}
	return sorted(unsorted)
}

// groups are the records of one MAC each; those without one stand alone, or with the interface that
// they are an alias of.
func groups(records []record) iter.Seq[group] {
	return func(yield func(group) bool) {
		for i, start := 1, 0; i <= len(records); i++ {
			if i < len(records) && together(&records[i-1], &records[i]) {
				continue
			}
			if !yield(records[start:i]) {
				return
			}
			start = i
		}
	}
}

// sorted sorts by numbers, which most records differ in, and copies each record once.
func sorted(records []record) []record {
	type key struct {
		octets uint64
		at     int
	}
	keys := make([]key, 0, few)
	for i := range records {
		keys = append(keys, key{records[i].mac.octets, i})
	}
	slices.SortFunc(keys, func(a, b key) int {
		if a.octets != b.octets {
			return cmp.Compare(a.octets, b.octets)
		}
		return compareRecords(&records[a.at], &records[b.at])
	})
	list := make([]record, len(keys))
	for i := range keys {
		list[i] = records[keys[i].at]
	}
	return list
}

// adopt gives aliases without a MAC that of the interface that they belong to.
func adopt(records []record) {
	owners := map[string]hwaddr{}
	for i := range records {
		r := &records[i]
		if have, ok := owners[r.base()]; !r.mac.nothing() && (!ok || r.mac.compare(have) < 0) {
			owners[r.base()] = r.mac
		}
	}
	for i := range records {
		if r := &records[i]; r.mac.nothing() && r.base() != r.Name {
			r.mac = owners[r.base()]
		}
	}
}

func together(a, b *record) bool {
	if a.mac.nothing() || b.mac.nothing() {
		return a.mac.nothing() && b.mac.nothing() && a.base() == b.base() && a.bare > 0
	}
	return a.mac == b.mac
}

// compareRecords orders by MAC, then the one that names an interface first. It is total, so the
// guest's own order decides nothing.
func compareRecords(a, b *record) int {
	if c := a.mac.compare(b.mac); c != 0 {
		return c
	}
	if a.rank != b.rank {
		return cmp.Compare(a.rank, b.rank)
	}
	if c := natural(a.base(), b.base()); c != 0 {
		return c
	}
	return cmp.Or(natural(a.Name, b.Name), cmp.Compare(a.MAC, b.MAC), slices.Compare(a.IPs, b.IPs))
}

// natural compares names as a person counts them: br2 before br10.
func natural(a, b string) int {
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		if !digit(a[i]) || !digit(b[j]) {
			if a[i] != b[j] {
				return cmp.Compare(a[i], b[j])
			}
			i++
			j++
			continue
		}
		x, y := number(a[i:]), number(b[j:])
		i, j = i+len(x), j+len(y)
		if x == y {
			continue
		}
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if len(x) != len(y) {
			return cmp.Compare(len(x), len(y))
		}
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Or(cmp.Compare(len(a)-i, len(b)-j), cmp.Compare(a, b))
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

func number(s string) string {
	i := 0
	for i < len(s) && digit(s[i]) {
		i++
	}
	return s[:i]
}

// find is the group of a MAC.
func find(records []record, mac hwaddr) group {
	if mac.nothing() {
		return nil
	}
	start := sort.Search(len(records), func(i int) bool { return records[i].mac.compare(mac) >= 0 })
	end := start
	for end < len(records) && records[end].mac == mac {
		end++
	}
	return records[start:end]
}

// name is what the guest calls the interface.
func (g group) name() string { return g[0].base() }

// mac is the spelling of the first record that has one.
func (g group) mac() string {
	for i := range g {
		if s := g[i].MAC; s != "" {
			return s
		}
	}
	return ""
}

// global says whether the interface has an address that others can reach.
func (g group) global() bool {
	for i := range g {
		for _, s := range g[i].IPs {
			if ip, ok := parseIP(s); ok && ip.IsGlobalUnicast() {
				return true
			}
		}
	}
	return false
}

// bare says whether the interface has no address at all.
func (g group) bare() bool {
	return !slices.ContainsFunc(g, func(r record) bool { return len(r.IPs) > 0 })
}

// compareUse orders what only the guest knows by usefulness.
func compareUse(a, b group) int {
	if x, y := a[0].global, b[0].global; x != y {
		if x {
			return -1
		}
		return 1
	}
	if c := natural(a.name(), b.name()); c != 0 {
		return c
	}
	return compareRecords(&a[0], &b[0])
}
