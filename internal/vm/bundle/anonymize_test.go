// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Addresses and MACs are found in whatever they stand, and nothing else is changed.
func TestPseudonymsInText(t *testing.T) {
	const mac, v4, v6 = "02:00:00:00:00:01", "198.18.0.1", "2001:db8::1"
	for text, want := range map[string]string{
		"mac:52:54:00:12:34:56":              "mac:" + mac,
		"hwaddr-52:54:00:12:34:56":           "hwaddr-" + mac,
		"mac=52:54:00:12:34:56":              "mac=" + mac,
		"52:54:00:12:34:56:":                 mac + ":",
		"mac_52-54-00-12-34-56":              "mac_02-00-00-00-00-01",
		"MAC 52-54-00-AB-34-56.":             "MAC 02-00-00-00-00-01.",
		"5254.0012.3456":                     "0200.0000.0001",
		"525400123456":                       "020000000001",
		"x-525400ab3456,":                    "x-020000000001,",
		"5254:0012:3456":                     "0200:0000:0001",
		"52:54:0:12:34:56":                   mac,
		"tap_52:54:00:12:34:56.1":            "tap_" + mac + ".1",
		"(52:54:00:12:34:56)":                "(" + mac + ")",
		"ip:fd00:1::5":                       "ip:" + v6,
		"addr_fd00:1::5":                     "addr_" + v6,
		"[fd00:1::5]:80":                     "[" + v6 + "]:80",
		"fd00:1::5%eth0/64":                  v6 + "%eth0/64",
		"fd00:1::1-fd00:1::9":                v6 + "-2001:db8::2",
		"10.0.0.5-10.0.0.9":                  v4 + "-198.18.0.2",
		"10.0.0.5:22: refused":               v4 + ":22: refused",
		"tcp:10.0.0.5:22":                    "tcp:" + v4 + ":22",
		"eth0:10.0.0.5":                      "eth0:" + v4,
		"v10.0.0.5":                          "v" + v4,
		`{\"a\":\"x\n10.0.0.5\"}`:            `{\"a\":\"x\n` + v4 + `\"}`,
		`x\nfd00:1::5\t52:54:00:12:34:56`:    `x\n` + v6 + `\t` + mac,
		`\u000afd00:1::5`:                    `\u000a` + v6,
		"10.0.0.5.nip.io":                    v4 + ".nip.io",
		"default_10.0.0.5.nip.io":            "default_" + v4 + ".nip.io",
		"010.0.0.5":                          v4,
		"10.0.0.5,10.0.0.6":                  v4 + ",198.18.0.2",
		"::ffff:10.0.0.5":                    "::ffff:" + v4,
		"mac:52:54:00:12:34:56,ip:10.0.0.5":  "mac:" + mac + ",ip:" + v4,
		"127.0.0.1 ::1 :: 224.0.0.1 0.0.0.0": "127.0.0.1 ::1 :: 224.0.0.1 0.0.0.0",
		"255.255.255.0 00:00:00:00:00:00":    "255.255.255.0 00:00:00:00:00:00",
		"0f3c8e6a-1111-2222-3333-444455556666 podb1f51a511f1": "0f3c8e6a-1111-2222-3333-444455556666 podb1f51a511f1",
		"2026-11-30T12:34:56.789Z q35-8.2.0 std::move a:b":    "2026-11-30T12:34:56.789Z q35-8.2.0 std::move a:b",
	} {
		if d := cmp.Diff(want, newPseudonyms().text(text)); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
	}
}
