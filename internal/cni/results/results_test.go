// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package results_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/results"
)

const (
	v020 = `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},` +
		`"ip6":{"ip":"fd01::2/64"},"dns":{"nameservers":["10.1.0.53"]}}`
	v031 = `{"cniVersion":"0.3.1","interfaces":[{"name":"net1","sandbox":"/ns"}],"ips":[{"version":"4","interface":0,"address":"10.1.0.2/24"}],"dns":{}}`
	v110 = `{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","mtu":9000,"sandbox":"/ns","pciID":"0000:03:02.0"}],` +
		`"ips":[{"interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"interface":0,"address":"10.1.0.3/24"},{"interface":0,"address":"fd01::2/64"}],` +
		`"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1","table":254},{"dst":"fd02::/64","gw":"fd01::1"}]}`
)

func TestEncode(t *testing.T) {
	tests := []struct{ name, in, version, want string }{
		{"own version, as written", `{ "cniVersion":"1.0.0", "unknown": 9007199254740993 }`, "1.0.0", `{ "cniVersion":"1.0.0", "unknown": 9007199254740993 }`},
		{"empty object", `{}`, "0.4.0", `{"cniVersion":"0.4.0"}`},
		{"empty to 0.1.0", `{"cniVersion":"1.0.0"}`, "0.1.0", `{"cniVersion":"0.1.0","dns":{}}`},
		{"empty to no version", `{"cniVersion":"1.0.0"}`, "", `{"cniVersion":"0.1.0","dns":{}}`},
		{"dns alone to 0.2.0", `{"cniVersion":"1.0.0","dns":{"domain":"x"}}`, "0.2.0", `{"cniVersion":"0.2.0","dns":{"domain":"x"}}`},
		{"0.2.0 to 0.1.0", v020, "0.1.0", `{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd01::2/64"},"dns":{"nameservers":["10.1.0.53"]}}`},
		{"0.2.0 to 1.1.0", v020, "1.1.0", `{"cniVersion":"1.1.0","dns":{"nameservers":["10.1.0.53"]},"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd01::2/64"}],"routes":[{"dst":"0.0.0.0/0"}]}`},
		{"0.3.1 to 0.3.0", v031, "0.3.0", `{"cniVersion":"0.3.0","interfaces":[{"name":"net1","sandbox":"/ns"}],"ips":[{"version":"4","interface":0,"address":"10.1.0.2/24"}],"dns":{}}`},
		{"0.3.1 to 1.0.0", v031, "1.0.0", `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/ns"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`},
		{"1.1.0 to 0.2.0: the first address of each family", v110, "0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]},"ip6":{"ip":"fd01::2/64","routes":[{"dst":"fd02::/64","gw":"fd01::1"}]},"dns":{}}`},
		{"1.1.0 to 0.4.0", v110, "0.4.0", `{"cniVersion":"0.4.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/ns"}],"ips":[{"version":"4","interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"version":"4","interface":0,"address":"10.1.0.3/24"},{"version":"6","interface":0,"address":"fd01::2/64"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1","table":254},{"dst":"fd02::/64","gw":"fd01::1"}],"dns":{}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			confVersion := test.version
			r, err := results.Parse([]byte(test.in), confVersion)
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Encode(test.version)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
	r, err := results.Parse([]byte(v110), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Encode("2.0.0"); err == nil || err.Error() != `encode result: cniVersion "2.0.0" is none of [0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0]` {
		t.Errorf("Encode(2.0.0): %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct{ in, confVersion, want string }{
		{``, "1.0.0", "result is empty, JSON is needed"},
		{`null`, "1.0.0", "result is null, an object is needed"},
		{`{"cniVersion":1}`, "1.0.0", "result cniVersion is a number, a string is needed"},
		{`{"cniVersion":"0.5.0"}`, "1.0.0", `result cniVersion "0.5.0" is none of [0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0]`},
		{`{}`, "3.0", `result cniVersion "3.0" is none of [0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0]`},
		{`{"ips":[null]}`, "1.0.0", "result ips[0] is null"},
		{`{"ips":[{"address":"10.0.0.1/8"},null]}`, "0.3.1", "result ips[1] is null"},
		{`{"routes":[null]}`, "0.4.0", "result routes[0] is null"},
		{`{"interfaces":[{"name":"a"},null]}`, "1.1.0", "result interfaces[1] is null"},
		{`{"ips":[{}]}`, "1.0.0", "result ips[0].address is missing"},
		{`{"ip4":{}}`, "0.2.0", "result ips[0].address is missing"},
		{`{"ips":[{"version":"4"}]}`, "0.3.0", "result ips[0].address is missing"},
		{`{"routes":[{"gw":"10.0.0.1"}]}`, "1.0.0", "result routes[0].dst is missing"},
		{`{"ips":[{"address":"10.0.0.1"}]}`, "1.0.0", "decode result of version 1.0.0: invalid CIDR address: 10.0.0.1"},
	}
	for _, test := range tests {
		if _, err := results.Parse([]byte(test.in), test.confVersion); err == nil || err.Error() != test.want {
			t.Errorf("Parse(%s, %s): %v, want %s", test.in, test.confVersion, err, test.want)
		}
	}
}

func TestEmpty(t *testing.T) {
	for _, version := range append(results.Versions(), "") {
		r, err := results.Parse(results.Empty(version), "1.0.0")
		if err != nil {
			t.Fatal(err)
		}
		want := version
		if version == "" {
			want = results.Oldest
		}
		if r.Version != want || len(r.Current.IPs)+len(r.Current.Interfaces)+len(r.Current.Routes) != 0 {
			t.Errorf("Empty(%q) is of version %s with %+v", version, r.Version, r.Current)
		}
	}
}

func TestEditDefaultRoutes(t *testing.T) {
	const (
		eth0 = `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"},{"dst":"::/0","gw":"fd01::1"},{"dst":"10.9.0.0/16"},{"dst":"0.0.0.0/8"},{"dst":"0.0.0.0/0","gw":"10.1.0.9","table":100}],"dns":{}}`
		net1 = `{"cniVersion":"1.0.0","routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
	)
	tests := []struct {
		name             string
		gateways         []string
		eth0, net1, net2 string
	}{
		{"none", nil, eth0, net1, `{"cniVersion":"1.0.0"}`},
		{
			"v4",
			[]string{"10.2.0.1"},
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"::/0","gw":"fd01::1"},{"dst":"10.9.0.0/16"},{"dst":"0.0.0.0/8"},{"dst":"0.0.0.0/0","gw":"10.1.0.9","table":100}],"dns":{}}`,
			`{"cniVersion":"1.0.0","routes":[{"dst":"::/0"},{"dst":"0.0.0.0/0","gw":"10.2.0.1"}]}`, `{"cniVersion":"1.0.0"}`,
		},
		{
			"both",
			[]string{"10.2.0.1", "fd02::1"},
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16"},{"dst":"0.0.0.0/8"},{"dst":"0.0.0.0/0","gw":"10.1.0.9","table":100}],"dns":{}}`,
			`{"cniVersion":"1.0.0","routes":[{"dst":"0.0.0.0/0","gw":"10.2.0.1"},{"dst":"::/0","gw":"fd02::1"}]}`, `{"cniVersion":"1.0.0"}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var rs []*results.Result
			for _, text := range []string{eth0, net1, `{"cniVersion":"1.0.0"}`} {
				r, err := results.Parse([]byte(text), "")
				if err != nil {
					t.Fatal(err)
				}
				rs = append(rs, r)
			}
			rs = append(rs, nil) // an attachment without a result
			p := plan.Plan{Attachments: make([]plan.Attachment, 4)}
			for _, gw := range test.gateways {
				p.Attachments[1].Gateways = append(p.Attachments[1].Gateways, netip.MustParseAddr(gw))
			}
			results.EditDefaultRoutes(rs, p)
			results.EditDefaultRoutes(rs, p) // twice is once
			for i, want := range []string{test.eth0, test.net1, test.net2} {
				got, err := rs[i].Encode(rs[i].Version)
				if err != nil {
					t.Fatal(err)
				}
				if string(got) != want {
					t.Errorf("result %d\n%s\nwant\n%s", i, got, want)
				}
			}
		})
	}
}

// Whatever a delegate writes is refused, or can be written in every version and reads
// back as the same result.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		v020, v031, v110, `{}`, `[]`, `null`, `{"ips":[null]}`, `{"interfaces":[null]}`, `{"CNIVersion":"9","cniVersion":""}`,
		`{"ips":[{"interface":99,"address":"::ffff:10.0.0.1/120"}]}`, `{"code":7,"msg":"x"}`, `{"routes":[{"dst":"0.0.0.0/8"}]}`,
	} {
		for _, version := range []string{"", "0.4.0", "1.1.0", "7"} {
			f.Add([]byte(seed), version)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, confVersion string) {
		r, err := results.Parse(b, confVersion)
		if err != nil {
			return
		}
		for _, version := range results.Versions() {
			out, err := r.Encode(version)
			if err != nil {
				t.Fatalf("encode in %s: %v", version, err)
			}
			back, err := results.Parse(out, "")
			if err != nil {
				t.Fatalf("read back %s: %v", out, err)
			}
			if back.Version != version {
				t.Fatalf("read back version %s, want %s", back.Version, version)
			}
			if version == "1.1.0" && !reflect.DeepEqual(plain(t, back), plain(t, r)) {
				t.Fatalf("read back %s, want %+v", out, r.Current)
			}
		}
	})
}

func plain(t *testing.T, r *results.Result) (v map[string]any) {
	t.Helper()
	b, err := json.Marshal(r.Current)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
