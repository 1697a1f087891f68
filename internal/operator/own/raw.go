// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/weftnet/weft/api/v2alpha1"
)

// Spec is a spec as it is stored, with the fields that this version does not know.
type Spec = map[string]any

// Raw is a spec of this version as it would be stored.
func Raw(spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec) (Spec, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, fmt.Errorf("encode a spec: %w", err)
	}
	return raw, nil
}

// Typed is what this version knows of a stored spec.
func Typed(raw Spec) (*v2alpha1.CiliumNetworkDriverNodeConfigSpec, error) {
	spec := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, spec); err != nil {
		return nil, fmt.Errorf("read a spec: %w", err)
	}
	return spec, nil
}

// Kept reads the spec of an annotation Adopted.
func Kept(annotation string) (Spec, error) {
	raw := Spec{}
	if err := json.Unmarshal([]byte(annotation), &raw); err != nil {
		return nil, fmt.Errorf("read annotation %s: %w", Adopted, err)
	}
	return raw, nil
}

// Over is a stored spec with another one in place of all that this version knows of it. Fields that
// it does not know stay, but for those in lists, which are replaced as a whole.
func Over(stored, other Spec) (Spec, error) {
	typed, err := Typed(stored)
	if err != nil {
		return nil, err
	}
	known, err := Raw(typed)
	if err != nil {
		return nil, err
	}
	return over(stored, known, other), nil
}

func over(stored, known, other Spec) Spec {
	out := maps.Clone(other)
	if out == nil {
		out = Spec{}
	}
	for field, value := range stored {
		of, isKnown := known[field]
		_, wanted := other[field]
		if !isKnown { // or it is empty, and means nothing
			if !wanted {
				out[field] = value
			}
			continue
		}
		inner, isObject := value.(Spec)
		if !isObject {
			continue
		}
		of2, _ := of.(Spec)
		other2, _ := other[field].(Spec)
		if merged := over(inner, of2, other2); wanted || len(merged) > 0 {
			out[field] = merged
		}
	}
	return out
}
