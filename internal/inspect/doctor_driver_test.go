// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/internal/kube/rest"
)

// definitions is an API server with these, as YAML.
type definitions struct {
	rights
	all    []string
	denied error
}

func (d *definitions) Select(_ context.Context, res rest.Resource, _, selector string) ([]rest.Object, error) {
	if d.denied != nil || res.Kind != "CustomResourceDefinition" {
		return nil, d.denied
	}
	var found []rest.Object
	for _, text := range d.all {
		raw, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return nil, err
		}
		o := rest.Object{Raw: raw}
		if err := json.Unmarshal(raw, &struct{ Metadata *rest.Meta }{&o.Meta}); err != nil {
			return nil, err
		}
		if selector == "metadata.name="+o.Meta.Name {
			found = append(found, o)
		}
	}
	return found, nil
}

// Decision 12: a cluster's own definitions are kept; the doctor says what they cannot hold.
func TestDoctorDefinitions(t *testing.T) {
	shipped := func(name string) string {
		text, err := os.ReadFile("../../deploy/crd-" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const nodes, clusters = "ciliumnetworkdrivernodeconfigs", "ciliumnetworkdriverclusterconfigs"
	older := func(version, rest string) string {
		return "metadata: {name: " + nodes + ".cilium.io}\nspec: {versions: [{name: " + version + ", served: true, " + rest + "}]}\n"
	}
	h := newHost(t)
	for _, name := range []string{"vlan", "static"} {
		h.program(name)
	}
	const says = "info definitions: " + nodes + ".cilium.io is one of before Weft and holds no conditions: what is wrong with a configuration is told by events on it alone"
	for _, c := range []struct {
		name   string
		have   []string
		denied error
		want   string // "": nothing is said
	}{
		{name: "as shipped", have: []string{shipped(nodes), shipped(clusters)}, want: "ok definitions: 2 definitions of the network driver, with conditions"},
		{name: "none"},
		{name: "no status", have: []string{older("v2alpha1", "schema: {openAPIV3Schema: {properties: {spec: {}, status: {properties: {conditions: {}}}}}}")}, want: says},
		{name: "a status without conditions", have: []string{older("v2alpha1", "subresources: {status: {}}, schema: {openAPIV3Schema: {properties: {status: {properties: {managedBy: {}}}}}}")}, want: says},
		{
			name: "a status of anything", have: []string{older("v2alpha1", "subresources: {status: {}}, schema: {openAPIV3Schema: {properties: {status: {x-kubernetes-preserve-unknown-fields: true}}}}")},
			want: "ok definitions: 1 definition of the network driver, with conditions",
		},
		{name: "another version", have: []string{older("v3", "subresources: {status: {}}")}, want: "warn definitions: " + nodes + ".cilium.io does not serve version v2alpha1"},
		{name: "not allowed", denied: errors.New("forbidden"), want: "unseen definition " + nodes + ".cilium.io: forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkup := Doctor(t.Context(), DoctorOptions{Root: h.dir, Version: version, Now: at, API: &definitions{all: c.have, denied: c.denied}})
			var got []string
			for _, check := range checkup.Checks {
				if check.Check == "definitions" {
					got = append(got, check.Result+" definitions: "+check.Text)
				}
			}
			for _, text := range checkup.Unseen {
				if strings.HasPrefix(text, "definition "+nodes) {
					got = append(got, "unseen "+text)
				}
			}
			if strings.Join(got, "\n") != c.want {
				t.Errorf("it says %q, want %q", got, c.want)
			}
		})
	}
}
