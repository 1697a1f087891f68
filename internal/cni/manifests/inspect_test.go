// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/manifests"
)

func TestInspect(t *testing.T) {
	const text = `# comment
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    k8s.v1.cni.cncf.io/networks: |
      [{"name": "a"}]
    other: "x"
spec:
  resourceClaims: [{name: c}]
  initContainers:
    - resources: {limits: {ex.com/vf: 3, ex.com/other: "1"}}
  containers:
    - resources: {limits: {ex.com/vf: "1", cpu: 2}}
    - resources: {limits: {ex.com/vf: 1}}
---
apiVersion: v1
kind: Pod
metadata:
  name: bad
  annotations:
    a: "1"
    b: true
---
{"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
 "metadata": {"name": "a"},
 "spec": {"config": "{}"}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
---
{
`
	var got []string
	set := &manifests.Set{Inspect: func(p manifests.Problem) {
		got = append(got, fmt.Sprintf("%s %s %v %s", p.Place, p.Field, p.Skipped, p.Text[:min(len(p.Text), 20)]))
	}}
	set.Add("f.yaml", []byte(text))
	want := []string{
		"f.yaml:24 metadata.annotations.b true is no string but boo",
		"f.yaml:30  false pod default/web stan",
	}
	if len(got) != 3 || !strings.HasPrefix(got[2], "f.yaml:3") || !strings.Contains(got[2], " true document is no ") {
		t.Errorf("problems %q", got)
	}
	if diff := cmp.Diff(want, got[:2]); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if len(set.Warnings) != 0 {
		t.Errorf("warnings %v", set.Warnings)
	}
	if nad := set.NADs[0].Marks["spec.config"]; nad != (manifests.Mark{Line: 28}) {
		t.Errorf("mark of a JSON value %+v", nad)
	}
	set = &manifests.Set{Inspect: func(manifests.Problem) {}}
	set.Add("f.yaml", []byte(text[:strings.Index(text, "---")]))
	pod := set.Pods[0]
	if diff := cmp.Diff(map[string]int{"ex.com/vf": 3, "ex.com/other": 1}, pod.Limits); diff != "" || !pod.Claims {
		t.Errorf("limits (-want +got), claims %v:\n%s", pod.Claims, diff)
	}
	for field, want := range map[string]manifests.Mark{
		"metadata.name": {Line: 5, Column: 9},
		"metadata.annotations.k8s.v1.cni.cncf.io/networks": {Line: 7, Column: 34},
		"metadata.annotations.other":                       {Line: 9, Column: 12},
	} {
		if got := pod.Marks[field]; got != want {
			t.Errorf("mark of %s is %+v, want %+v", field, got, want)
		}
	}
}

// Only a line feed ends a line of a file; for YAML a carriage return, NEL, LS and PS do as well.
func TestLinesAreThoseOfTheFile(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"\r\r0", "f.yaml:1"},
		{"kind: Pod\rapiVersion: v1\nmetadata: 7\n", "f.yaml:2"},
		{"# a\r\n# b\r\n0\r\n", "f.yaml:3"},
		{"# a\u0085# b\u2028# c\u2029# d\n- 1\n", "f.yaml:2"},
		{"---\n{\u2028\u2028", "f.yaml:2"},
		{"# a\n---\n# b\r# c\n0\n", "f.yaml:4"},
	} {
		var got []string
		set := &manifests.Set{Inspect: func(p manifests.Problem) { got = append(got, p.Place.String()) }}
		set.Add("f.yaml", []byte(c.text))
		if len(got) == 0 || got[0] != c.want {
			t.Errorf("%q: problems at %v, want %s", c.text, got, c.want)
		}
	}
}
