// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// clip bounds a name that came from outside and leaves out what a terminal might obey.
func clip(s string) string { return bound(s, MaxName) }

func bound(s string, most int) string {
	if len(s) <= most && plain(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = '?'
		}
		if b.Len()+utf8.RuneLen(r) > most {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// limitSize shortens a status that is too large as JSON: first what only the guest knows, then
// what the spec does not have, then addresses beyond the first few.
func (m *merger) limitSize() {
	r := &m.result
	if m.surelySmall() {
		return
	}
	size := 2
	for i := range r.Interfaces {
		size += sizeOf(&r.Interfaces[i])
	}
	if size <= MaxStatus {
		return
	}
	out := 0
	for i := len(m.entries) - 1; i >= 0 && size > MaxStatus; i-- {
		if m.entries[i].spec >= 0 {
			continue
		}
		size -= sizeOf(&r.Interfaces[i])
		r.Interfaces = append(r.Interfaces[:i], r.Interfaces[i+1:]...)
		r.Explain = append(r.Explain[:i], r.Explain[i+1:]...)
		out++
	}
	cut := 0
	for _, most := range []int{8, 1} {
		for i := len(r.Interfaces) - 1; i >= 0 && size > MaxStatus; i-- {
			e := &r.Interfaces[i]
			if len(e.IPs) <= most {
				continue
			}
			cut += len(e.IPs) - most
			size -= sizeOf(e)
			e.IPs = e.IPs[:most:most]
			r.Explain[i].Addresses = r.Explain[i].Addresses[:most]
			size += sizeOf(e)
		}
	}
	m.warn(SizeLimit, "", "the status is too large: %d entries and %d addresses were left out", out, cut)
}

// surelySmall looks at lengths alone.
func (m *merger) surelySmall() bool {
	const worst = 6 // bytes of JSON that a byte can become
	size := 0
	for i := range m.result.Interfaces {
		e := &m.result.Interfaces[i]
		size += keys + len(e.IPs)*(len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")+3) +
			worst*(len(e.Name)+len(e.MAC)+len(e.PodInterfaceName)+len(e.InterfaceName)+len(e.LinkState))
	}
	return size < MaxStatus
}

// keys is what all keys of an entry, their quotes, colons and commas, the sources, the queues and
// one address take at most.
const keys = 300

// sizeOf is at least what an entry takes as JSON.
func sizeOf(e *Interface) int {
	size := keys + jsonLen(e.MAC) + jsonLen(e.Name) + jsonLen(e.PodInterfaceName) +
		jsonLen(e.InterfaceName) + jsonLen(e.LinkState)
	for _, ip := range e.IPs {
		size += len(ip) + 3
	}
	return size
}

// jsonLen is at least what a text takes as JSON, without quotes.
func jsonLen(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '<' || c == '>' || c == '&' || c < ' ' || c >= utf8.RuneSelf:
			n += 5
		case c == '"' || c == '\\':
			n++
		}
	}
	return n
}
