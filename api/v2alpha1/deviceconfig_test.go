// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
)

func TestParseParameters(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want v2alpha1.DeviceConfig
	}{
		{`{}`, v2alpha1.DeviceConfig{}},
		{`{"vlan":1001,"podIfName":"sriov0"}`, v2alpha1.DeviceConfig{VLAN: 1001, PodIfName: "sriov0"}},
		{`{"vlan":0}`, v2alpha1.DeviceConfig{}},
		{`{"vlan":1}`, v2alpha1.DeviceConfig{VLAN: 1}},
		{`{"vlan":4094}`, v2alpha1.DeviceConfig{VLAN: 4094}},
		{`{"podIfName":""}`, v2alpha1.DeviceConfig{}},
		{`{"podIfName":"A.b_c-9"}`, v2alpha1.DeviceConfig{PodIfName: "A.b_c-9"}},
		{`{"podIfName":"fifteen-letters"}`, v2alpha1.DeviceConfig{PodIfName: "fifteen-letters"}},
		{`{"podIfName":"...","vlan":3}`, v2alpha1.DeviceConfig{PodIfName: "...", VLAN: 3}},
		{`{"podIfName":"\u0061"}`, v2alpha1.DeviceConfig{PodIfName: "a"}},
		{`{"podIfName":"eth00"}`, v2alpha1.DeviceConfig{PodIfName: "eth00"}},
		{` { "apiVersion" : "cilium.io/v2alpha1", "kind" : "DeviceConfig", "vlan" : 5 } ` + "\n", v2alpha1.DeviceConfig{VLAN: 5}},
	} {
		got, err := v2alpha1.ParseParameters([]byte(c.raw))
		if err != nil {
			t.Errorf("%s: %v", c.raw, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.raw, d)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: what was read is refused: %v", c.raw, err)
		}
	}
}

// T-27, T-28: every fault is named with its key and value, and nothing of the rest counts.
func TestParseParametersRefuses(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want []string // one per fault
	}{
		{``, []string{"parameters: are empty"}},
		{` `, []string{"parameters: are empty"}},
		{`null`, []string{"parameters: are no object"}},
		{`[]`, []string{"parameters: are no object"}},
		{`"vlan"`, []string{"parameters: are no object"}},
		{`{`, []string{"parameters: are no JSON: unexpected EOF"}},
		{`{"vlan"`, []string{"parameters: are no JSON: "}},
		{`{"vlan":}`, []string{"parameters: are no JSON: "}},
		{`{vlan: 5}`, []string{"parameters: are no JSON: "}},
		{`{"vlan":5}{}`, []string{"parameters: have more than one value"}},
		{`{"vlan":5}x`, []string{"parameters: have more than one value"}},
		{`{"vlann":5}`, []string{"vlann: is no parameter of this driver, which has podIfName and vlan"}},
		{`{"VLAN":5}`, []string{"VLAN: is written vlan"}},
		{`{"podifname":"a"}`, []string{"podifname: is written podIfName"}},
		{`{"vlan":5,"vlan":5}`, []string{"vlan: stands there twice"}},
		{`{"vlan":5,"vl\u0061n":6}`, []string{"vlan: stands there twice"}},
		{`{"vlan":-1}`, []string{"vlan: -1 is no VLAN"}},
		{`{"vlan":4095}`, []string{"vlan: 4095 is no VLAN"}},
		{`{"vlan":70000}`, []string{"vlan: 70000 is no VLAN"}},
		{`{"vlan":99999999999999999999}`, []string{"vlan: 99999999999999999999 is no VLAN"}},
		{`{"vlan":"5"}`, []string{`vlan: "5" is no whole number`}},
		{`{"vlan":5.0}`, []string{"vlan: 5.0 is no whole number"}},
		{`{"vlan":5e1}`, []string{"vlan: 5e1 is no whole number"}},
		{`{"vlan":null}`, []string{"vlan: null is no whole number"}},
		{`{"podIfName":null}`, []string{"podIfName: null is no string"}},
		{`{"podIfName":7}`, []string{"podIfName: 7 is no string"}},
		{`{"podIfName":"."}`, []string{`podIfName: "." cannot be`}},
		{`{"podIfName":".."}`, []string{`podIfName: ".." cannot be`}},
		{`{"podIfName":"a/b"}`, []string{`podIfName: "a/b" must be of letters`}},
		{`{"podIfName":"lo"}`, []string{`podIfName: "lo" is the name of an interface that every pod has`}},
		{`{"podIfName":"eth0"}`, []string{`podIfName: "eth0" is the name of an interface that every pod has`}},
		{`{"podIfName":"cilium_x"}`, []string{`podIfName: "cilium_x" begins with cilium_`}},
		{`{"podIfName":"sixteen-letters1"}`, []string{`podIfName: "sixteen-letters1" has 16 bytes`}},
		{`{"podIfName":"eth 0"}`, []string{`podIfName: "eth 0" must be of letters`}},
		{`{"podIfName":"é"}`, []string{`podIfName: "é" must be of letters`}},
		{"{\"podIfName\":\"\xff\"}", []string{`podIfName: "` + "\uFFFD" + `" must be of letters`}},
		{`{"apiVersion":"gpu.example.com/v1","kind":"Gpu"}`, []string{
			`apiVersion: "gpu.example.com/v1" is not "cilium.io/v2alpha1"`, `kind: "Gpu" is not "DeviceConfig"`,
		}},
		{`{"kind":1,"vlan":4095,"ipv4Addr":"10.0.0.1/24","podIfName":"lo"}`, []string{
			"kind: 1 is no string", "vlan: 4095 is no VLAN", "ipv4Addr: is no parameter", `podIfName: "lo" is`,
		}},
	} {
		got, err := v2alpha1.ParseParameters([]byte(c.raw))
		faults := split(err)
		if len(faults) != len(c.want) {
			t.Errorf("%s: %d faults, want %d: %v", c.raw, len(faults), len(c.want), err)
			continue
		}
		for i, want := range c.want {
			if _, ok := errors.AsType[*v2alpha1.ParameterError](faults[i]); !ok {
				t.Errorf("%s: %T is no ParameterError", c.raw, faults[i])
			}
			if !strings.HasPrefix(faults[i].Error(), want) {
				t.Errorf("%s\n got %v\nwant %s…", c.raw, faults[i], want)
			}
		}
		if got != (v2alpha1.DeviceConfig{}) {
			t.Errorf("%s: refused, and gives %+v", c.raw, got)
		}
	}
}

