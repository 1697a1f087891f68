// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package selection_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/selection"
)

func TestShortForm(t *testing.T) {
	type e = selection.Element
	for text, want := range map[string][]e{
		"":                             nil,
		" \n":                          nil,
		"neta":                         {{Name: "neta"}},
		" neta , other/netb@foo0 ":     {{Name: "neta"}, {Index: 1, Namespace: "other", Name: "netb", Interface: "foo0"}},
		"neta@n1.5":                    {{Name: "neta", Interface: "n1.5"}},
		"neta@":                        {{Name: "neta"}},
		"neta,":                        {{Name: "neta"}},
		"neta , ":                      {{Name: "neta"}},
		"a.b-c.d":                      {{Name: "a.b-c.d"}},
		"/neta":                        {{Name: "neta"}},
		"ns / neta @ x":                {{Namespace: "ns", Name: "neta", Interface: "x"}},
		"null":                         {{Name: "null"}},
		strings.Repeat("n", 253):       {{Name: strings.Repeat("n", 253)}},
		strings.Repeat("n", 63) + "/a": {{Namespace: strings.Repeat("n", 63), Name: "a"}},
	} {
		got, _, err := selection.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestJSONForm(t *testing.T) {
	const text = ` [ {"name":"neta","namespace":"ns","ips":["10.1.1.5","10.1.1.6/24","fd00::1/64"],"mac":"02:00:00:00:00:0a",
		"infiniband-guid":"c2:11:22:33:44:55:66:77","interface":"n1","interfaceRequest":"old",
		"portMappings":[{"hostPort":65535,"containerPort":1,"protocol":"SCTP","hostIP":"::1"},{"hostPort":1,"containerPort":2}],
		"bandwidth":{"ingressRate":1,"ingressBurst":2,"egressRate":3,"egressBurst":18446744073709551615},"deviceID":"0000:01:00.1",
		"cni-args":{"big": 9007199254740993 },"default-route":["10.1.1.1","::ffff:10.1.1.2","fd00::9"],"ipam-claim-reference":"claim"},
		{"name":"other/netb","default-route":[],"mac":null,"ips":null,"portMappings":[],"cni-args":{}},{"name":"x","interfaceRequest":"old"}] `
	want := []selection.Element{
		{
			Namespace: "ns", Name: "neta", Interface: "n1", IPs: []string{"10.1.1.5", "10.1.1.6/24", "fd00::1/64"}, MAC: "02:00:00:00:00:0a",
			InfinibandGUID: "c2:11:22:33:44:55:66:77",
			PortMappings:   []selection.PortMapping{{HostPort: 65535, ContainerPort: 1, Protocol: "sctp", HostIP: "::1"}, {HostPort: 1, ContainerPort: 2, Protocol: "tcp"}},
			Bandwidth:      &selection.Bandwidth{IngressRate: 1, IngressBurst: 2, EgressRate: 3, EgressBurst: 18446744073709551615},
			DeviceID:       "0000:01:00.1", CNIArgs: json.RawMessage(`{"big": 9007199254740993 }`),
			DefaultRoute:       []netip.Addr{netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("fd00::9")},
			IPAMClaimReference: "claim",
		},
		{Index: 1, Namespace: "other", Name: "netb", SplitName: true, DefaultRoute: []netip.Addr{}, CNIArgs: json.RawMessage("{}")},
		{Index: 2, Name: "x", Interface: "old"},
	}
	got, warnings, err := selection.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	if len(warnings) != 1 || warnings[0].Field != "[0].ipam-claim-reference" {
		t.Errorf("warnings %v", warnings)
	}
}

// Each text has one fault, whose field and text are these.
func TestFaults(t *testing.T) {
	in := func(members string) string { return `[{"name":"a"},{"name":"b",` + members + "}]" }
	for text, want := range map[string]string{
		",":                      "[0]: is empty, a network's name",
		"a,,b":                   "[1]: is empty",
		"a/b/c":                  `[0]: "a/b/c" holds more than one '/'`,
		"a@x@y":                  `[0]: "a@x@y" holds more than one '@'`,
		"ns/":                    `[0]: name "" is empty`,
		"@x":                     `[0]: name "" is empty`,
		"a,NetA":                 `[1]: name "NetA" is no object name`,
		"a.b/c":                  `[0]: namespace "a.b" is no namespace`,
		"a-":                     `[0]: name "a-"`,
		"a..b":                   `[0]: name "a..b"`,
		"a@x y":                  `[0]: interface name "x y" holds space`,
		"a@x:y":                  `[0]: interface name "x:y"`,
		"a@x/y":                  `[0]: interface name "x/y"`,
		"a@abcdefghijklmnop":     "[0]: interface name \"abcdefghijklmnop\" is longer than 15",
		"a@eth%d":                `[0]: interface name "eth%d"`,
		"a@all":                  `[0]: interface name "all"`,
		strings.Repeat(",", 300): "names 300 networks, at most 256 are allowed",
		"[null" + strings.Repeat(",null", 256) + "]": "names 257 networks, at most 256 are allowed",
		strings.Repeat("n", 254):                     "is longer than 253",
		strings.Repeat("n", 64) + "/a":               "is longer than 63",

		"{}":               "is an object, an array is needed",
		`"a"`:              "is a string, an array is needed",
		"a[":               "is not JSON",
		"[null]":           "[0]: is null, an object is needed",
		`["a"]`:            "[0]: is a string, an object is needed",
		`[{"name":"a"}] x`: "is not JSON",
		"[{}]":             `[0].name: name "" is empty`,
		`[{"name":7}]`:     "", // two: of the type, of the empty name

		`[{"name":"A"}]`:                                             `[0].name: name "A"`,
		`[{"name":"a/b/c"}]`:                                         `[0].name: name "a/b/c"`,
		`[{"name":"ns/a","namespace":"x"}]`:                          `[0].name: "ns/a" has another namespace than the key namespace, "x"`,
		`[{"name":"a@x"}]`:                                           `[0].name: name "a@x"`,
		in(`"namespace":"N"`):                                        `[1].namespace: namespace "N"`,
		in(`"interface":"."`):                                        `[1].interface: interface name "."`,
		in(`"interface":"a\u0000"`):                                  `[1].interface: interface name "a\x00"`,
		in(`"ips":"1.2.3.4"`):                                        "[1].ips: is a string, an array is needed",
		in(`"ips":["1.2.3"]`):                                        `[1].ips: [0] "1.2.3" is no IP address`,
		in(`"ips":["1.2.3.4/33"]`):                                   `[1].ips: [0] "1.2.3.4/33"`,
		in(`"ips":["fe80::1%eth0"]`):                                 `[1].ips: [0] "fe80::1%eth0"`,
		in(`"ips":[null]`):                                           "[1].ips: [0] is null",
		in(`"mac":"24:8a:07:03:00:8d:ae:2f"`):                        `[1].mac: "24:8a:07:03:00:8d:ae:2f" is not 6 bytes but 8`,
		in(`"mac":"24:8a:07"`):                                       "[1].mac: \"24:8a:07\" is not 6 bytes but 3",
		in(`"mac":"248a0703008d"`):                                   "[1].mac: \"248a0703008d\" is not 6 bytes in hexadecimal",
		in(`"mac":"24:8a:07:03:00:8g"`):                              "[1].mac: \"24:8a:07:03:00:8g\" is not 6 bytes in hexadecimal",
		in(`"mac":"01:00:5e:00:00:01"`):                              "[1].mac: \"01:00:5e:00:00:01\" is a group address",
		in(`"mac":"00:00:00:00:00:00"`):                              "[1].mac: \"00:00:00:00:00:00\" is no address",
		in(`"mac":5`):                                                "[1].mac: is 5, a string is needed",
		in(`"infiniband-guid":"24:8a:07:03:00:8d"`):                  "[1].infiniband-guid: \"24:8a:07:03:00:8d\" is not 8 bytes but 6",
		in(`"portMappings":{}`):                                      "[1].portMappings: is an object, an array",
		in(`"portMappings":[7]`):                                     "[1].portMappings[0]: is a number, an object",
		in(`"portMappings":[{"hostPort":99999,"containerPort":80}]`): "[1].portMappings[0].hostPort: is 99999, a port from 1 to 65535",
		in(`"portMappings":[{"hostPort":0,"containerPort":80}]`):     "[1].portMappings[0].hostPort: is 0",
		in(`"portMappings":[{"hostPort":80}]`):                       "[1].portMappings[0].containerPort: is missing",
		in(`"portMappings":[{"hostPort":"80","containerPort":1}]`):   "[1].portMappings[0].hostPort: is a string",
		in(`"portMappings":[{"hostPort":1,"containerPort":1,"protocol":"icmp"}]`): `[1].portMappings[0].protocol: "icmp" is none of`,
		in(`"portMappings":[{"hostPort":1,"containerPort":1,"hostIP":"x"}]`):      `[1].portMappings[0].hostIP: "x" is no IP`,
		in(`"bandwidth":[]`):                  "[1].bandwidth: is an array, an object",
		in(`"bandwidth":{"ingressRate":-1}`):  "[1].bandwidth.ingressRate: is -1",
		in(`"bandwidth":{"egressBurst":1.5}`): "[1].bandwidth.egressBurst: is 1.5",
		in(`"deviceID":[]`):                   "[1].deviceID: is an array, a string",
		in(`"cni-args":"x"`):                  "[1].cni-args: is a string, an object",
		in(`"default-route":"10.0.0.1"`):      "[1].default-route: is a string, an array",
		in(`"default-route":["10.0.0.1/24"]`): `[1].default-route: [0] "10.0.0.1/24" is no IP address`,
		in(`"default-route":["fe80::1%x"]`):   `[1].default-route: [0] "fe80::1%x"`,
		in(`"default-route":["0.0.0.0"]`):     `[1].default-route: [0] "0.0.0.0" cannot be a gateway`,
		in(`"default-route":["ff02::1"]`):     `[1].default-route: [0] "ff02::1" cannot be a gateway`,
		in(`"ipam-claim-reference":1`):        "[1].ipam-claim-reference: is 1",
	} {
		elements, _, err := selection.Parse(text)
		all := fault.All(err)
		if want == "" {
			if len(all) != 2 {
				t.Errorf("%s: %v, want two faults", text, err)
			}
			continue
		}
		if len(all) != 1 || elements != nil || all[0].Code != fault.Config || !strings.Contains(all[0].Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestAllFaults(t *testing.T) {
	_, _, err := selection.Parse(`[{"name":"A","mac":"x","default-route":["y"],"portMappings":[{"hostPort":0},{}]},null,{"name":"ok"}]`)
	var got []string
	for _, f := range fault.All(err) {
		got = append(got, f.Field)
	}
	want := []string{
		"[0].mac", "[0].default-route", "[0].portMappings[0].hostPort", "[0].portMappings[0].containerPort",
		"[0].portMappings[1].hostPort", "[0].portMappings[1].containerPort", "[0].name", "[1]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	elements, warnings, err := selection.Parse(`[{"name":"a","Interface":"x","color":1,"ips":[],"mac":"bad","mac":"02:00:00:00:00:01","bandwidth":{"rate":1},"portMappings":[{"hostPort":1,"containerPort":1,"name":"web"}]}]`)
	if err != nil {
		t.Fatal(err)
	}
	if elements[0].Interface != "x" || elements[0].MAC != "02:00:00:00:00:01" {
		t.Errorf("element %+v", elements[0])
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.Field)
	}
	want := []string{"[0].Interface", "[0].color", "[0].mac", "[0].portMappings[0].name", "[0].bandwidth.rate", "[0].ips"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestHardwareAddressForms(t *testing.T) {
	for _, mac := range []string{"02:AB:cd:00:00:01", "02-ab-cd-00-00-01", "02ab.cd00.0001"} {
		elements, _, err := selection.Parse(`[{"name":"a","mac":"` + mac + `"}]`)
		if err != nil || elements[0].MAC != mac {
			t.Errorf("%s: %v", mac, err)
		}
	}
}

// Both forms hold names to the same rules, and say the same elements.
func TestFormsAgree(t *testing.T) {
	part := rapid.OneOf(rapid.StringMatching("[a-z0-9.A_-]{0,4}"), rapid.SampledFrom([]string{"net", "kube-system", "n1.5", "abcdefghijklmnop"}))
	rapid.Check(t, func(t *rapid.T) {
		ns, name, iface := part.Draw(t, "namespace"), part.Draw(t, "name"), part.Draw(t, "interface")
		short := name
		if ns != "" {
			short = ns + "/" + name
		}
		if iface != "" {
			short += "@" + iface
		}
		if short == "" { // nothing in the one form, an element without a name in the other
			return
		}
		b, _ := json.Marshal([]map[string]string{{"namespace": ns, "name": name, "interface": iface}})
		one, _, err1 := selection.Parse(short)
		other, _, err2 := selection.Parse(string(b))
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("%s: %v; %s: %v", short, err1, b, err2)
		}
		if !reflect.DeepEqual(one, other) {
			t.Fatalf("%s: %+v; %s: %+v", short, one, b, other)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		" neta , other/netb@foo0 ", "neta@n1.5", "neta@", "neta,", "neta,,neta", " ", "null", "[]", "[null]", "{}", `{"name":"neta"}`, "a.b", "NetA",
		"a/b/c", "a@x@y", "neta@a:b", `[{"name":"neta","interface":"x/y"}]`, `[{"name":"other/netb"}]`, `[{"name":"a","ips":"1.2.3.4"}]`,
		`[{"name":"a","ips":[],"mac":"24:8a:07:03:00:8d:ae:2f","infiniband-guid":"24:8a:07:03:00:8d"}]`,
		`[{"name":"a","portMappings":[{"hostPort":99999,"containerPort":80}],"bandwidth":{"ingressRate":1},"cni-args":{"a":1},"default-route":["10.2.0.1","fd02::1"]}]`,
		`[{"name":"a","interfaceRequest":"old0","deviceID":"x","ipam-claim-reference":"c","\u0000":1}]`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		elements, _, err := selection.Parse(s)
		if err != nil {
			if elements != nil || len(fault.All(err)) == 0 {
				t.Fatalf("elements %v, error %v", elements, err)
			}
			for _, f := range fault.All(err) {
				if f.Code != fault.Config || f.Text == "" || strings.ContainsAny(f.Error(), "\n\r\x00") {
					t.Errorf("malformed fault %+v", f)
				}
			}
			return
		}
		for i, e := range elements {
			if e.Index != i || selection.ObjectName(e.Name) != nil || e.Namespace != "" && selection.Namespace(e.Namespace) != nil ||
				e.Interface != "" && selection.InterfaceName(e.Interface) != nil || e.CNIArgs != nil && !json.Valid(e.CNIArgs) {
				t.Errorf("accepted %+v", e)
			}
			for _, p := range e.PortMappings {
				if p.HostPort == 0 || p.ContainerPort == 0 || p.Protocol != "tcp" && p.Protocol != "udp" && p.Protocol != "sctp" {
					t.Errorf("accepted %+v", p)
				}
			}
			for _, text := range append(e.IPs, e.MAC, e.InfinibandGUID) {
				if strings.ContainsAny(text, ";=, ") {
					t.Errorf("accepted %q, which does not survive CNI_ARGS", text)
				}
			}
		}
	})
}

// Text that is none is refused where it would otherwise be read as another text, and so is a name
// that nobody can have meant.
func TestTextThatIsNone(t *testing.T) {
	for annotation, want := range map[string]string{
		`[{"name":"a","interface":"x\ud800"}]`:        "[0].interface: holds half a surrogate pair",
		`[{"name":"a","interface":"\udc00\ud800x"}]`:  "[0].interface: holds half a surrogate pair",
		`[{"name":"a","interfaceRequest":"\udfffx"}]`: "[0].interfaceRequest: holds half a surrogate pair",
		"[{\"name\":\"a\",\"interface\":\"x\xff\"}]":  "[0].interface: holds half a surrogate pair, or bytes that are no UTF-8",
		`[{"name":"a","deviceID":"\ud800"}]`:          "[0].deviceID: holds half",
		`[{"name":"a","ips":["10.0.0.1\ud800"]}]`:     "[0].ips: [0] holds half",
		`[{"name":"a","interface":"x\ufffd"}]`:        "[0].interface: interface name",
		"a@x\xff":                                     "[0]: interface name",
	} {
		if _, _, err := selection.Parse(annotation); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", annotation, err, want)
		}
	}
	for _, annotation := range []string{`[{"name":"a","interface":"\ud83d\ude00"}]`, `[{"name":"a","deviceID":"\\ud800 \ufffd"}]`} {
		if _, _, err := selection.Parse(annotation); err != nil {
			t.Errorf("%s: %v", annotation, err)
		}
	}
}

// Keys of cni-args are told when they are written twice, however they are spelled.
func TestRepeatedCNIArgs(t *testing.T) {
	_, warnings, err := selection.Parse(`[{"name":"a","cni-args":{"k":1,"x":{"k":1,"k":2},"\u006b":2,"k":3}}]`)
	if err != nil || len(warnings) != 1 || warnings[0].Field != "[0].cni-args.k" || !strings.Contains(warnings[0].Text, "is written twice") {
		t.Errorf("%v, %v", warnings, err)
	}
}
