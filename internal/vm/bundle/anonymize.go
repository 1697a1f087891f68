// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/vmistatus"
)

// Anonymize is a copy of the bundle in which every IP address and every MAC has a pseudonym, also
// inside of the XML and of annotations, and an address of the bundle also where a name spells it in
// another way (10-0-0-5). Loopback, unspecified, multicast and all-zero ones stay;
// families and link-local stay what they are, and MACs keep their spelling, so a replay takes the
// same decisions. Names, UIDs and everything else stay as well.
func Anonymize(b *Bundle) (*Bundle, error) {
	text, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("anonymize bundle: %w", err)
	}
	var fields any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("anonymize bundle: %w", err)
	}
	p := newPseudonyms()
	p.value(fields) // so that every address is known before a name is looked at
	if text, err = json.Marshal(p.value(fields)); err != nil {
		return nil, fmt.Errorf("anonymize bundle: %w", err)
	}
	out, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("anonymize bundle: %w", err)
	}
	return out, nil
}

// pseudonyms are given in the order in which addresses are seen.
type pseudonyms struct {
	macs map[string]int
	ips  map[netip.Addr]netip.Addr
}

func newPseudonyms() *pseudonyms {
	return &pseudonyms{macs: map[string]int{}, ips: map[netip.Addr]netip.Addr{}}
}

// value is a copy of a decoded value with every text replaced, keys too.
func (p *pseudonyms) value(v any) any {
	switch v := v.(type) {
	case string:
		return p.text(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = p.value(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[p.text(key)] = p.value(v[key])
		}
		return out
	}
	return v
}

// text replaces what is an address or a MAC, wherever it stands.
func (p *pseudonyms) text(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); {
		n, as := p.at(s, i)
		if n == 0 {
			n, as = 1, s[i:i+1]
		}
		out.WriteString(as)
		i += n
	}
	return out.String()
}

// at is the pseudonym of the longest address or MAC that begins at i, and the length of that; 0: none does.
func (p *pseudonyms) at(s string, i int) (n int, as string) {
	c := s[i]
	if !isHex(c) && c != ':' {
		return 0, ""
	}
	rest, mac, six, ip := s[i:], 0, 0, netip.Addr{}
	if begins(s, i) {
		if n, as := p.reversed(rest); n > 0 {
			return n, as
		}
		mac = macLength(rest, !inUUID(s, i))
		six, ip = ipv6Length(rest)
	}
	switch {
	case six > mac:
		return six, p.ip(ip).String()
	case mac > 0:
		return mac, p.hardware(rest[:mac])
	case i == 0 || !isDigit(s[i-1]):
		if four, ip := ipv4Length(rest, '.'); four > 0 {
			return four, p.ip(ip).String()
		}
	}
	return p.spelled(s, i)
}

// begins says whether a word begins at i: after what is no letter or digit, or after an escape of text
// within text.
func begins(s string, i int) bool {
	const escaped = len(`\u0000`)
	return i == 0 || !isHex(s[i-1]) && !isLetter(s[i-1]) ||
		i > 1 && s[i-2] == '\\' || i >= escaped && s[i-escaped] == '\\' && s[i-escaped+1] == 'u'
}