// split takes a joined error apart, down to the last.
func split(err error) []error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range many.Unwrap() {
			all = append(all, split(one)...)
		}
		return all
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// T-26: by keys, and the last that has a key counts.
func TestMerge(t *testing.T) {
	for _, c := range []struct {
		entries []string
		want    v2alpha1.DeviceConfig
	}{
		{nil, v2alpha1.DeviceConfig{}},
		{[]string{`{"vlan":10,"podIfName":"a0"}`, `{"podIfName":"b0"}`}, v2alpha1.DeviceConfig{VLAN: 10, PodIfName: "b0"}},
		{[]string{`{"vlan":10,"podIfName":"a0"}`, `{}`}, v2alpha1.DeviceConfig{VLAN: 10, PodIfName: "a0"}},
		{[]string{`{"vlan":10}`, `{"vlan":0}`}, v2alpha1.DeviceConfig{}},
		{[]string{`{"podIfName":"a0"}`, `{"podIfName":"","vlan":7}`}, v2alpha1.DeviceConfig{VLAN: 7}},
		{[]string{`{"vlan":1}`, `{"vlan":2}`, `{"vlan":3}`}, v2alpha1.DeviceConfig{VLAN: 3}},
	} {
		got, err := v2alpha1.Merge(raws(c.entries))
		if err != nil {
			t.Errorf("%s: %v", c.entries, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.entries, d)
		}
	}
}

func TestMergeNamesEveryEntry(t *testing.T) {
	got, err := v2alpha1.Merge(raws([]string{`{"vlan":-1,"x":1}`, `{"vlan":5}`, `[]`}))
	want := "entry 0: vlan: -1 is no VLAN, which is 1 to 4094, or 0 to leave it alone; x: is no parameter of this driver, which has podIfName and vlan\n" +
		"entry 2: parameters: are no object"
	if err == nil || err.Error() != want || got != (v2alpha1.DeviceConfig{}) {
		t.Errorf("got %+v and\n%v\nwant\n%s", got, err, want)
	}
	if entry, ok := errors.AsType[*v2alpha1.EntryError](err); !ok || entry.Entry != 0 {
		t.Errorf("the first is %+v", entry)
	}
}

func raws(texts []string) [][]byte {
	var all [][]byte
	for _, text := range texts {
		all = append(all, []byte(text))
	}
	return all
}

