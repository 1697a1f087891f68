// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/vmistatus"
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
		"10.0.0.5 ip-10-0-0-5.internal":      v4 + " ip-198-18-0-1.internal",
		"ip-10-0-0-5 web-1-2-3-4 10-0-0-5":   "ip-198-18-0-1 web-1-2-3-4 198-18-0-1",
		"10.0.0.5 n10_0_0_5_x pod-10-0-0-50": v4 + " n198_18_0_1_x pod-10-0-0-50",
		"10.0.0.5 1-10-0-0-5-9":              v4 + " 1-198-18-0-1-9",
		"10-0-0-5.web.pod 10.0.0.5":          "198-18-0-1.web.pod " + v4,
		"fd00:1::5 fd00-1--5.web.pod":        v6 + " 2001-db8--1.web.pod",
		"fd00:1::5 a-FD00-1-0-0-0-0-0-5-b":   v6 + " a-2001-db8--1-b",
		"fd00:1::5 ip_fd00_1__5":             v6 + " ip_2001_db8__1",
		"10.0.0.5 5.0.0.10.in-addr.arpa":     v4 + " 1.0.18.198.in-addr.arpa",
		"10.0.0.5 h-0a000005 0A000005.x":     v4 + " h-c6120001 C6120001.x",
		"10.0.0.5 0a000005-1111-2222-3333-444455556666 0a0000050":                            v4 + " 0a000005-1111-2222-3333-444455556666 0a0000050",
		"fd00:1::5 5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.d.f.ip6.arpa": v6 + " 1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
		"127-0-0-1 255-255-255-0 ip-127-0-0-1 8-2-0-1 chip-8-2-0-1":                          "127-0-0-1 255-255-255-0 ip-127-0-0-1 8-2-0-1 chip-8-2-0-1",
		"0f3c8e6a-1111-2222-3333-444455556666 podb1f51a511f1":                                "0f3c8e6a-1111-2222-3333-444455556666 podb1f51a511f1",
		"2026-11-30T12:34:56.789Z q35-8.2.0 std::move a:b":                                   "2026-11-30T12:34:56.789Z q35-8.2.0 std::move a:b",
	} {
		p := newPseudonyms()
		p.text(text)
		if d := cmp.Diff(want, p.text(text)); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
	}
}

// No address of a bundle is left in it with dots, dashes or underscores, whatever stands around it, and
// each spelling has the address' own pseudonym.
func TestNoSpellingSurvives(t *testing.T) {
	around := rapid.SampledFrom([]string{"", "-", ".", "_", "x-", "-x", "web.", " ", "-zz-", ".1z-", "/", "pod_"})
	rapid.Check(t, func(t *rapid.T) {
		octet := func(name string) byte { return byte(rapid.IntRange(0, 255).Draw(t, name)) }
		ip := netip.AddrFrom4([4]byte{rapid.SampledFrom([]byte{10, 100, 172, 192}).Draw(t, "first"), octet("a"), octet("b"), octet("c")})
		if rapid.Bool().Draw(t, "IPv6") {
			ip = netip.AddrFrom16([16]byte{0: 0xfd, 1: octet("a"), 3: octet("b"), 6: octet("d"), 15: octet("c")})
		}
		b := &Bundle{
			VMI:        &v1.VirtualMachineInstance{},
			GuestAgent: []byte(`[{"name":"eth0","ip-addresses":[{"ip-address":"` + ip.String() + `"}]}]`),
		}
		before, after := around.Draw(t, "before"), around.Draw(t, "after")
		b.VMI.Annotations = map[string]string{}
		var spelled []string
		for form, text := range map[string]string{"short": ip.String(), "long": ip.StringExpanded()} {
			for _, divider := range []string{".", "-", "_"} {
				if divider != "." || ip.Is4() {
					as := strings.NewReplacer(".", divider, ":", divider).Replace(text)
					spelled = append(spelled, as)
					b.VMI.Annotations[form+divider] = before + as + after
				}
			}
		}
		out, err := Anonymize(b)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, as := range append(spelled, ip.String()) {
			if strings.Contains(string(text), as) {
				t.Errorf("%s is left in %s", as, text)
			}
		}
		guest, err := vmistatus.FromGuest(out.GuestAgent)
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range out.VMI.Annotations {
			divider := name[len(name)-1:]
			want := before + strings.NewReplacer(".", divider, ":", divider).Replace(guest[0].IPs[0]) + after
			if got != want {
				t.Errorf("%q has become %q, want %q", b.VMI.Annotations[name], got, want)
			}
		}
	})
}

// A text that is nothing but what could begin an address is looked through in a time that grows with it.
func TestLongText(t *testing.T) {
	for _, part := range []string{"a-", "1-", "1.", "a:", "1_", "f"} {
		text := strings.Repeat(part, 1<<18/len(part))
		if p := newPseudonyms(); p.text(text) != text && part != "a:" && part != "1." {
			t.Errorf("a text of %q is changed", part)
		}
	}
}
