// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"strings"
	"testing"
)

// jsonSeeds are a value of each kind and a fault of each.
func jsonSeeds() []string {
	return []string{
		`{}`, `[]`, ` { "a" : [ 1 , "x" ] , "b":{"c":null} } `, `"\u00e9\"\\\/\b\f\n\r\t"`, `-0`, `0.5e+10`, `-12E-3`, `1e9`, `true`, `false`, `null`,
		"\"\xff\"", "\"\u2028\"", "[1,2\n]\r\t", `{"":""}`, strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth),
		``, ` `, `{`, `[`, `"`, `"\`, `"\u00g0"`, `"\u00`, `"\x"`, "\"\n\"", "\"\x00\"", `01`, `-`, `-x`, `1.`, `.5`, `1e`, `1e+`, `+1`, `tru`, `True`, `nullx`,
		`{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{a:1}`, `{1:1}`, `{"a" 1}`, `[1,]`, `[,1]`, `[1 2]`, `[1}`, `{"a":1]`, `1 2`, `{}{}`, "\ufeff{}", "\v1", `[` + "\xa0]",
	}
}

// agrees leaves alone what is deeper than valid follows.
func agrees(t *testing.T, text string) {
	t.Helper()
	deep := strings.Count(text, "[")+strings.Count(text, "{") > maxDepth
	if got, want := valid([]byte(text)), json.Valid([]byte(text)); got != want && (got || !deep) {
		t.Errorf("valid(%q) = %t, encoding/json says %t", text, got, want)
	}
}

// Every cut and every changed byte of the seeds is judged as encoding/json does.
func TestValid(t *testing.T) {
	for _, seed := range jsonSeeds() {
		if got, want := valid([]byte(seed)), json.Valid([]byte(seed)); got != want {
			t.Errorf("valid(%q) = %t, encoding/json says %t", seed, got, want)
		}
		if len(seed) > 100 {
			continue
		}
		for i := range seed {
			agrees(t, seed[:i])
			for c := range 256 {
				agrees(t, seed[:i]+string([]byte{byte(c)})+seed[i+1:])
			}
		}
	}
	deep := strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)
	if valid([]byte(deep)) {
		t.Error("followed 5000 objects down")
	}
	if err := CheckJSON([]byte(deep)); err != nil {
		t.Errorf("what encoding/json takes: %v", err)
	}
}

func FuzzValid(f *testing.F) {
	for _, seed := range jsonSeeds() {
		f.Add(seed)
	}
	f.Fuzz(agrees)
}
