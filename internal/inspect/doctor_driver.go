// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/kube/rest"
)

// definition is what is read of a CustomResourceDefinition.
type definition struct {
	Spec struct {
		Versions []struct {
			Name         string
			Served       bool
			Subresources struct{ Status json.RawMessage }
			Schema       struct{ OpenAPIV3Schema schema }
		}
	}
}

// schema is what decides which fields are kept.
type schema struct {
	Properties map[string]schema
	Keeps      bool `json:"x-kubernetes-preserve-unknown-fields"`
}

// has says whether a field is kept.
func (s schema) has(path ...string) bool {
	for _, name := range path {
		if s.Keeps {
			return true
		}
		next, ok := s.Properties[name]
		if !ok {
			return false
		}
		s = next
	}
	return true
}

// checkDefinitions looks at the network driver's definitions, which are kept as the cluster has them:
// Cilium's own, or older ones, may hold no conditions. A cluster without them has no network driver.
func (d *doctor) checkDefinitions(ctx context.Context) {
	api, ok := d.API.(selecter)
	if !ok {
		return // checkRights says that there is no API server to ask
	}
	const check = "definitions"
	fine := 0
	for _, of := range []struct{ kind, resource string }{
		{v2alpha1.NodeConfigKind, v2alpha1.NodeConfigResource},
		{v2alpha1.ClusterConfigKind, v2alpha1.ClusterConfigResource},
	} {
		name := of.resource + "." + v2alpha1.Group
		def, err := define(ctx, api, name)
		switch {
		case err != nil:
			d.notSeen("definition %s: %v", name, err)
		case def == nil:
		default:
			served, holds := def.holds()
			switch {
			case !served:
				d.add(ResultWarn, check, fmt.Sprintf("%s does not serve version %s", name, v2alpha1.Version), "replace it by deploy/crd-"+of.resource+".yaml")
			case !holds:
				d.add(ResultInfo, check, name+" is one of before Weft and holds no conditions: what is wrong with a configuration is told by events on it alone",
					"kubectl get events --field-selector=involvedObject.kind="+of.kind+"; for conditions replace it by deploy/crd-"+of.resource+".yaml")
			default:
				fine++
			}
		}
	}
	if fine > 0 {
		d.ok(check, "%s of the network driver, with conditions", count(fine, "definition"))
	}
}

// define reads a definition; nil: there is none.
func define(ctx context.Context, api selecter, name string) (*definition, error) {
	all, err := api.Select(ctx, rest.Definitions(), "", "metadata.name="+name)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if o.Meta.Name != name {
			continue // a server that does not select
		}
		def := &definition{}
		if err := json.Unmarshal(o.Raw, def); err != nil {
			return nil, fmt.Errorf("read it: %w", err)
		}
		return def, nil
	}
	return nil, nil //nolint:nilnil // there is none, which is no fault
}

// holds says whether the version that Weft uses is served, and keeps conditions.
func (d *definition) holds() (served, conditions bool) {
	for _, v := range d.Spec.Versions {
		if v.Name == v2alpha1.Version && v.Served {
			status := len(v.Subresources.Status) > 0 && !bytes.Equal(v.Subresources.Status, []byte("null"))
			return true, status && v.Schema.OpenAPIV3Schema.has("status", "conditions")
		}
	}
	return false, false
}
