// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/manifests"
)

func TestOffset(t *testing.T) {
	const list = ` [ {"name":"a"}, {"name":"b","ips":["x", "y"],"a.b":{"c":1},"a":2,"a":3} ]`
	for field, want := range map[string]string{
		"":                `[ {`,
		"[0]":             `{"name":"a"}`,
		"[1].name":        `":"b"`, // the key's end: its line is the key's
		"[1].ips[1]":      `"y"`,
		"[1].a.b.c":       `":1`,
		"[1].a":           `":3`,
		"[1].gone":        `{"name":"b"`,
		"[1].ips[1].deep": `"y"`,
		"[7]":             `[ {`,
		"nonsense":        `[ {`,
	} {
		if got := list[offset(list, field):]; !strings.HasPrefix(got, want) {
			t.Errorf("%s is at %q, want %q", field, got, want)
		}
	}
	const short = " one,\n two@x , three"
	for field, want := range map[string]string{"[0]": "one", "[1]": "two", "[2]": "three", "[2].interface": "three", "": " one"} {
		if got := short[offset(short, field):]; !strings.HasPrefix(got, want) {
			t.Errorf("%s is at %q, want %q", field, got, want)
		}
	}
	const broken = `{"a": {"b": 1, "c" }, "d": 2}`
	if got := broken[offset(broken, "a.b"):]; !strings.HasPrefix(got, `": {"b"`) {
		t.Errorf("in broken JSON a.b is at %q", got)
	}
}

// Each value is written in another form of YAML; its digits are the lines on which they stand.
func TestLineAt(t *testing.T) {
	for name, doc := range map[string]string{
		"literal":  "a: |\n  [\"2\",\n\n   \"4\"]\n",
		"folded":   "a: &x >-\n  [\"2\",\n\n   \"4\"]\n",
		"single":   "a: '[\"1\",\n\n   \"3\"]'\n",
		"double":   "a: \"[\\\"1\\\",\\n\\\n\n   \\\"3\\\"]\"\n",
		"plain":    "a: !!str x1,\n  y2,\n\n  z4\n",
		"one line": "a: '[\"1\"]'\nb: c\n",
		"tabs":     "a: |\n  [\t\"2\",\t\t\"2\",\r\n  \"3\"]\n",
	} {
		set := &manifests.Set{Inspect: func(p manifests.Problem) { t.Errorf("%s: %+v", name, p) }}
		text := "kind: Pod\napiVersion: v1\nmetadata:\n  name: p\n  annotations:\n    " + strings.ReplaceAll(doc, "\n", "\n    ")
		set.Add("f", []byte(text))
		if len(set.Pods) == 0 {
			continue
		}
		pod := set.Pods[0]
		value, mark := pod.Annotations["a"], pod.Marks["metadata.annotations.a"]
		seen := 0
		for i, c := range value {
			if c >= '1' && c <= '4' {
				seen++
				if got := lineAt([]byte(text), mark, value, i) - 5; got != int(c-'0') {
					t.Errorf("%s: byte %d of %q is on line %d", name, i, value, got)
				}
			}
		}
		if seen == 0 {
			t.Errorf("%s: nothing in %q", name, value)
		}
	}
}

func TestLineAtOfOneLine(t *testing.T) {
	if got := lineAt([]byte("a\nb\n"), manifests.Mark{Line: 7}, "x\ny", 2); got != 7 {
		t.Errorf("a JSON value is on line %d, want 7", got)
	}
	if got := lineAt([]byte("a"), manifests.Mark{Line: 7, Column: 1}, "x", 0); got != 7 {
		t.Errorf("a line that the file does not have: %d, want 7", got)
	}
}

// Whatever the files hold, lint and explain end, and name lines that exist.
func FuzzFiles(f *testing.F) {
	const nad = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a, annotations: {k8s.v1.cni.cncf.io/resourceName: ex.com/x}}\nspec:\n  config: |\n    {\"plugins\": [{\"type\": \"b\"}, 7]}\n"
	const pod = "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  annotations:\n    k8s.v1.cni.cncf.io/networks: \"[{\\\"name\\\": \\\"a\\\",\\n\n      \\\"mac\\\": 1}]\"\nspec: {containers: [{resources: {limits: {ex.com/x: 1}}}], resourceClaims: [1]}\n"
	f.Add([]byte(nad+pod), []byte(`{"type":"multus","cniVersion":"1.0.0","name":"m","clusterNetwork":"a","defaultNetworks":["b","/c"]}`))
	f.Add([]byte(pod), []byte(`{"name":"l","cniVersion":"1.0.0","plugins":[{"type":"weft-cni","delegates":[{"type":"/"}]}]}`))
	f.Add([]byte(`{"kind":"Pod"} x`), []byte(`{"type":`))
	f.Add([]byte("\r0"), []byte("0"))           // a line end to YAML, none to anybody else
	f.Add([]byte("{\u2028\u0085"), []byte("0")) // the same in what is no YAML
	f.Fuzz(func(t *testing.T, manifest, conf []byte) {
		w := newWorld()
		w.add("m.yaml", manifest, false)
		w.add("w.conf", conf, true)
		w.index()
		w.configure()
		r := w.Lint(t.Context())
		e, err := w.Explain(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		lines := map[string]int{"m.yaml": 1 + strings.Count(string(manifest), "\n"), "w.conf": 1 + strings.Count(string(conf), "\n")}
		for _, finding := range append(r.Faults, r.Warnings...) {
			s := finding.Source
			if finding.Text == "" || s != nil && lines[s.File] > 0 && (s.Line < 0 || s.Line > lines[s.File]) {
				t.Errorf("finding %+v at %v", finding, s)
			}
		}
		if e.Faulty() != (len(r.Faults) > 0) && e.Faulty() {
			t.Errorf("explain finds what lint does not: %+v", e)
		}
	})
}
