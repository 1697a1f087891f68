// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	. "github.com/weftnet/weft/test/conformance"
)

// both runs a test with manifests and with an API server.
func both(t *testing.T, test func(t *testing.T, r *Rig)) {
	t.Helper()
	loopback(t)
	for _, mode := range []Mode{Manifests, Kubeconfig} {
		t.Run(string(mode), func(t *testing.T) { test(t, New(t, mode)) })
	}
}

func withNetworks(r *Rig, networks string) {
	r.T.Helper()
	r.Pod("default", "pod-a", "uid-1", map[string]string{NetworksAnnotation: networks}, nil)
}

// wantRefused checks an error of a code whose text has these words, whatever bytes its
// cause is made of: one printable line, bounded, with nothing called and nothing left.
func wantRefused(t *testing.T, r *Rig, o Outcome, code int, words ...string) {
	t.Helper()
	if o.Status != 1 || o.Error.Code != code {
		t.Errorf("exit status %d, code %d, want 1 and %d\n%s\n%s", o.Status, o.Error.Code, code, o.Stdout, o.Stderr)
	}
	for _, w := range words {
		if !strings.Contains(o.Error.Msg, w) {
			t.Errorf("%q lacks %q", o.Error.Msg, w)
		}
	}
	for _, text := range append([]string{o.Error.Msg, o.Error.Details}, o.Events...) {
		wantLine(t, text)
	}
	for line := range strings.Lines(o.Stderr) {
		wantLine(t, strings.TrimSuffix(line, "\n"))
	}
	if len(o.Calls) > 0 {
		t.Errorf("delegates were called: %q", o.Names())
	}
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func wantLine(t *testing.T, text string) {
	t.Helper()
	if len(text) > 4<<10+256 { // the log adds time and sandbox
		t.Errorf("a text of %d bytes: %.100q…", len(text), text)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
		t.Errorf("text is no printable line: %.300q", text)
	}
}

func wantAdded(t *testing.T, o Outcome, calls ...string) {
	t.Helper()
	if o.Status != 0 || strings.Join(o.Names(), ", ") != strings.Join(calls, ", ") {
		t.Errorf("exit status %d, calls %q, want %q\n%s\n%s", o.Status, o.Names(), calls, o.Stdout, o.Stderr)
	}
}

func TestHostileAnnotations(t *testing.T) {
	const size = 250 << 10
	first := NetworksAnnotation + "[0]"
	cases := map[string]struct{ text, words string }{
		"accent":                {"néta", first},
		"fullwidth":             {"ｎｅｔａ", first},
		"right to left":         {"\u202eneta", first},
		"zero width":            {"ne\u200bta", first},
		"byte order mark":       {"\ufeffneta", first},
		"NUL":                   {"ne\x00ta", first},
		"escape sequence":       {"neta\x1b[31m", NetworksAnnotation},
		"line break inside":     {"ne\nta", first},
		"half a character":      {"neta\xc3", first},
		"NUL in JSON":           {`[{"name":"ne\u0000ta"}]`, first + ".name"},
		"lone surrogate":        {`[{"name":"ne\ud800ta"}]`, first + ".name"},
		"interface with NUL":    {`[{"name":"neta","interface":"n\u0000"}]`, first + ".interface"},
		"interface with accent": {`[{"name":"neta","interface":"n\u00a0"}]`, first + ".interface"},
		"namespace with NUL":    {`[{"name":"neta","namespace":"d\u0000"}]`, first + ".namespace"},
		"half a JSON":           {`[{"name":"neta"}`, NetworksAnnotation},
		"JSON and more":         {`[{"name":"neta"}] x`, NetworksAnnotation},
		"comment":               {`[{"name":"neta"}/*]*/`, NetworksAnnotation},
		"number as name":        {`[{"name":7}]`, first + ".name"},
		"huge number":           {`[{"name":"neta","bandwidth":{"ingressRate":1e999}}]`, first + ".bandwidth"},
		"deep":                  {strings.Repeat("[", size), NetworksAnnotation},
		"deep in an element":    {`[{"name":"neta","cni-args":` + strings.Repeat(`{"a":`, size/5) + "}]", NetworksAnnotation},
		"long name":             {strings.Repeat("a", size), first},
		"long name in JSON":     {`[{"name":"` + strings.Repeat("é", size/2) + `"}]`, first + ".name"},
		"many networks":         {strings.Repeat("neta,", size/5), "256"},
		"many bad elements":     {"[" + strings.Repeat("7,", size/2) + "7]", NetworksAnnotation},
		"up":                    {"../neta", first},
		"up in a name":          {`[{"name":"../neta"}]`, first + ".name"},
		"dots as name":          {`[{"name":".."}]`, first + ".name"},
		"up in a namespace":     {`[{"name":"neta","namespace":"../../kube-system"}]`, first + ".namespace"},
		"dots as namespace":     {`[{"name":"neta","namespace":".."}]`, first + ".namespace"},
		"query in a name":       {`[{"name":"neta?x=y"}]`, first + ".name"},
		"percent in a name":     {`[{"name":"neta%2f.."}]`, first + ".name"},
	}
	both(t, func(t *testing.T, r *Rig) {
		t.Helper()
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				withNetworks(r, c.text)
				o := r.Call("ADD")
				wantRefused(t, r, o, 7, c.words)
				for _, q := range o.Requests { // a network is asked for by a name that is one
					if q != "get pods default/pod-a" && q != "create events" && q != "get network-attachment-definitions default/neta" {
						t.Errorf("request %q", q)
					}
				}
			})
		}
	})
}

