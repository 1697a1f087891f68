// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"cmp"
	"strings"
)

// hwaddr is a MAC's value, to be compared. One that is no MAC is its own spelling.
type hwaddr struct {
	octets uint64
	length uint8
	raw    string
}

// parseMAC reads a MAC of six or eight octets in any case, divided by colons, dashes or dots.
func parseMAC(s string) hwaddr {
	if octets, ok := usualMAC(s); ok && octets != 0 {
		return hwaddr{octets: octets, length: 6}
	}
	var h hwaddr
	digits := 0
	for i := range len(s) {
		c := s[i]
		v := c - '0'
		if v > 9 {
			if v = (c | 0x20) - 'a' + 10; v < 10 || v > 15 {
				if !divides(s, i, digits) {
					return hwaddr{raw: s}
				}
				continue
			}
		}
		h.octets = h.octets<<4 | uint64(v)
		digits++
	}
	if digits != 12 && digits != 16 {
		return hwaddr{raw: s}
	}
	if h.octets == 0 {
		return hwaddr{}
	}
	h.length = uint8(digits / 2)
	return h
}

// usualMAC reads six octets divided by colons, which nearly all are.
func usualMAC(s string) (octets uint64, ok bool) {
	if len(s) != len("52:54:00:aa:00:01") {
		return 0, false
	}
	for i := 0; i < len(s); i += 3 {
		high, low := hexValue[s[i]], hexValue[s[i+1]]
		if high|low > 0xf || i+2 < len(s) && s[i+2] != ':' {
			return 0, false
		}
		octets = octets<<8 | uint64(high<<4|low)
	}
	return octets, true
}

// hexValue is what a digit says; 0x10 for what is none.
var hexValue = func() (v [256]byte) { //nolint:gochecknoglobals // a table
	for i := range v {
		v[i] = 0x10
	}
	for i, c := range "0123456789abcdef" {
		v[c] = byte(i)
	}
	for i, c := range "ABCDEF" {
		v[c] = byte(10 + i)
	}
	return v
}()

// divides says whether the byte at i may stand behind so many digits.
func divides(s string, i, digits int) bool {
	if digits == 0 || i+1 == len(s) || s[i-1] == s[i] {
		return false
	}
	switch s[i] {
	case ':', '-':
		return digits%2 == 0
	case '.':
		return digits%4 == 0
	}
	return false
}

// nothing says whether it is empty or all zero, which are one value and name no interface.
func (h hwaddr) nothing() bool { return h == hwaddr{} }

func (h hwaddr) compare(o hwaddr) int {
	if h.octets != o.octets {
		return cmp.Compare(h.octets, o.octets)
	}
	return cmp.Or(cmp.Compare(h.length, o.length), cmp.Compare(h.raw, o.raw))
}

// SameMAC says whether two spellings are of one MAC: any case, any dividers. An empty or all-zero
// one is the same as nothing.
func SameMAC(a, b string) bool {
	h := parseMAC(a)
	return !h.nothing() && h == parseMAC(b)
}

// MACDigits are the hex digits of what is a MAC, in lower case; false: it is none.
func MACDigits(s string) (string, bool) {
	if s == "" || parseMAC(s).raw != "" {
		return "", false
	}
	return strings.ToLower(strings.NewReplacer(":", "", "-", "", ".", "").Replace(s)), true
}