// inUUID says whether what begins at i comes after a group of a UUID.
func inUUID(s string, i int) bool {
	const group = 5 // with its dash
	return i >= group && s[i-1] == '-' && run(s[i-group:i], "") == group-1
}

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isHex(c byte) bool    { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// run counts the hex digits, and bytes of others, that s begins with.
func run(s, others string) int {
	for i := range len(s) {
		if !isHex(s[i]) && strings.IndexByte(others, s[i]) < 0 {
			return i
		}
	}
	return len(s)
}

// macLength is the length of the MAC that s begins with, 0 for none: octets with dividers between them, or,
// if that may be, another spelling that vmistatus reads, as a whole.
func macLength(s string, other bool) int {
	for _, divider := range []byte{':', '-'} {
		if n := octetsLength(s, divider); n > 0 {
			return n
		}
	}
	const longer = 32 // than any MAC
	whole := strings.TrimRight(s[:run(s[:min(len(s), longer)], ":.-")], ":.-")
	if !other || len(whole) < len(s) && isLetter(s[len(whole)]) {
		return 0
	}
	if _, ok := vmistatus.MACDigits(whole); ok || isShort(whole) {
		return len(whole)
	}
	return 0
}

// octetsLength is that of eight octets, or of six.
func octetsLength(s string, divider byte) int {
	const octet, few, many = 3, 6, 8
	n := 0
	for n < many && len(s) >= n*octet+2 && run(s[n*octet:min(len(s), n*octet+octet)], "") == 2 {
		n++
		if len(s) <= n*octet || s[n*octet-1] != divider {
			break
		}
	}
	end := many*octet - 1
	switch {
	case n == many && (len(s) == end || s[end] != '.'): // the last one begins no IPv4 address
		return end
	case n >= few:
		return few*octet - 1
	}
	return 0
}

// isShort says whether it is a MAC of octets without their leading zeros.
func isShort(s string) bool {
	parts := strings.Split(s, ":")
	return len(parts) == 6 && !slices.ContainsFunc(parts, func(p string) bool { return p == "" || len(p) > 2 })
}

// ipv6Length is the length of the longest IPv6 address that s begins with.
func ipv6Length(s string) (int, netip.Addr) {
	const longest = 45
	most := run(s[:min(len(s), longest)], ":.")
	if strings.Count(s[:most], ":") < 2 {
		return 0, netip.Addr{}
	}
	for n := most; n > 1; n-- {
		if n < len(s) && (isHex(s[n]) || isLetter(s[n])) {
			continue
		}
		if ip, err := netip.ParseAddr(s[:n]); err == nil && ip.Is6() {
			return n, ip
		}
	}
	return 0, netip.Addr{}
}

// ipv4Length is the length of the IPv4 address that s begins with; its numbers may have leading zeros.
func ipv4Length(s string, divider byte) (int, netip.Addr) {
	var b [4]byte
	at := 0
	for i := range b {
		start, v := at, 0
		for at < len(s) && isDigit(s[at]) && at-start < 4 {
			v = v*10 + int(s[at]-'0')
			at++
		}
		if at == start || v > 255 || at < len(s) && isDigit(s[at]) {
			return 0, netip.Addr{}
		}
		b[i] = byte(v)
		if i < len(b)-1 {
			if at == len(s) || s[at] != divider {
				return 0, netip.Addr{}
			}
			at++
		}
	}
	return at, netip.AddrFrom4(b)
}

// hardware spells the pseudonym of a MAC as the MAC is spelled.
func (p *pseudonyms) hardware(s string) string {
	if isShort(s) {
		parts := strings.Split(s, ":")
		for i := range parts {
			parts[i] = strings.Repeat("0", 2-len(parts[i])) + parts[i]
		}
		s = strings.Join(parts, ":")
	}
	digits, _ := vmistatus.MACDigits(s)
	if strings.Trim(digits, "0") == "" || strings.Trim(digits, "f") == "" {
		return s
	}
	n, ok := p.macs[digits]
	if !ok {
		n = len(p.macs) + 1
		p.macs[digits] = n
	}
	digits = fmt.Sprintf("02%0*x", len(digits)-2, n)
	if strings.ToUpper(s) == s && strings.ToLower(s) != s {
		digits = strings.ToUpper(digits)
	}
	out := []byte(s)
	k := 0
	for i := range out {
		if !strings.ContainsRune(":-.", rune(out[i])) {
			out[i] = digits[k]
			k++
		}
	}
	return string(out)
}

// ip is of the same family and scope as the address.
func (p *pseudonyms) ip(ip netip.Addr) netip.Addr {
	zone := ip.Zone()
	ip = ip.WithZone("")
	if ip.Is4In6() {
		b := p.ip(ip.Unmap()).As16() // As16 of an IPv4 address is the mapped one
		return netip.AddrFrom16(b)
	}
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || isMask(ip) {
		return ip.WithZone(zone)
	}
	as, ok := p.ips[ip]
	if !ok {
		n := len(p.ips) + 1
		switch {
		case ip.Is4() && ip.IsLinkLocalUnicast():
			as = netip.AddrFrom4([4]byte{169, 254, byte(n >> 8), byte(n)})
		case ip.Is4():
			as = netip.AddrFrom4([4]byte{198, 18 + byte(n>>16&1), byte(n >> 8), byte(n)}) // RFC 2544
		case ip.IsLinkLocalUnicast():
			as = netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
		default:
			as = netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}) // RFC 3849
		}
		p.ips[ip] = as
	}
	return as.WithZone(zone)
}

// isMask says whether it is no address but the mask of a network.
func isMask(ip netip.Addr) bool {
	if !ip.Is4() {
		return false
	}
	b := ip.As4()
	return b[0] == 255
}