// Large is not wrong: what is allowed works at 250 KiB.
func TestLargeAnnotations(t *testing.T) {
	const size = 250 << 10
	text := strings.Repeat("xé", size/3)
	both(t, func(t *testing.T, r *Rig) {
		t.Helper()
		for name, networks := range map[string]string{
			"blanks":   "neta" + strings.Repeat(" ", size),
			"cni-args": `[{"name":"neta","cni-args":{"text":` + quote(text) + `}}]`,
		} {
			t.Run(name, func(t *testing.T) {
				withNetworks(r, networks)
				o := r.Call("ADD")
				wantAdded(t, o, ok1, "pb ADD net1")
				if name == "cni-args" && given(t, r, o, "pb ADD net1 args") != `{"cni":{"text":`+quote(text)+`}}` {
					t.Errorf("the plugin has not got the text whole")
				}
				if o := r.Call("DEL"); o.Status != 0 {
					t.Error(o.Stdout)
				}
			})
		}
	})
}

func quote(text string) string {
	b, _ := json.Marshal(text) // a string can always be encoded
	return string(b)
}

// What is written twice counts once, the last one, and is told; the plugin gets the bytes
// as they stand, twice and all.
func TestDuplicateKeys(t *testing.T) {
	both(t, func(t *testing.T, r *Rig) {
		t.Helper()
		r.NAD("default/twice", `{"cniVersion":"1.0.0","type":"pa","type":"pb","x":1,"x":2}`, nil)
		withNetworks(r, `[{"name":"gone","name":"twice","mac":"x","mac":"02:00:00:00:00:07"}]`)
		o := r.Call("ADD")
		wantAdded(t, o, ok1, "pb ADD net1")
		if !strings.Contains(o.Stderr, "twice") {
			t.Errorf("nobody is told: %s", o.Stderr)
		}
		if got := o.Calls[len(o.Calls)-1].Stdin; !strings.Contains(got, `"x":1,"x":2`) {
			t.Errorf("the plugin got %s", got)
		}
	})
}

