// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/vm/bundle"
)

const some = `vmi:
  metadata: {namespace: ns, name: vm-10.1.2.3}
  spec:
    domain: {devices: {interfaces: [{name: default, masquerade: {}}, {name: red, bridge: {}, macAddress: 52-54-00-AA-00-02}]}}
    networks: [{name: default, pod: {}}, {name: red, multus: {networkName: red}}]
  status:
    interfaces: [{name: red, infoSource: multus-status, ipAddress: 192.168.1.5, ipAddresses: [192.168.1.5]}]
domainXML: "<domain><devices><interface><mac address='52:54:00:aa:00:01'/><alias name='ua-default'/></interface></devices></domain>"
podCache: {default: {podIP: 10.244.1.5, podIPs: [10.244.1.5, "fd10::5"]}, red: {error: "read 10.244.1.5:443: 52:54:00:AA:00:01"}}
guestAgent: [{name: eth0, hardware-address: "52:54:00:aa:00:01", ip-addresses: [{ip-address: 10.0.2.2}, {ip-address: "fe80::1%eth0"}]}]
pod: {metadata: {annotations: {k8s.v1.cni.cncf.io/network-status: '[{"name":"ns/red","interface":"podb1f51a511f1","mac":"52:54:00:AA:00:02"}]'}}}
`

func parse(t *testing.T, text string) *bundle.Bundle {
	t.Helper()
	b, err := bundle.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestHostile(t *testing.T) {
	for _, r := range []struct{ name, text, err string }{
		{"huge", "vmi: {}\n" + strings.Repeat("#", bundle.MaxSize), "more than"},
		{"deep JSON", `{"guestAgent": ` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}", "deeper than 128 levels"},
		{"deep YAML", "guestAgent: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "deeper than 128 levels"},
		{"very deep YAML", "vmi: " + strings.Repeat("[", 200000), "neither JSON nor YAML"},
		{"nothing", "", "no object"},
		{"a list", "[]", "no object"},
		{"bytes", "\x00\xff", "neither JSON nor YAML"},
		{"a wrong type far below", `{"vmi": {"spec": {"domain": {"devices": {"interfaces": [{"name": {}}]}}}}}`, "vmi.spec.domain.devices.interfaces.name: an object cannot be its value"},
		{"a quantity", "vmi: {spec: {domain: {resources: {requests: {memory: much}}}}}", "vmi: "},
	} {
		if _, err := bundle.Parse([]byte(r.text)); err == nil || !strings.Contains(err.Error(), r.err) {
			t.Errorf("%s: error %v, want %q", r.name, err, r.err)
		}
	}
}

// TestMarshal: what is written reads as the same bundle, and is the same bytes.
func TestMarshal(t *testing.T) {
	b := parse(t, some)
	first, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	second, err := parse(t, string(first)).Marshal()
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("%v %s", err, cmp.Diff(string(first), string(second)))
	}
	if diff := cmp.Diff(b.Replay(true), parse(t, string(first)).Replay(true)); diff != "" {
		t.Error(diff)
	}
}

func TestAnonymize(t *testing.T) {
	b := parse(t, some)
	anonymous, err := bundle.Anonymize(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := anonymous.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"10.244", "10.0.2", "192.168", "fd10", "52:54", "52-54", "10.1.2.3", "fe80::1%"} {
		if bytes.Contains(text, []byte(s)) {
			t.Errorf("%s is still there:\n%s", s, text)
		}
	}
	// Two spellings of one MAC are of one pseudonym, each in its own spelling.
	for _, s := range []string{"macAddress: 02-00-00-00-00-0", `"mac":"02:00:00:00:00:0`, "%eth0"} {
		if !bytes.Contains(text, []byte(s)) {
			t.Errorf("there is no %s:\n%s", s, text)
		}
	}
	if _, err := b.Marshal(); err != nil || strings.Contains(b.VMI.Name, "198.18") {
		t.Error("the bundle itself was changed")
	}
	before, after := b.Replay(true), anonymous.Replay(true)
	if diff := cmp.Diff(decisions(before), decisions(after)); diff != "" {
		t.Errorf("other decisions:\n%s", diff)
	}
}

// decisions are the output without the values that have pseudonyms.
func decisions(o *bundle.Output) []string {
	var all []string
	for i, e := range o.Explain {
		all = append(all, e.Kind, o.Interfaces[i].InfoSource, o.Interfaces[i].Name)
		for _, v := range append(e.Values, e.Rejected...) {
			all = append(all, v.Field+" "+v.Source+" "+v.Rule)
		}
	}
	return all
}

// FuzzParse replays any bundle, and what it is with pseudonyms.
func FuzzParse(f *testing.F) {
	f.Add([]byte(some))
	f.Add([]byte("vmi: {}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := bundle.Parse(text)
		if err != nil {
			return
		}
		out := b.Replay(true)
		if _, err := json.Marshal(out); err != nil {
			t.Fatal(err)
		}
		if err := out.WriteTable(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
		written, err := b.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if len(written) > bundle.MaxSize {
			return
		}
		if _, err := bundle.Parse(written); err != nil {
			t.Fatalf("%v\n%s", err, written)
		}
	})
}
