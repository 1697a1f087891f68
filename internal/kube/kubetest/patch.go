// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

var errTest = errors.New("test failed")

// op is an operation of a JSON patch.
type op struct {
	Op    string           `json:"op"`
	Path  string           `json:"path"`
	Value *json.RawMessage `json:"value"`
}

// patch applies a JSON patch (test, add, replace, remove on members of objects) to o.
// Where a path has no parent it fails, and a test for null passes on an absent
// member: both as the API server's library does.
func patch(o map[string]any, body []byte) error {
	var ops []op
	if err := json.Unmarshal(body, &ops); err != nil {
		return fmt.Errorf("decode patch: %w", err)
	}
	for _, op := range ops {
		if err := op.apply(o); err != nil {
			return fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
	}
	return nil
}

func (p op) apply(o map[string]any) error {
	names := strings.Split(p.Path, "/")
	if len(names) < 2 || names[0] != "" {
		return errors.New("path is no pointer to a member")
	}
	names = names[1:]
	for i, n := range names {
		names[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(n)
	}
	for _, n := range names[:len(names)-1] {
		inner, ok := o[n].(map[string]any)
		if !ok {
			return fmt.Errorf("there is no %q", n)
		}
		o = inner
	}
	last := names[len(names)-1]
	var value any
	if p.Value != nil {
		wrapped, err := decode([]byte(`{"v":` + string(*p.Value) + `}`))
		if err != nil {
			return err
		}
		value = wrapped["v"]
	}
	old, exists := o[last]
	switch p.Op {
	case "test":
		if !reflect.DeepEqual(old, value) {
			return errTest
		}
	case "add":
		o[last] = value
	case "replace", "remove":
		if !exists {
			return errors.New("there is none")
		}
		if p.Op == "remove" {
			delete(o, last)
		} else {
			o[last] = value
		}
	default:
		return errors.New("operation is not known")
	}
	return nil
}