// Numbers that no float holds, and whatever else a decoder would change, reach the
// delegate as they were written, and so they do when the configuration is edited.
func TestConfigurationBytesAreKept(t *testing.T) {
	const odd = `"big":9007199254740993,"neg":-9223372036854775809,"long":123456789012345678901234567890,"f":1.0,"e":1E400,"u":"\u00e9\/<","nul":"\u0000","blank":[ 1 ,  2 ]`
	const args = `{"n":9007199254740993,"f":1.50}`
	both(t, func(t *testing.T, r *Rig) {
		t.Helper()
		r.NAD("default/odd", `{"cniVersion":"1.0.0","type":"pb","capabilities":{"mac":true},`+odd+`}`, nil)
		withNetworks(r, `[{"name":"odd","mac":"02:00:00:00:00:07","cni-args":`+args+`}]`)
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			o := r.Call(verb)
			if o.Status != 0 {
				t.Fatal(o.Stdout)
			}
			for _, c := range o.Calls {
				if c.Type != "pb" {
					continue
				}
				for _, want := range []string{odd, args, "02:00:00:00:00:07"} {
					if !strings.Contains(c.Stdin, want) {
						t.Errorf("%s lacks %s: %s", c, want, c.Stdin)
					}
				}
			}
		}
	})
}

// Names of the runtime and of configurations lead nowhere outside.
func TestDotsInNames(t *testing.T) {
	type change func(r *Rig) []string // gives the environment
	conf := func(text string) change {
		return func(r *Rig) []string { r.Set(text); return nil }
	}
	env := func(text ...string) change { return func(*Rig) []string { return text } }
	nad := func(text string) change {
		return func(r *Rig) []string { r.NAD("default/neta", text, nil); return nil }
	}
	for name, c := range map[string]struct {
		change
		code  int // 0: 7, or 11 where there could be such a pod for all that is known
		words string
	}{
		"container":        {env("CNI_CONTAINERID=.."), 4, "CNI_CONTAINERID"},
		"container path":   {env("CNI_CONTAINERID=../../x"), 4, "CNI_CONTAINERID"},
		"interface":        {env("CNI_IFNAME=.."), 4, "CNI_IFNAME"},
		"interface path":   {env("CNI_IFNAME=a/b"), 4, "CNI_IFNAME"},
		"pod name":         {env("CNI_ARGS=" + Args("default", "../nodes", "uid-1")), 0, "../nodes"},
		"pod query":        {env("CNI_ARGS=" + Args("default", "pod-a?watch=1", "uid-1")), 0, "pod-a?watch=1"},
		"pod namespace":    {env("CNI_ARGS=" + Args("../..", "pod-a", "uid-1")), 0, "../.."},
		"configuration":    {conf(`{"name":"../../x"}`), 7, "name"},
		"cluster network":  {conf(`{"clusterNetwork":"../../x"}`), 7, "clusterNetwork"},
		"dots as cluster":  {conf(`{"clusterNetwork":".."}`), 7, "clusterNetwork"},
		"auxiliary chain":  {conf(`{"clusterNetwork":"/x/y.conflist","auxiliaryCNIChainName":"../x"}`), 7, "auxiliaryCNIChainName"},
		"delegate's name":  {conf(`{"delegates":[{"cniVersion":"1.0.0","name":"../x","type":"pa"}]}`), 7, "name"},
		"delegate's type":  {conf(`{"delegates":[{"cniVersion":"1.0.0","name":"x","type":"../pa"}]}`), 7, "type"},
		"NAD's type":       {nad(`{"cniVersion":"1.0.0","type":".."}`), 7, "spec.config type"},
		"NAD's type, path": {nad(`{"cniVersion":"1.0.0","type":"../../bin/sh"}`), 7, "spec.config type"},
		"NAD's type, NUL":  {nad(`{"cniVersion":"1.0.0","type":"p\u0000b"}`), 7, "spec.config type"},
		"NAD's name":       {nad(`{"cniVersion":"1.0.0","name":"../../x","type":"pb"}`), 7, "spec.config name"},
		"NAD of a resource": {func(r *Rig) []string {
			r.NAD("default/neta", vf, map[string]string{ResourceAnnotation: "../../x"})
			return nil
		}, 7, "../../x"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, r *Rig) {
				t.Helper()
				withNetworks(r, "neta")
				o := r.Call("ADD", c.change(r)...)
				code := c.code
				if code == 0 && (o.Error.Code == 7 || o.Error.Code == 11) {
					code = o.Error.Code
				}
				wantRefused(t, r, o, code, c.words)
				for _, q := range o.Requests {
					if strings.Contains(q, "..") {
						t.Errorf("request %q", q)
					}
				}
			})
		})
	}
}

