// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// ConfKeys are the keys of a CNI configuration that may stand in the section cni, besides
// those that are keys of the agent as well.
func ConfKeys() []string {
	agents := map[string]bool{}
	for _, f := range cniFields() {
		agents[strings.TrimPrefix(f.Name, "cni.")] = true
	}
	var all []string
	for _, k := range netconf.Keys() {
		if !agents[k.Name] && refused(k.Name) == "" {
			all = append(all, k.Name)
		}
	}
	return all
}

// confKey says whether a name is a key of a CNI configuration at all.
func confKey(name string) bool {
	return slices.ContainsFunc(netconf.Keys(), func(k netconf.Key) bool { return k.Name == name })
}

// refused says why the publisher takes no such key, "" when it does.
func refused(name string) string {
	o := confpub.Options{
		ConfDir: "/", ConfName: "x.conflist", AgentSocket: "/x",
		Extra: map[string]json.RawMessage{name: json.RawMessage("null")},
	}
	for _, err := range each(o.Validate()) {
		if f, ok := errors.AsType[*fault.Fault](err); ok && f.Field == name {
			return f.Text
		}
	}
	return ""
}

// checkConf asks the hands' own reader about the keys for the published configuration, so
// that what it would refuse, or pass over with a warning, is said before it is published.
func (c *Config) checkConf() []error {
	all := map[string]any{
		"cniVersion": "1.1.0", "name": "weft", "type": "weft-cni",
		"delegates": []any{map[string]any{"cniVersion": "1.1.0", "name": "primary", "type": "primary"}},
	}
	for _, name := range slices.Sorted(maps.Keys(c.CNI.Conf)) {
		all[name] = c.CNI.Conf[name]
	}
	b, err := json.Marshal(all)
	if err != nil {
		return []error{&Fault{Key: "cni", Text: err.Error()}}
	}
	_, warnings, err := netconf.Parse(b)
	var faults []error
	for _, e := range each(err) {
		f, ok := errors.AsType[*fault.Fault](e)
		if !ok {
			f = &fault.Fault{Text: e.Error()}
		}
		faults = append(faults, c.confFault(f.Field, f.Text))
	}
	for _, w := range warnings {
		faults = append(faults, c.confFault(w.Field, w.Text))
	}
	return faults
}

// confFault is a fault at a field of the published configuration.
func (c *Config) confFault(field, text string) error {
	key := field
	if i := strings.IndexAny(key, ".[ "); i >= 0 {
		key = key[:i]
	}
	return &Fault{c.origins["cni."+key], strings.TrimSuffix("cni."+field, "."), text}
}

// each splits a joined error.
func each(err error) []error {
	if err == nil {
		return nil
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the joined error itself is meant
		return all.Unwrap()
	}
	return []error{err}
}

// maxDepth bounds how deep values for the published configuration are nested.
const maxDepth = 32

// toJSON gives a YAML value as encoding/json takes it.
func toJSON(n *yaml.Node, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("is nested too deep")
	}
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
				return nil, fmt.Errorf("has a key that is %s, a string is needed", kind(key))
			}
			if _, twice := out[key.Value]; twice {
				return nil, fmt.Errorf("has the key %s twice", fault.Quote(key.Value))
			}
			v, err := toJSON(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			out[key.Value] = v
		}
		return out, nil
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, item := range n.Content {
			v, err := toJSON(item, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = v
		}
		return out, nil
	default:
		return scalarJSON(n)
	}
}

func scalarJSON(n *yaml.Node) (any, error) {
	if n.Kind != yaml.ScalarNode {
		return nil, fmt.Errorf("is %s", kind(n))
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!str", "!!timestamp": // an unquoted date is a text to whoever wrote it
		return n.Value, nil
	case "!!bool", "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, fmt.Errorf("is %s, which cannot be read", kind(n))
		}
		if _, err := json.Marshal(v); err != nil { // .inf and .nan
			return nil, fmt.Errorf("is %s, which JSON does not have", kind(n))
		}
		return v, nil
	}
	return nil, fmt.Errorf("is %s, which JSON does not have", kind(n))
}
