// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"testing"

	"github.com/weftnet/weft/vmistatus"
)

func TestSameMAC(t *testing.T) {
	const mac = "52:54:00:ab:cd:ef"
	for _, s := range []string{mac, "52:54:00:AB:cD:EF", "52-54-00-ab-cd-ef", "5254.00ab.cdef", "525400abcdef", "52:54-00:ab-cd:ef"} {
		if !vmistatus.SameMAC(s, mac) || !vmistatus.SameMAC(mac, s) {
			t.Errorf("%s is not %s", s, mac)
		}
		if digits, ok := vmistatus.MACDigits(s); !ok || digits != "525400abcdef" {
			t.Errorf("digits of %s: %s, %v", s, digits, ok)
		}
	}
	for i := range len(mac) { // another byte in each place: none of them is that MAC
		for c := range 256 {
			if byte(c) == mac[i] || byte(c)|0x20 == mac[i] && mac[i] >= 'a' || mac[i] == ':' && (c == '-' || c == '.') {
				continue
			}
			if s := mac[:i] + string([]byte{byte(c)}) + mac[i+1:]; vmistatus.SameMAC(s, mac) {
				t.Errorf("%q is %s", s, mac)
			}
		}
	}
	for _, s := range []string{"", "00:00:00:00:00:00", "00:00:00:00:00:00:00:00", "000000000000"} {
		if vmistatus.SameMAC(s, s) {
			t.Errorf("%q names an interface", s)
		}
	}
	// A colon and a digit change places: the length alone makes no MAC.
	for _, s := range []string{"5:254:00:ab:cd:ef", "52:54:00:ab:cde:f", "525:4:00:ab:cd:ef", "52:54:00:ab:cd:e:", ":2:54:00:ab:cd:ef"} {
		if _, ok := vmistatus.MACDigits(s); ok {
			t.Errorf("%q is a MAC", s)
		}
	}
}
