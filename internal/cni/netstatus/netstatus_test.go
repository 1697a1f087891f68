// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netstatus_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/results"
)

const ns = `"sandbox":"/run/netns/x"`

// What plugins answer, and the entries that come of it.
func TestEntries(t *testing.T) {
	tests := []struct {
		name, result string
		primary      bool
		info, want   string
	}{
		{
			"bridge as pod network", `{"cniVersion":"1.0.0","interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"},{"name":"veth1","mac":"02:00:00:00:00:02"},` +
				`{"name":"net1","mac":"02:00:00:00:00:03",` + ns + `}],"ips":[{"interface":2,"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"interface":2,"address":"fd01::2/64","gateway":"fd01::1"}],` +
				`"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fd01::1"}],"dns":{"nameservers":["10.1.0.53"],"domain":"d","search":["s"],"options":["o"]}}`, true, "",
			`[{"name":"default/n","interface":"net1","ips":["10.1.0.2","fd01::2"],"mac":"02:00:00:00:00:03","default":true,` +
				`"dns":{"nameservers":["10.1.0.53"],"domain":"d","search":["s"],"options":["o"]},"gateway":["10.1.0.1","fd01::1"]}]`,
		},
		{
			"macvlan with mtu", `{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:03","mtu":1400,` + ns + `}],"ips":[{"interface":0,"address":"192.168.1.200/24"}]}`, false, "",
			`[{"name":"default/n","interface":"net1","ips":["192.168.1.200"],"mac":"02:00:00:00:00:03","mtu":1400}]`,
		},
		{
			"ptp", `{"cniVersion":"0.4.0","interfaces":[{"name":"veth1"},{"name":"net1",` + ns + `}],"ips":[{"version":"4","interface":1,"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`, false, "",
			`[{"name":"default/n","interface":"net1","ips":["10.1.0.2"],"gateway":["10.1.0.1"]}]`,
		},
		{
			"host-device", `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:03",` + ns + `}]}`, false,
			` {"type":"pci","pci":{"pci-address":"0000:03:02.0","n":9007199254740993,"x":"<"}} `,
			`[{"name":"default/n","interface":"net1","mac":"02:00:00:00:00:03","device-info":{"type":"pci","pci":{"pci-address":"0000:03:02.0","n":9007199254740993,"x":"<"}}}]`,
		},
		{
			"calico: one interface, of the host", `{"cniVersion":"0.3.1","interfaces":[{"name":"cali1"}],"ips":[{"version":"4","address":"10.1.0.2/32"}]}`, true, "",
			`[{"name":"default/n","ips":["10.1.0.2"],"default":true}]`,
		},
		{
			"one interface of the host, named by the address", `{"cniVersion":"1.0.0","interfaces":[{"name":"cali1","mac":"02:00:00:00:00:03"}],"ips":[{"interface":0,"address":"10.1.0.2/32"}]}`, false, "",
			`[{"name":"default/n","ips":["10.1.0.2"]}]`,
		},
		{
			"two interfaces of the host", `{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"cali1"}],"ips":[{"address":"10.1.0.2/32"},{"interface":0,"address":"10.1.0.1/32"}]}`, true, "",
			`[{"name":"default/n","ips":["10.1.0.2"],"default":true}]`,
		},
		{
			"two interfaces of the host, each address names one", `{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"cali1"}],"ips":[{"interface":1,"address":"10.1.0.2/32"}]}`, false, "",
			`[{"name":"default/n","ips":["10.1.0.2"]}]`,
		},
		{
			"B43: two in the sandbox, the gateway on the second",
			`{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:01",` + ns + `},{"name":"net1.5","mac":"02:00:00:00:00:02",` + ns + `}],` +
				`"ips":[{"interface":0,"address":"10.1.0.2/24"},{"interface":1,"address":"10.2.0.2/24","gateway":"10.2.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"d"}}`, true, `{"type":"pci"}`,
			`[{"name":"default/n","interface":"net1","ips":["10.1.0.2"],"mac":"02:00:00:00:00:01","dns":{"domain":"d"},"device-info":{"type":"pci"},"gateway":["10.2.0.1"]},` +
				`{"name":"default/n","interface":"net1.5","ips":["10.2.0.2"],"mac":"02:00:00:00:00:02","default":true,"dns":{"domain":"d"},"gateway":["10.2.0.1"]}]`,
		},
		{
			"addresses that name none go to the last, those of the host to nobody",
			`{"cniVersion":"1.0.0","interfaces":[{"name":"net1",` + ns + `},{"name":"veth1"},{"name":"net2",` + ns + `}],` +
				`"ips":[{"address":"10.1.0.2/24"},{"interface":7,"address":"10.1.0.3/24"},{"interface":-1,"address":"10.1.0.4/24"},{"interface":1,"address":"10.1.0.1/24","gateway":"10.1.0.9"}]}`, true, "",
			`[{"name":"default/n","interface":"net1","default":true},{"name":"default/n","interface":"net2","ips":["10.1.0.2","10.1.0.3","10.1.0.4"]}]`,
		},
		{"B45: empty", `{}`, false, "", `[{"name":"default/n"}]`},
		{"empty pod network", `{}`, true, "", `[{"name":"default/n","default":true}]`},
		{
			"0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd01::2/64"},"dns":{"nameservers":["10.1.0.53"]}}`, false, "",
			`[{"name":"default/n","interface":"net1","ips":["10.1.0.2","fd01::2"],"dns":{"nameservers":["10.1.0.53"]},"gateway":["10.1.0.1"]}]`,
		},
		{"0.1.0, empty", `{"cniVersion":"0.1.0"}`, false, "", `[{"name":"default/n"}]`},
		{
			"default routes: without gateway, of another table, and what only looks like one",
			`{"cniVersion":"1.0.0","interfaces":[{"name":"net1",` + ns + `}],"ips":[{"address":"10.1.0.2/24"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/8","gw":"10.1.0.8"},` +
				`{"dst":"0.0.0.0/0","gw":"10.1.0.7","table":100},{"dst":"::/0"},{"dst":"::/0","gw":"fe80::1","table":254},{"dst":"::/0","gw":"fe80::1","priority":9}]}`, false, "null",
			`[{"name":"default/n","interface":"net1","ips":["10.1.0.2"],"gateway":["fe80::1"]}]`,
		},
		{"device info that is no JSON", `{}`, false, "{", `[{"name":"default/n"}]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := plan.Attachment{Network: "default/n", IfName: "net1", Default: test.primary}
			got := netstatus.Entries(a, parse(t, test.result), json.RawMessage(test.info))
			wantJSON(t, got, test.want)
		})
	}
}

// A whole pod: plan order, an entry for each attachment, one default, routes as edited.
func TestBuild(t *testing.T) {
	p := plan.Plan{Attachments: []plan.Attachment{
		{Network: "pods", IfName: "eth0", Default: true},
		{Network: "default/b", IfName: "net1", Gateways: []netip.Addr{netip.MustParseAddr("10.2.0.1")}},
		{Network: "default/b", IfName: "net2", Default: true},
		{Network: "default/c", IfName: "net3"},
	}}
	rs := []*results.Result{
		parse(t, `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0",`+ns+`}],"ips":[{"interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`),
		parse(t, `{"cniVersion":"1.0.0","interfaces":[{"name":"net1",`+ns+`}],"ips":[{"interface":0,"address":"10.2.0.2/24"}]}`),
		nil,
	}
	results.EditDefaultRoutes(rs, p)
	got := netstatus.Build(p, rs, []json.RawMessage{nil, json.RawMessage(`{"a":1}`)})
	wantJSON(t, got, `[{"name":"pods","interface":"eth0","ips":["10.1.0.2"],"default":true},`+
		`{"name":"default/b","interface":"net1","ips":["10.2.0.2"],"device-info":{"a":1},"gateway":["10.2.0.1"]},`+
		`{"name":"default/b"},{"name":"default/c"}]`)
	if got := netstatus.Encode(netstatus.Build(plan.Plan{}, nil, nil)); got != "[]" {
		t.Errorf("no attachments: %s, want []", got)
	}
}

func TestEncodeIsIndented(t *testing.T) {
	got := netstatus.Encode([]netstatus.Entry{{Name: "default/n", IPs: []string{"10.1.0.2"}}})
	want := "[\n    {\n        \"name\": \"default/n\",\n        \"ips\": [\n            \"10.1.0.2\"\n        ]\n    }\n]"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Whatever a result holds: valid JSON, at least one entry, exactly one default, and no
// address that the result does not hold.
func FuzzEntries(f *testing.F) {
	f.Add([]byte(`{"interfaces":[{"name":"a",`+ns+`},{"name":"b",`+ns+`}],"ips":[{"interface":1,"address":"10.0.0.1/8","gateway":"10.0.0.2"},{"interface":-2,"address":"::1/8"}],"routes":[{"dst":"0.0.0.0/0"}]}`), []byte(`{"a":1}`))
	f.Add([]byte(`{"cniVersion":"0.2.0","ip6":{"ip":"::1/64","routes":[{"dst":"::/0"}]}}`), []byte(`<`))
	f.Fuzz(func(t *testing.T, result, info []byte) {
		r, err := results.Parse(result, "1.0.0")
		if err != nil {
			return
		}
		entries := netstatus.Entries(plan.Attachment{Network: "n", IfName: "a", Default: true}, r, info)
		var decoded []struct {
			IPs     []string
			Default bool
		}
		if err := json.Unmarshal([]byte(netstatus.Encode(entries)), &decoded); err != nil {
			t.Fatalf("encode: %v", err)
		}
		defaults, ips := 0, 0
		for _, e := range decoded {
			if e.Default {
				defaults++
			}
			ips += len(e.IPs)
		}
		if len(decoded) == 0 || defaults != 1 || ips > len(r.Current.IPs) {
			t.Fatalf("%d entries, %d defaults, %d of %d addresses", len(decoded), defaults, ips, len(r.Current.IPs))
		}
	})
}

func parse(t *testing.T, text string) *results.Result {
	t.Helper()
	r, err := results.Parse([]byte(text), "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantJSON compares the annotation without its indentation.
func wantJSON(t *testing.T, entries []netstatus.Entry, want string) {
	t.Helper()
	var got bytes.Buffer
	if err := json.Compact(&got, []byte(netstatus.Encode(entries))); err != nil {
		t.Fatal(err)
	}
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}