func TestParseStored(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want v2alpha1.DeviceConfig
		ok   bool
	}{
		{``, v2alpha1.DeviceConfig{}, true},
		{`null`, v2alpha1.DeviceConfig{}, true},
		{`{}`, v2alpha1.DeviceConfig{}, true},
		{`{"podIfName":"sriov0","vlan":1001,"ip-pool":"a","ipv4Addr":"10.0.0.1/24","routes":[{}]}`, v2alpha1.DeviceConfig{PodIfName: "sriov0", VLAN: 1001}, true},
		{`{"PodIfName":"sriov0","Vlan":7}`, v2alpha1.DeviceConfig{PodIfName: "sriov0", VLAN: 7}, true},
		{`{"vlan":-1,"podIfName":".."}`, v2alpha1.DeviceConfig{VLAN: -1, PodIfName: ".."}, true},
		{`{"vlan":"x"}`, v2alpha1.DeviceConfig{}, false},
		{`{"podIfName":"a","vlan":99999999999}`, v2alpha1.DeviceConfig{}, false},
		{`[]`, v2alpha1.DeviceConfig{}, false},
		{`{`, v2alpha1.DeviceConfig{}, false},
	} {
		got, err := v2alpha1.ParseStored([]byte(c.raw))
		if (err == nil) != c.ok || got != c.want {
			t.Errorf("%s: %+v, %v", c.raw, got, err)
		}
	}
}

// The Config of a status entry is in the words that claims use, without what was not asked for.
func TestDeviceConfigJSON(t *testing.T) {
	for want, c := range map[string]v2alpha1.DeviceConfig{
		`{}`:                                 {},
		`{"podIfName":"sriov0","vlan":1001}`: {PodIfName: "sriov0", VLAN: 1001},
	} {
		got, err := json.Marshal(c)
		if err != nil || string(got) != want {
			t.Errorf("%+v is %s, %v; want %s", c, got, err, want)
		}
	}
}

// Whatever is accepted is right, is read the same as it is written, and both readers agree on it.
func FuzzParseParameters(f *testing.F) {
	for _, s := range []string{
		`{"vlan":1001,"podIfName":"sriov0"}`, `{"apiVersion":"cilium.io/v2alpha1","kind":"DeviceConfig"}`, `{"vlan":4095}`,
		`{"vlan":-0}`, `{"vlan":01}`, `{"podIfName":"\ud800"}`, `{"vlan":1,"vlan":2}`, `{"a":{"b":[1,2,{"c":null}]}}`, "{\"\xff\":1}", `{} {}`, `null`,
	} {
		f.Add([]byte(s), []byte(`{"vlan":3}`))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		c, err := v2alpha1.ParseParameters(a)
		if err != nil {
			if !utf8.ValidString(err.Error()) || len(err.Error()) > 512*(len(a)+1) {
				t.Errorf("not to be shown: %q", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%q is accepted: %v", a, err)
		}
		if stored, err := v2alpha1.ParseStored(a); err != nil || stored != c {
			t.Errorf("%q is %+v, and stored %+v, %v", a, c, stored, err)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := v2alpha1.ParseParameters(text); err != nil || again != c {
			t.Errorf("%q becomes %s becomes %+v, %v", a, text, again, err)
		}
		merged, err := v2alpha1.Merge([][]byte{a, b})
		if over, bErr := v2alpha1.ParseParameters(b); (err == nil) != (bErr == nil) {
			t.Errorf("merge with %q: %v, alone: %v", b, err, bErr)
		} else if err == nil && (over.VLAN != 0 && merged.VLAN != over.VLAN || over.PodIfName != "" && merged.PodIfName != over.PodIfName) {
			t.Errorf("merge with %q is %+v", b, merged)
		}
	})
}

func FuzzParseStored(f *testing.F) {
	for _, s := range []string{``, `null`, `{"podIfName":"a","vlan":1,"ip-pool":"x"}`, `{"Vlan":7}`, `{"vlan":-1}`, `[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c, err := v2alpha1.ParseStored(raw); err != nil && c != (v2alpha1.DeviceConfig{}) {
			t.Errorf("%q: %+v, %v", raw, c, err)
		}
	})
}

// An entry of nothing but faults is refused by the first few of them.
func TestParseParametersStopsAtMaxFaults(t *testing.T) {
	raw := `{"podIfName":"a"` + strings.Repeat(`,"x":1`, 1000) + `}`
	_, err := v2alpha1.ParseParameters([]byte(raw))
	faults := split(err)
	if len(faults) != v2alpha1.MaxFaults+1 || !strings.Contains(faults[v2alpha1.MaxFaults].Error(), "more faults") {
		t.Errorf("%d faults: %v", len(faults), err)
	}
}
