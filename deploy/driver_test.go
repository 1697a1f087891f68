// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
)

// definition is the part of a CustomResourceDefinition that is looked at.
type definition struct {
	Metadata struct{ Name string }
	Spec     struct {
		Group, Scope string
		Names        struct {
			Kind, ListKind, Plural, Singular string
			ShortNames, Categories           []string
		}
		Versions []struct {
			Name                     string
			Served, Storage          bool
			Subresources             map[string]any
			AdditionalPrinterColumns []struct{ Name string }
			Schema                   struct {
				OpenAPIV3Schema map[string]any
			}
		}
	}
}

// TestDriverDefinitions: the names that clusters have already; a status of its own; nothing is
// immutable. They are no part of the kustomization: a cluster that has them keeps its own, which
// "kubectl create" leaves alone and "kubectl apply" would replace.
func TestDriverDefinitions(t *testing.T) {
	for _, want := range []struct {
		kind, plural, short string
		columns             []string
	}{
		{v2alpha1.NodeConfigKind, v2alpha1.NodeConfigResource, "ndnc", []string{"Accepted", "Ready", "Reason", "Age"}},
		{v2alpha1.ClusterConfigKind, v2alpha1.ClusterConfigResource, "ndcc", []string{"Nodes", "Conflicting", "Accepted", "Age"}},
	} {
		file := "crd-" + want.plural + ".yaml"
		if slices.Contains(kustomized(t).Resources, file) {
			t.Errorf("the kustomization lists %s", file)
		}
		docs := documents(t, file)
		if len(docs) != 1 {
			t.Fatalf("%s holds %d documents", file, len(docs))
		}
		text, err := json.Marshal(*strict[map[string]any](t, file, docs[0]))
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		if d.Metadata.Name != want.plural+"."+v2alpha1.Group || d.Spec.Group != v2alpha1.Group || d.Spec.Scope != "Cluster" {
			t.Errorf("%s defines %s of %s, %s", file, d.Metadata.Name, d.Spec.Group, d.Spec.Scope)
		}
		names := d.Spec.Names
		if names.Kind != want.kind || names.ListKind != want.kind+"List" || names.Plural != want.plural || names.Singular != strings.ToLower(want.kind) {
			t.Errorf("%s: names %+v", file, names)
		}
		if !slices.Equal(names.ShortNames, []string{want.short}) || !slices.Equal(names.Categories, []string{"cilium"}) {
			t.Errorf("%s: short names %q, categories %q", file, names.ShortNames, names.Categories)
		}
		if len(d.Spec.Versions) != 1 {
			t.Fatalf("%s has %d versions", file, len(d.Spec.Versions))
		}
		v := d.Spec.Versions[0]
		if _, status := v.Subresources["status"]; v.Name != v2alpha1.Version || !v.Served || !v.Storage || !status {
			t.Errorf("%s: version %+v", file, v)
		}
		var columns []string
		for _, c := range v.AdditionalPrinterColumns {
			columns = append(columns, c.Name)
		}
		if d := cmp.Diff(want.columns, columns); d != "" {
			t.Errorf("%s: columns (-want +got):\n%s", file, d)
		}
		for _, word := range []string{"oldSelf", "x-kubernetes-preserve-unknown-fields"} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s has %s: every field may change, and what is not known is dropped", file, word)
			}
		}
	}
}
