// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/vmistatus"
)

// TestFromXML has case 30 of section 6.
func TestFromXML(t *testing.T) {
	want := &vmistatus.Domain{
		Interfaces: []vmistatus.NIC{
			{Name: "default", MAC: "52:54:00:AA:00:01", Queues: 4, LinkState: "up"},
			{Name: "net1", MAC: "52:54:00:aa:00:02", Queues: 1, LinkState: "down"},
		},
		HostDevices: []vmistatus.HostDevice{{Name: "sr"}},
		Skipped:     []string{`an interface with the MAC "52:54:00:aa:00:04" has no alias`},
		Channel:     "connected",
	}
	if diff := cmp.Diff(want, vmistatus.FromXML([]byte(someXML))); diff != "" {
		t.Errorf("domain (-want +got):\n%s", diff)
	}
	device := func(inner string) string { return "<domain><devices>" + inner + "</devices></domain>" }
	one := func(name, mac string, queues int32) []vmistatus.NIC {
		return []vmistatus.NIC{{Name: name, MAC: mac, Queues: queues, LinkState: "up"}}
	}
	for _, r := range []struct {
		name, text string
		want       []vmistatus.NIC
		skipped    int
		err        string
	}{
		{name: "no devices", text: "<domain/>"},
		{name: "no MAC", text: device("<interface><alias name='ua-a'/></interface>"), want: one("a", "", 1)},
		{name: "no name in the alias", text: device("<interface><alias name='ua-'/></interface>"), skipped: 1},
		{name: "queues", text: device("<interface><alias name='a'/><driver queues='0'/></interface>"), want: one("a", "", 1)},
		{name: "no number of queues", text: device("<interface><alias name='a'/><driver queues='many'/></interface>"), want: one("a", "", 1), skipped: 1},
		{name: "too many queues", text: device("<interface><alias name='a'/><driver queues='99999999999'/></interface>"), want: one("a", "", 1<<31-1), skipped: 1},
		{name: "what is unknown", text: device("<disk><serial>x</serial></disk><interface type='zzz'><alias name='a'/><new/></interface>"), want: one("a", "", 1)},
		{name: "torn", text: "<domain><devices><interface>", err: "unexpected EOF"},
		{name: "nothing", text: "", err: "EOF"},
		{name: "another root", text: "<network/>", err: "expected element type <domain>"},
		{name: "an entity", text: "<!DOCTYPE d [<!ENTITY a 'b'>]><domain><name>&a;</name></domain>", err: "invalid character entity"},
		{name: "deep", text: strings.Repeat("<domain>", 20000), err: "unexpected EOF"},
		{name: "huge", text: "<domain>" + strings.Repeat(" ", 8<<20) + "</domain>", err: "more than"},
	} {
		got := vmistatus.FromXML([]byte(r.text))
		if diff := cmp.Diff(r.want, got.Interfaces); diff != "" || len(got.Skipped) != r.skipped {
			t.Errorf("%s: %v\n%s", r.name, got.Skipped, diff)
		}
		if got := fmt.Sprint(got.Err); (r.err == "") != (got == "<nil>") || !strings.Contains(got, r.err) && r.err != "" {
			t.Errorf("%s: error %s, want %q", r.name, got, r.err)
		}
	}
	got := vmistatus.FromXML([]byte(device(strings.Repeat("<interface><alias name='a'/></interface>", 2000))))
	if len(got.Interfaces) != 1024 || len(got.Skipped) != 17 || got.Skipped[16] != "960 more elements" {
		t.Errorf("%d interfaces, %d skipped: %v", len(got.Interfaces), len(got.Skipped), got.Skipped[len(got.Skipped)-1])
	}
}

func TestFromGuest(t *testing.T) {
	some := []guest{
		{Name: "lo", MAC: "00:00:00:00:00:00", IPs: ips{"127.0.0.1"}},
		{Name: "eth0", MAC: "52:54:00:aa:00:01", IPs: ips{"10.0.2.2"}},
		{Name: "tun0"},
	}
	for _, r := range []struct {
		name, text string
		want       []guest
		err        string
	}{
		{name: "a list", text: someGuest, want: some},
		{name: "the agent's own answer", text: `{"return": ` + someGuest + "}", want: some},
		{name: "null", text: "null"},
		{name: "an empty list", text: "[]", want: []guest{}},
		{name: "nulls", text: `[null, {"name": null, "ip-addresses": null}]`, want: []guest{{}, {}}},
		{name: "torn", text: `[{"name": "eth0"`, err: "unexpected EOF"},
		{name: "no list", text: `"eth0"`, err: "no list"},
		{name: "text after it", text: "[] x", err: "text after the list"},
		{name: "addresses that are no list", text: `[{"ip-addresses": 5}]`, err: "no list"},
		{name: "a wrong type", text: `[{"name": 5}]`, err: "cannot unmarshal number"},
		{name: "an error", text: `{"error": {"class": "GenericError"}}`, err: "an object without return"},
		{name: "deep", text: strings.Repeat("[", 20000), err: "exceeded max depth"},
		{name: "huge", text: strings.Repeat(" ", 9<<20), err: "more than"},
		{name: "many", text: "[" + strings.Repeat("{},", 5000) + "{}]", err: "more than 4096"},
	} {
		got, err := vmistatus.FromGuest([]byte(r.text))
		if diff := cmp.Diff(r.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", r.name, diff)
		}
		if (r.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), r.err) {
			t.Errorf("%s: error %v, want %q", r.name, err, r.err)
		}
	}
}
