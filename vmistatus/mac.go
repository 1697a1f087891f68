// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import "cmp"

// hwaddr is a MAC's value, to be compared. One that is no MAC is its own spelling.
type hwaddr struct {
	octets [8]byte
	length uint8
	raw    string
}

// parseMAC reads a MAC of six or eight octets in any case, divided by colons, dashes or dots.
func parseMAC(s string) hwaddr {
	var h hwaddr
	digits := 0
	for i := range len(s) {
		c := s[i]
		var v byte
		switch {
		case c == ':' || c == '-':
			if digits%2 != 0 || digits == 0 || i+1 == len(s) || s[i-1] == c {
				return hwaddr{raw: s}
			}
			continue
		case c == '.':
			if digits%4 != 0 || digits == 0 || i+1 == len(s) || s[i-1] == c {
				return hwaddr{raw: s}
			}
			continue
		case '0' <= c && c <= '9':
			v = c - '0'
		case 'a' <= c && c <= 'f':
			v = c - 'a' + 10
		case 'A' <= c && c <= 'F':
			v = c - 'A' + 10
		default:
			return hwaddr{raw: s}
		}
		if digits == 2*len(h.octets) {
			return hwaddr{raw: s}
		}
		h.octets[digits/2] = h.octets[digits/2]<<4 | v
		digits++
	}
	if len(s) > 0 && digits != 12 && digits != 16 {
		return hwaddr{raw: s}
	}
	if h.octets == [8]byte{} {
		return hwaddr{}
	}
	h.length = uint8(digits / 2)
	return h
}

// nothing says whether it is empty or all zero, which are one value and name no interface.
func (h hwaddr) nothing() bool { return h == hwaddr{} }

func (h hwaddr) compare(o hwaddr) int {
	for i := range h.octets {
		if h.octets[i] != o.octets[i] {
			return cmp.Compare(h.octets[i], o.octets[i])
		}
	}
	return cmp.Or(cmp.Compare(h.length, o.length), cmp.Compare(h.raw, o.raw))
}
