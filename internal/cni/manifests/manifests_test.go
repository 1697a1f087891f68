// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

const nadHead = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\n"

func pod(line int, namespace, name string, annotations map[string]string) Pod {
	return Pod{Pod: plan.Pod{Namespace: namespace, Name: name, Annotations: annotations}, Place: Place{"f.yaml", line}}
}

func nad(line int, namespace, name, config, resource string) NAD {
	return NAD{
		Ref:   plan.NADRef{Namespace: namespace, Name: name},
		NAD:   plan.NAD{Found: true, Config: config, ResourceName: resource},
		Place: Place{"f.yaml", line},
	}
}

func warning(line int, field, text string) fault.Warning {
	return fault.Warning{Object: fmt.Sprintf("file f.yaml:%d", line), Field: field, Text: text}
}

func TestAdd(t *testing.T) {
	networks := map[string]string{plan.NetworksAnnotation: "neta"}
	for name, c := range map[string]struct {
		in       string
		pods     []Pod
		nads     []NAD
		warnings []fault.Warning
	}{
		"a pod and a NAD": {
			in: "# two objects\napiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: ns1\n  uid: u-1\n  annotations:\n    k8s.v1.cni.cncf.io/networks: neta\nspec:\n  containers: [{name: c, image: i}]\n" +
				"--- # next\n" + nadHead + "metadata:\n  name: neta\n  annotations: {k8s.v1.cni.cncf.io/resourceName: ex.com/vf}\nspec:\n  config: |\n    {\n      \"type\": \"pb\"\n    }\n",
			pods: []Pod{{Pod: plan.Pod{Namespace: "ns1", Name: "web", UID: "u-1", Annotations: networks}, Place: Place{"f.yaml", 2}}},
			nads: []NAD{nad(13, "default", "neta", "{\n  \"type\": \"pb\"\n}\n", "ex.com/vf")},
		},
		"every byte of a config": {
			in:   nadHead + "metadata: {name: neta}\nspec: {config: '{\"a\":9007199254740993,  \"b\":\"\\u00e4\"}'}\n",
			nads: []NAD{nad(1, "default", "neta", `{"a":9007199254740993,  "b":"\u00e4"}`, "")},
		},
		"a NAD without spec, and with an empty one": {
			in:   nadHead + "metadata: {name: neta}\n---\n" + nadHead + "metadata: {name: netb}\nspec:\n",
			nads: []NAD{nad(1, "default", "neta", "", ""), nad(5, "default", "netb", "", "")},
		},
		"a broken document between two good ones": {
			in: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: [\nx\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n",
			pods: []Pod{
				pod(1, "default", "a", nil), pod(9, "default", "b", nil),
			},
			warnings: []fault.Warning{warning(6, "", "document is no YAML and is skipped: did not find expected ',' or ']'")},
		},
		"other kinds, empty documents, comments": {
			in: "---\n---\n# nothing\n---\nnull\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n",
		},
		"a list, and lists of a kind": {
			in: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n- kind: Service\n- apiVersion: v1\n  kind: PodList\n  items:\n  - metadata: {name: b}\n" +
				"---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinitionList\nitems:\n- metadata: {name: neta}\n",
			pods: []Pod{pod(4, "default", "a", nil), pod(11, "default", "b", nil)},
			nads: []NAD{nad(16, "default", "neta", "", "")},
		},
		"one bad item of a list": {
			in:       "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: b}\n",
			pods:     []Pod{pod(6, "default", "b", nil)},
			warnings: []fault.Warning{warning(4, "metadata.name", "is missing; the object is skipped")},
		},
		"duplicates: the last one counts": {
			in: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: other}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {k8s.v1.cni.cncf.io/networks: neta}}\n" +
				"---\n" + nadHead + "metadata: {name: n}\n---\n" + nadHead + "metadata: {name: n}\nspec: {config: '{}'}\n",
			pods: []Pod{pod(9, "default", "a", networks), pod(5, "other", "a", nil)},
			nads: []NAD{nad(17, "default", "n", "{}", "")},
			warnings: []fault.Warning{
				warning(9, "", "pod default/a stands at f.yaml:1 as well; this one is used"),
				warning(17, "", "NetworkAttachmentDefinition default/n stands at f.yaml:13 as well; this one is used"),
			},
		},
		"anchors and merges": {
			in: "apiVersion: v1\nkind: Pod\nmetadata:\n  name: &n a\n  labels: &l {k8s.v1.cni.cncf.io/networks: neta, x: y}\n  annotations: {<<: *l, x: *n}\n",
			pods: []Pod{pod(1, "default", "a", map[string]string{
				plan.NetworksAnnotation: "neta", "x": "a",
			})},
		},
		"JSON, twice, with tabs and pairs": {
			in:   "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\",\n\t\"metadata\": {\"name\": \"a\", \"annotations\": {\"smile\": \"\\ud83d\\ude00\"}}\n}\n\n{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"b\"}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: c}}",
			pods: []Pod{pod(1, "default", "a", map[string]string{"smile": "😀"}), pod(7, "default", "b", nil), pod(9, "default", "c", nil)},
		},
		"values of the wrong type": {
			in: "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {x: true}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: 7}\n---\napiVersion: v1\nkind: Pod\nmetadata: a\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: [a]}\n---\n" +
				nadHead + "metadata: {name: n}\nspec: {config: {type: pb}}\n---\napiVersion: v1\nkind: List\nitems: {}\n---\n[]\n---\ntext\n",
			warnings: []fault.Warning{
				warning(1, "metadata.annotations.x", `is no string but bool "true": quote it; the object is skipped`),
				warning(5, "metadata.name", `is no string but int "7": quote it; the object is skipped`),
				warning(9, "metadata", "is no object; the object is skipped"),
				warning(13, "metadata.name", "is no string; a list or an object is written as a block after a |; the object is skipped"),
				warning(17, "spec.config", "is no string; a list or an object is written as a block after a |; the object is skipped"),
				warning(22, "items", "is no list; the object is skipped"),
				warning(26, "document", "is no object; the object is skipped"),
				warning(28, "document", "is no object; the object is skipped"),
			},
		},
		"what YAML reads as a date stays text": {
			in:   "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {day: 2026-01-02, no: ~}}\n",
			pods: []Pod{pod(1, "default", "a", map[string]string{"day": "2026-01-02", "no": ""})},
		},
		"kinds and groups": {
			in: "kind: Pod\nmetadata: {name: a}\n---\napiVersion: v2\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: example.com/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\n---\nmetadata: {name: a}\n",
			warnings: []fault.Warning{
				warning(1, "apiVersion", `of a Pod is v1, not ""; the object is skipped`),
				warning(4, "apiVersion", `of a Pod is v1, not "v2"; the object is skipped`),
				warning(8, "apiVersion", `of a NetworkAttachmentDefinition is k8s.cni.cncf.io/v1, not "example.com/v1"; the object is skipped`),
				warning(12, "kind", "is missing; the object is skipped"),
			},
		},
		"a key twice": {
			in:       "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n    x: a\n    x: b\n---\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"kind\":\"Pod\"}\n",
			warnings: []fault.Warning{warning(1, "metadata.annotations", `has the key "x" twice; the object is skipped`), warning(9, "document", `has the key "kind" twice; the object is skipped`)},
		},
		"a separator inside a text": {
			in:   nadHead + "metadata: {name: n}\nspec:\n  config: |\n    {}\n    ---\n    x\n---\r\n" + nadHead + "metadata: {name: m}\n----\n",
			nads: []NAD{nad(1, "default", "n", "{}\n---\nx\n", "")},
			warnings: []fault.Warning{
				warning(13, "", "document is no YAML and is skipped: could not find expected ':'"),
			},
		},
		"a byte order mark": {
			in:   "\xef\xbb\xbfapiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
			pods: []Pod{pod(1, "default", "a", nil)},
		},
		"a list in itself": {
			in: "&l\napiVersion: v1\nkind: List\nitems: [*l, *l]\n",
			warnings: func() (ws []fault.Warning) {
				for range 8 {
					ws = append(ws, warning(1, "items", "stands in too many lists; the object is skipped"))
				}
				return ws
			}(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Set{}
			s.Add("f.yaml", []byte(c.in))
			for _, d := range []string{cmp.Diff(c.pods, s.Pods), cmp.Diff(c.nads, s.NADs), cmp.Diff(c.warnings, s.Warnings)} {
				if d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestBrokenJSONFile(t *testing.T) {
	s := &Set{}
	s.Add("f.json", []byte("{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}\n{\n  \"kind\": x\n}\n"))
	want := []fault.Warning{{Object: "file f.json:3", Text: "document is no JSON and is skipped: invalid character 'x' looking for beginning of value"}}
	if d := cmp.Diff(want, s.Warnings); d != "" || len(s.Pods) != 1 {
		t.Errorf("%d pods, warnings %s", len(s.Pods), d)
	}
}

func TestAliasBombsEnd(t *testing.T) {
	var lists, merges strings.Builder
	lists.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	item := "{apiVersion: v1, kind: Pod, metadata: {name: a}}"
	for i := range 3 {
		fmt.Fprintf(&lists, "- &l%d {apiVersion: v1, kind: List, items: [%s]}\n", i, strings.TrimSuffix(strings.Repeat(item+",", 1000), ","))
		item = fmt.Sprintf("*l%d", i)
	}
	fmt.Fprint(&merges, "apiVersion: v1\nkind: Pod\nx0: &x0 {a: b}\n")
	for i := 1; i < 5; i++ {
		fmt.Fprintf(&merges, "x%d: &x%d {<<: [%s]}\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d,", i-1), 1000), ","))
	}
	merges.WriteString("metadata: {name: a, <<: *x4}\n")
	s := &Set{}
	s.Add("f.yaml", []byte(lists.String()))
	if len(s.Pods) != 1 || len(s.Warnings) != maxWarnings || s.more == 0 {
		t.Errorf("%d pods, %d and %d warnings", len(s.Pods), len(s.Warnings), s.more)
	}
	s = &Set{}
	s.Add("f.yaml", []byte(merges.String()))
	want := []fault.Warning{warning(1, "metadata", "merges too many objects; the object is skipped")}
	if d := cmp.Diff(want, s.Warnings); d != "" || len(s.Pods) != 0 {
		t.Errorf("%d pods, %s", len(s.Pods), d)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	p := func(name string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", annotations: {a: b}}\n"
	}
	for name, content := range map[string]string{
		"b.yaml": p("b"), "a.yml": p("a"), "c.json": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"}}`,
		"d.txt": p("d"), "sub/e.yaml": p("e"), "z.yaml": strings.Repeat("#", maxFileBytes+1),
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.Symlink("/etc/hostname", filepath.Join(dir, "x.yaml")),
		syscall.Mkfifo(filepath.Join(dir, "y.yaml"), 0o600),
		os.Symlink("sub/e.yaml", filepath.Join(dir, "w.yaml")),
	); err != nil {
		t.Fatal(err)
	}
	s, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range s.Pods {
		names = append(names, p.Name+" "+strings.TrimPrefix(p.Place.String(), dir+"/"))
	}
	if d := cmp.Diff([]string{"a a.yml:1", "b b.yaml:1", "c c.json:1", "e w.yaml:1"}, names); d != "" {
		t.Error(d)
	}
	want := []fault.Warning{
		{Object: "file " + dir + "/x.yaml", Text: "path escapes from parent; it is skipped"},
		{Object: "file " + dir + "/y.yaml", Text: "is no regular file; it is skipped"},
		{Object: "file " + dir + "/z.yaml", Text: "is too large (more than 16777216 bytes); it is skipped"},
	}
	if d := cmp.Diff(want, s.Warnings); d != "" {
		t.Error(d)
	}

	a, err := s.Pod("default", "a")
	if err != nil || a.Annotations["a"] != "b" {
		t.Fatalf("pod %+v, %v", a, err)
	}
	a.Annotations["a"] = "changed"
	if again, err := s.Pod("default", "a"); err != nil || again.Annotations["a"] != "b" {
		t.Errorf("the set was changed: %+v, %v", again, err)
	}
	_, err = s.Pod("default", "d")
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.TryLater || f.Error() != "pod default/d: is not known yet: no manifest holds it" {
		t.Errorf("error %v", err)
	}
	if n := s.NAD(plan.NADRef{Namespace: "default", Name: "a"}); n.Found {
		t.Errorf("NAD %+v", n)
	}
}

func TestReadNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, text := range map[string]string{
		file:       "manifests directory " + file + ": cannot be opened: not a directory",
		"/none/of": "manifests directory /none/of: cannot be opened: no such file or directory",
	} {
		_, err := Read(dir)
		if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.Config || f.Error() != text {
			t.Errorf("error %v, want %s", err, text)
		}
	}
}

func TestWarningsAreBounded(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f.yaml"), []byte(strings.Repeat("{a\n---\n", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Warnings); n != maxWarnings+1 || s.Warnings[n-1].Text != "4900 more warnings" {
		t.Errorf("%d warnings, last %+v", n, s.Warnings[n-1])
	}
}

func FuzzAdd(f *testing.F) {
	f.Add("f.yaml", []byte(nadHead+"metadata: {name: n}\nspec: {config: '{}'}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"))
	f.Add("f.json", []byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}]}`))
	f.Add("f.yaml", []byte("&l {apiVersion: v1, kind: List, items: [*l]}"))
	f.Add("f.yaml", []byte("? {a: b}\n: c\n<<: [x]\n--- |\n x\n...\n%YAML 1.1\n"))
	f.Fuzz(func(t *testing.T, file string, in []byte) {
		s := &Set{}
		s.Add(file, in)
		lines := strings.Count(string(in), "\n") + 1
		for _, p := range s.Pods {
			if got, err := s.Pod(p.Namespace, p.Name); err != nil || p.Name == "" || p.Namespace == "" || p.Place.Line < 1 || p.Place.Line > lines {
				t.Fatalf("pod %+v at %s of %d lines: %+v, %v", p.Pod, p.Place, lines, got, err)
			}
		}
		for _, n := range s.NADs {
			if got := s.NAD(n.Ref); !cmp.Equal(got, n.NAD) || !got.Found || n.Place.Line > lines {
				t.Fatalf("NAD %+v at %s of %d lines gives %+v", n.Ref, n.Place, lines, got)
			}
		}
		// A document behind the others is read whatever they were.
		s.Add("last.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: last, namespace: fuzz}\n"))
		if p, err := s.Pod("fuzz", "last"); err != nil || p.Name != "last" {
			t.Fatalf("last pod %+v, %v", p, err)
		}
		again := &Set{}
		again.Add(file, in)
		if d := cmp.Diff(s.NADs, again.NADs, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("read twice, two answers: %s", d)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	var doc strings.Builder
	for i := range 10 {
		fmt.Fprintf(&doc, "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: p%d\n  annotations:\n    k8s.v1.cni.cncf.io/networks: neta\nspec:\n  containers:\n  - name: c\n    image: example.com/image:1\n", i)
		fmt.Fprintf(&doc, "---\n%smetadata:\n  name: n%d\nspec:\n  config: '{\"cniVersion\":\"1.0.0\",\"type\":\"bridge\"}'\n", nadHead, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "f.yaml"), []byte(doc.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if s, err := Read(dir); err != nil || len(s.Pods) != 10 || len(s.NADs) != 10 {
			b.Fatal(err)
		}
	}
}
