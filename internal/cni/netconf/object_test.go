// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/cni/netconf"
)

func TestObjectEdits(t *testing.T) {
	const text = "{ \"b\" : 9007199254740993 , \"a\":[1, {\"x\":\"]}\\\\\"}],\"b\":1.50,\"\\u0063\":null , \"e\":-1e400}"
	parse := func() *netconf.Object {
		o, err := netconf.ParseObject([]byte("\n" + text + " "))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := parse()
	if got := string(o.Bytes()); got != text {
		t.Errorf("unedited: %s", got)
	}
	if got, _ := o.Get("b"); string(got) != "1.50" {
		t.Errorf("the last duplicate counts, got %s", got)
	}
	if got, ok := o.Get("c"); !ok || string(got) != "null" {
		t.Errorf("an escaped key: %s, %t", got, ok)
	}
	if _, ok := o.Get("x"); ok {
		t.Error("an inner key shows outside")
	}
	cases := []struct {
		name string
		edit func(*netconf.Object)
		want string
	}{
		{"replace", func(o *netconf.Object) { o.Set("b", json.RawMessage("2")) }, `{"b":2,"a":[1, {"x":"]}\\"}],"\u0063":null,"e":-1e400}`},
		{"append", func(o *netconf.Object) { o.Set("n\"", json.RawMessage("{}")) }, `{"b":9007199254740993,"a":[1, {"x":"]}\\"}],"b":1.50,"\u0063":null,"e":-1e400,"n\"":{}}`},
		{"delete", func(o *netconf.Object) { o.Delete("b"); o.Delete("a"); o.Delete("c") }, `{"e":-1e400}`},
		{"delete all", func(o *netconf.Object) {
			for _, k := range o.Keys() {
				o.Delete(k)
			}
		}, `{}`},
	}
	for _, c := range cases {
		o := parse()
		c.edit(o)
		if got := string(o.Bytes()); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// An Object that is read into again has nothing of before, and took nothing from others.
func TestResetObject(t *testing.T) {
	var o netconf.Object
	if err := o.Reset(json.RawMessage(`{"a":1,"b":[2],"c":3}`)); err != nil {
		t.Fatal(err)
	}
	b, _ := o.Get("b")
	o.Set("a", json.RawMessage(`"x"`))
	o.Set("\u00e9\"", json.RawMessage("4"))
	edited := o.Bytes()
	if err := o.Reset(json.RawMessage(`[]`)); err == nil || len(o.Keys()) != 0 || string(o.Bytes()) != "{}" {
		t.Errorf("after an array: error %v, %s", err, o.Bytes())
	}
	if err := o.Reset(json.RawMessage(`{ "c":5 , "c":6}`)); err != nil {
		t.Fatal(err)
	}
	if got := string(o.Bytes()); got != `{ "c":5 , "c":6}` || !slices.Equal(o.Keys(), []string{"c", "c"}) {
		t.Errorf("read again: %s, %q", got, o.Keys())
	}
	if string(b) != "[2]" || string(edited) != `{"a":"x","b":[2],"c":3,"é\"":4}` {
		t.Errorf("what it gave before: %s, %s", b, edited)
	}
	for _, list := range [][]string{nil, {"a"}, {"", "é<\n", "\"b"}} {
		var back []string
		if err := json.Unmarshal(netconf.StringList(list), &back); err != nil || !slices.Equal(back, list) {
			t.Errorf("%q is written as %s: %v", list, netconf.StringList(list), err)
		}
	}
}

// Keys that are one name are one key, however they are written, and the last value counts.
func TestMerge(t *testing.T) {
	tests := []struct{ into, from, want string }{
		{`{}`, `{}`, `{}`},
		{`{ "a" : 1 }`, `{}`, `{ "a" : 1 }`},
		{`{"a":1,"b":2}`, `{"c":3,"a":4}`, `{"a":4,"b":2,"c":3}`},
		{`{"a":1,"b":2,"a":3}`, `{"a":4}`, `{"a":4,"b":2}`},
		{`{"b":2}`, `{"a":1,"a":{"x": 1.0}}`, `{"b":2,"a":{"x": 1.0}}`},
		{`{"\u0061":1,"é":2}`, `{"a":3,"\u00e9":4,"\u0062":5}`, `{"\u0061":3,"é":4,"\u0062":5}`},
		{`{"a":1}`, `{"\u0061":2,"b\n":3}`, `{"a":2,"b\n":3}`},
	}
	for _, test := range tests {
		var into, from netconf.Object
		if err := errors.Join(into.Reset(json.RawMessage(test.into)), from.Reset(json.RawMessage(test.from))); err != nil {
			t.Fatal(err)
		}
		into.Merge(&from)
		if got := string(into.Bytes()); got != test.want {
			t.Errorf("%s with %s is %s, want %s", test.into, test.from, got, test.want)
		}
		into.Set("a", json.RawMessage("9")) // a key that was merged is found by its name
		if v, _ := into.Get("a"); string(v) != "9" || strings.Count(string(into.Bytes()), "9") != 1 {
			t.Errorf("%s and a set: %s", test.want, into.Bytes())
		}
	}
}

func TestNotAnObject(t *testing.T) {
	for text, want := range map[string]string{
		"":       "is empty, JSON is needed",
		"[]":     "is an array, an object is needed",
		"null":   "is null, an object is needed",
		"\"x\"":  "is a string, an object is needed",
		"12":     "is a number, an object is needed",
		"{} {}":  "at byte 4",
		"{\"a\"": "is not JSON",
	} {
		if _, err := netconf.ParseObject([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// value is any JSON value as text, with space where JSON allows it.
func value(depth int) *rapid.Generator[string] {
	leaf := rapid.OneOf(
		rapid.SampledFrom([]string{"null", "true", "1", "-0.10", "1e999", "9007199254740993", `""`, `"\\\""`, `"}],{"`}),
		rapid.Custom(func(t *rapid.T) string {
			b, _ := json.Marshal(rapid.String().Draw(t, "text"))
			return string(b)
		}),
	)
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(leaf, rapid.Custom(func(t *rapid.T) string {
		inner := rapid.SliceOfN(value(depth-1), 0, 3).Draw(t, "inner")
		if rapid.Bool().Draw(t, "array") {
			return "[ " + strings.Join(inner, " ,\n") + "]"
		}
		for i := range inner {
			inner[i] = fmt.Sprintf("\"k%d\" : %s", i, inner[i])
		}
		return "{" + strings.Join(inner, ",") + "\t}"
	}))
}

// Editing an object changes the key that was set and not one byte of another value,
// and agrees with encoding/json about everything.
func TestObjectProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "é", "a\"b", "<", "type"}), 0, 8).Draw(t, "keys")
		var parts []string
		values := map[string]string{}
		for _, k := range keys {
			v := value(2).Draw(t, "value")
			name, _ := json.Marshal(k)
			parts = append(parts, string(name)+" :\r"+v)
			values[k] = v
		}
		o, err := netconf.ParseObject([]byte("{" + strings.Join(parts, " ,") + "}"))
		if err != nil {
			t.Fatal(err)
		}
		set := rapid.SampledFrom([]string{"a", "new", "é"}).Draw(t, "set")
		values[set] = value(1).Draw(t, "new value")
		o.Set(set, json.RawMessage(values[set]))
		back, err := netconf.ParseObject(o.Bytes())
		if err != nil {
			t.Fatalf("%v in %s", err, o.Bytes())
		}
		var plain map[string]json.RawMessage
		if err := json.Unmarshal(o.Bytes(), &plain); err != nil || len(plain) != len(values) {
			t.Fatalf("encoding/json reads %d keys of %d: %v", len(plain), len(values), err)
		}
		for k, v := range values {
			if got, _ := back.Get(k); string(got) != v || !bytes.Equal(plain[k], []byte(v)) {
				t.Fatalf("key %q is %s, want %s", k, got, v)
			}
		}
		once := slices.DeleteFunc(back.Keys(), func(k string) bool { return k != set })
		if len(once) != 1 {
			t.Fatalf("key %q is there %d times", set, len(once))
		}
	})
}

func FuzzObject(f *testing.F) {
	for _, s := range []string{"{}", `{"a":{"b":[1,2]},"a":"x"}`, `[1,"]",{}]`, "{\"\\ud800\":1}", "nul", "\ufeff{}", " [ ] "} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := netconf.ParseObject(b); err == nil {
			var plain map[string]json.RawMessage
			if err := json.Unmarshal(b, &plain); err != nil {
				t.Fatalf("accepted %q: %v", b, err)
			}
			for k, v := range plain {
				if got, ok := o.Get(k); !ok || !bytes.Equal(bytes.TrimSpace(v), got) {
					t.Fatalf("key %q is %q, encoding/json has %q", k, got, v)
				}
			}
			o.Set("type", json.RawMessage("1"))
			if !json.Valid(o.Bytes()) {
				t.Fatalf("edit of %q gives %q", b, o.Bytes())
			}
		}
		if list, err := netconf.Elements(b); err == nil {
			var plain []json.RawMessage
			if err := json.Unmarshal(b, &plain); err != nil || len(plain) != len(list) {
				t.Fatalf("%q has %d elements, encoding/json has %d: %v", b, len(list), len(plain), err)
			}
			for i := range plain {
				if !bytes.Equal(plain[i], list[i]) {
					t.Fatalf("element %d is %q, encoding/json has %q", i, list[i], plain[i])
				}
			}
		}
	})
}
