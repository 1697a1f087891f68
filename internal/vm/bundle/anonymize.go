// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Anonymize is a copy of the bundle in which every IP address and every MAC has a pseudonym, also
// inside of the XML and of annotations. Loopback, unspecified, multicast and all-zero ones stay;
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
	if text, err = json.Marshal(newPseudonyms().value(fields)); err != nil {
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
	words *regexp.Regexp // what may be an address or a MAC
	mac   *regexp.Regexp
	macs  map[string]int
	ips   map[netip.Addr]netip.Addr
}

func newPseudonyms() *pseudonyms {
	return &pseudonyms{
		words: regexp.MustCompile(`[0-9A-Za-z.:_-]+`),
		mac:   regexp.MustCompile(`^(?i:[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,7}|[0-9a-f]{4}(?:\.[0-9a-f]{4}){2,3})$`),
		macs:  map[string]int{},
		ips:   map[netip.Addr]netip.Addr{},
	}
}

// value replaces in every text of a decoded value, keys too.
func (p *pseudonyms) value(v any) any {
	switch v := v.(type) {
	case string:
		return p.text(v)
	case []any:
		for i := range v {
			v[i] = p.value(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[p.text(key)] = p.value(v[key])
		}
		return out
	}
	return v
}

func (p *pseudonyms) text(s string) string {
	return p.words.ReplaceAllStringFunc(s, p.word)
}

// word replaces a word that is an address or a MAC, with what stands around it.
func (p *pseudonyms) word(w string) string {
	const around = ".:_-"
	core := strings.TrimRight(w, ".-_")
	for _, c := range []string{core, strings.Trim(core, around)} {
		if c == "" {
			continue
		}
		as, err := p.name(c)
		if err == nil {
			at := strings.Index(w, c)
			return w[:at] + as + w[at+len(c):]
		}
	}
	// An address and a port.
	if at, err := netip.ParseAddrPort(core); err == nil {
		return p.ip(at.Addr()).String() + core[strings.LastIndexByte(core, ':'):] + w[len(core):]
	}
	// An address after a word and a colon or dash, and addresses between dashes.
	for _, cut := range []string{":", "-", "_"} {
		if parts := strings.Split(w, cut); len(parts) > 1 && slices.ContainsFunc(parts, isIPv4) {
			for i := range parts {
				parts[i] = p.word(parts[i])
			}
			return strings.Join(parts, cut)
		}
	}
	return w
}

func isIPv4(s string) bool {
	ip, err := netip.ParseAddr(s)
	return err == nil && ip.Is4()
}

var errNoAddress = errors.New("no address")

// name is the pseudonym of an address or a MAC.
func (p *pseudonyms) name(s string) (string, error) {
	if p.mac.MatchString(s) {
		return p.hardware(s), nil
	}
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return "", errNoAddress
	}
	return p.ip(ip).String(), nil
}

// hardware spells the pseudonym of a MAC as the MAC is spelled.
func (p *pseudonyms) hardware(s string) string {
	digits := strings.ToLower(strings.NewReplacer(":", "", "-", "", ".", "").Replace(s))
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
