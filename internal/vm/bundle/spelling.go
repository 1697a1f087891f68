// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
)

// spelled is the pseudonym of what begins at i and is an address of the bundle as names of hosts and pods
// spell it: with other dividers, or in hexadecimal digits. What is no address of the bundle is only one
// where it is called that: other names count up in dashes as well.
func (p *pseudonyms) spelled(s string, i int) (n int, as string) {
	for _, divider := range []string{"-", "_"} {
		if n, ip := p.divided(s, i, divider); n > 0 {
			return n, strings.NewReplacer(".", divider, ":", divider).Replace(p.ip(ip).String())
		}
	}
	return p.digits(s, i)
}

// divided is the length of the address that begins at i, with a divider of its own.
func (p *pseudonyms) divided(s string, i int, divider string) (int, netip.Addr) {
	rest := s[i:]
	if i == 0 || !isDigit(s[i-1]) {
		n, ip := ipv4Length(rest, divider[0])
		if _, ok := p.ips[ip]; n > 0 && (ok || calledIP(s[:i], divider)) {
			return n, ip
		}
	}
	if begins(s, i) || !isHex(s[i-1]) {
		return p.dividedIPv6(rest, divider)
	}
	return 0, netip.Addr{}
}

func (p *pseudonyms) dividedIPv6(s, divider string) (int, netip.Addr) {
	const (
		longest = len("ffff-ffff-ffff-ffff-ffff-ffff-ffff-ffff")
		groups  = 8
	)
	most := run(s[:min(len(s), longest)], divider)
	dividers := strings.Count(s[:most], divider)
	if dividers < 2 {
		return 0, netip.Addr{}
	}
	text := strings.ReplaceAll(s[:most], divider, ":")
	for n := most; n > 1; n-- {
		if (n == len(s) || !isHex(s[n])) && (dividers == groups-1 || strings.Contains(text[:n], "::")) {
			ip, err := netip.ParseAddr(text[:n])
			if _, ok := p.ips[ip]; err == nil && ok {
				return n, ip
			}
		}
		if text[n-1] == ':' {
			dividers--
		}
	}
	return 0, netip.Addr{}
}

// calledIP says whether what stands before an address is the word for it, as in the name of a host.
func calledIP(before, divider string) bool {
	n := len(before) - len("ip") - len(divider)
	return n >= 0 && strings.EqualFold(before[n:], "ip"+divider) && (n == 0 || !isLetter(before[n-1]))
}

// digits is for an IPv4 address of the bundle that begins at i as eight hexadecimal digits.
func (p *pseudonyms) digits(s string, i int) (n int, as string) {
	const size = 8
	rest := s[i:]
	if !begins(s, i) || run(rest[:min(len(rest), size+1)], "") != size || len(rest) > size && isLetter(rest[size]) || len(rest) > size && beginsGroup(rest[size:]) {
		return 0, ""
	}
	octets, err := hex.DecodeString(rest[:size])
	if err != nil {
		return 0, ""
	}
	to, ok := p.ips[netip.AddrFrom4([4]byte(octets))]
	if !ok {
		return 0, ""
	}
	as = hex.EncodeToString(to.AsSlice())
	if text := rest[:size]; strings.ToUpper(text) == text && strings.ToLower(text) != text {
		as = strings.ToUpper(as)
	}
	return size, as
}

// beginsGroup says whether a UUID goes on.
func beginsGroup(s string) bool { return s[0] == '-' && run(s[1:min(len(s), 1+5)], "") == 4 }

// reversed is the pseudonym, in the same form, of the name that DNS looks an address up by.
func (p *pseudonyms) reversed(s string) (n int, as string) {
	if n, ip := ipv4Length(s, '.'); n > 0 && underDomain(s[n:], ".in-addr.arpa") {
		octets := ip.As4()
		slices.Reverse(octets[:])
		octets = p.ip(netip.AddrFrom4(octets)).As4()
		slices.Reverse(octets[:])
		return n, netip.AddrFrom4(octets).String()
	}
	const length = 2*2*16 - 1 // a digit and a dot for each half of an octet, but for the last dot
	if len(s) < length || !underDomain(s[length:], ".ip6.arpa") {
		return 0, ""
	}
	digits := []byte(strings.ReplaceAll(s[:length], ".", ""))
	slices.Reverse(digits)
	octets, err := hex.DecodeString(string(digits))
	if err != nil || len(octets) != 16 {
		return 0, ""
	}
	digits = []byte(hex.EncodeToString(p.ip(netip.AddrFrom16([16]byte(octets))).AsSlice()))
	slices.Reverse(digits)
	return length, strings.Join(strings.Split(string(digits), ""), ".")
}

// underDomain says whether s goes on with a domain.
func underDomain(s, domain string) bool {
	return len(s) >= len(domain) && strings.EqualFold(s[:len(domain)], domain)
}