// A NAD's configuration of any bytes is attached or refused with words that name it.
func TestHostileNADs(t *testing.T) {
	const size = 250 << 10
	cases := map[string]string{
		"NUL":              "\x00",
		"nothing but NULs": strings.Repeat("\x00", 1000),
		"half a character": "{\"cniVersion\":\"1.0.0\",\"type\":\"pb\xc3\"}",
		"escape sequence":  "\x1b[31m{}",
		"byte order mark":  "\ufeff" + `{"cniVersion":"1.0.0","type":"pb"}`,
		"deep":             `{"cniVersion":"1.0.0","type":"pb","x":` + strings.Repeat("[", size),
		"list":             `[{"cniVersion":"1.0.0","type":"pb"}]`,
		"a string":         `"pb"`,
		"a number":         "1e999",
		"and more":         `{"cniVersion":"1.0.0","type":"pb"}{}`,
		"number as type":   `{"cniVersion":"1.0.0","type":7}`,
		"null as type":     `{"cniVersion":"1.0.0","type":null}`,
		"long type":        `{"cniVersion":"1.0.0","type":"` + strings.Repeat("x", size) + `"}`,
		"unicode type":     `{"cniVersion":"1.0.0","type":"рb"}`,
		"long version":     `{"cniVersion":"` + strings.Repeat("1", size) + `","type":"pb"}`,
		"plugins object":   `{"cniVersion":"1.0.0","plugins":{}}`,
		"plugins of null":  `{"cniVersion":"1.0.0","plugins":[null]}`,
		"plugins nested":   `{"cniVersion":"1.0.0","plugins":[[]]}`,
		"many plugins":     `{"cniVersion":"1.0.0","plugins":[` + strings.Repeat(`{"type":"nosuch"},`, size/20) + `{"type":"nosuch"}]}`,
		"capabilities":     `{"cniVersion":"1.0.0","type":"pb","capabilities":["ips"]}`,
		"itself":           `{"cniVersion":"1.0.0","type":"weft-cni"}`,
		"control as name":  `{"cniVersion":"1.0.0","name":"a\u0007b","type":"pb"}`,
		"HTML":             `<html><body>{"type":"pb"}</body></html>`,
	}
	both(t, func(t *testing.T, r *Rig) {
		t.Helper()
		withNetworks(r, "neta")
		for name, config := range cases {
			t.Run(name, func(t *testing.T) {
				r.NAD("default/neta", config, nil)
				wantRefused(t, r, r.Call("ADD"), 7, "default/neta")
			})
		}
	})
}

// A delegate's error of any bytes undoes the ADD, and keeps its code.
func TestHostileDelegates(t *testing.T) {
	for name, msg := range map[string]string{
		"control characters": "a\x00b\x1b[31m\nc\td",
		"right to left":      "\u202eevil",
		"long":               strings.Repeat("é", 100<<10),
		"success on DEL":     "link not found",
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, r *Rig) {
				t.Helper()
				r.NAD("default/neta", `{"cniVersion":"1.0.0","type":"pb","fail":{"ADD":{"code":42,"msg":`+quote(msg)+`,"details":`+quote(msg)+`}}}`, nil)
				withNetworks(r, "neta")
				o := r.Call("ADD")
				if got := strings.Join(o.Names(), ", "); got != "pa ADD eth0, pb ADD net1, pb DEL net1, pa DEL eth0" {
					t.Errorf("calls %s", got)
				}
				o.Calls = nil
				wantRefused(t, r, o, 42, "default/neta", "net1")
			})
		})
	}
}
