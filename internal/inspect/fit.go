// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/api/v2alpha1"
)

// fitter goes through a node along a type.
type fitter struct {
	object driverObject
	found  []Finding
	lines  map[string]int // of fields, by their paths
	bad    []string       // fields that are of another type
}

// maxFields bounds what is looked at of one object, which may repeat itself by aliases.
const maxFields = 1 << 18

// told says whether a field, or what it is in, is of another type: what it has for a value then
// is nothing to judge.
func (f *fitter) told(path string) bool {
	return slices.ContainsFunc(f.bad, func(bad string) bool {
		rest, ok := strings.CutPrefix(path, bad)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// line is that of a field, or of what is there of its path.
func (f *fitter) line(path string) int {
	for path != "" {
		if line, ok := f.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return f.object.node.Line
}

// fit is what of a node is of a type, nil for nothing; the rest is told, and where everything is
// is noted. An API server drops fields that it does not know, and refuses values of other types;
// an element of a list that is one leaves its place, so that the others keep theirs.
func (f *fitter) fit(n *yaml.Node, t reflect.Type, path string, line int) *yaml.Node {
	n = resolved(n)
	f.lines[path] = line
	if n.Tag == "!!null" || len(f.lines) > maxFields {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	out := *n
	out.Anchor = ""
	if value, is := boolean(n); is {
		out.Tag, out.Value = "!!bool", strconv.FormatBool(value)
	}
	wants := map[reflect.Kind]string{reflect.String: "!!str", reflect.Int: "!!int", reflect.Int64: "!!int", reflect.Bool: "!!bool", reflect.Slice: "!!seq", reflect.Struct: "!!map", reflect.Map: "!!map"}
	if want := wants[t.Kind()]; out.ShortTag() != want {
		f.found = append(f.found, f.object.finding(SeverityFault, line, path, "is "+typeNames(out.ShortTag())+", must be "+typeNames(want)+quoting(want, n)))
		f.bad = append(f.bad, path)
		return nil
	}
	switch t.Kind() { //nolint:exhaustive // others are scalars
	case reflect.Slice:
		out.Content = nil
		for i, item := range n.Content {
			fitting := f.fit(item, t.Elem(), path+"["+strconv.Itoa(i)+"]", item.Line)
			if fitting == nil {
				fitting = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
			}
			out.Content = append(out.Content, fitting)
		}
	case reflect.Map, reflect.Struct:
		out.Content = f.members(n, t, path)
	}
	return &out
}

// boolean is what kubectl takes a plain word for: it reads YAML 1.1, in which "yes" is true.
func boolean(n *yaml.Node) (value, is bool) {
	if n.Kind != yaml.ScalarNode || n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) != 0 {
		return false, false
	}
	value = slices.Contains([]string{"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"}, n.Value)
	return value, value || slices.Contains([]string{"n", "N", "no", "No", "NO", "off", "Off", "OFF"}, n.Value)
}

func (f *fitter) members(n *yaml.Node, t reflect.Type, path string) []*yaml.Node {
	var content []*yaml.Node
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := path + "." + key.Value
		of, known := memberType(t, key.Value)
		switch {
		case seen[key.Value]:
			f.found = append(f.found, f.object.finding(SeverityFault, key.Line, at, "stands there twice"))
			continue
		case !known:
			f.found = append(f.found, f.object.finding(SeverityWarning, key.Line, at, "is no field that Weft knows; it has no effect"))
			continue
		}
		seen[key.Value] = true
		if fitting := f.fit(value, of, at, key.Line); fitting != nil {
			content = append(content, key, fitting)
		}
	}
	return content
}

// memberType is the type that the value of a key has.
func memberType(t reflect.Type, key string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for field := range t.Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name == key {
			return field.Type, true
		}
	}
	return nil, false
}

func typeNames(tag string) string {
	names := map[string]string{"!!str": "a string", "!!int": "a whole number", "!!float": "a number", "!!bool": "true or false", "!!seq": "a list", "!!map": "an object"}
	if name, ok := names[tag]; ok {
		return name
	}
	return "a " + strings.TrimPrefix(tag, "!!")
}

// quoting helps with what YAML does not take for the string that it looks like, such as 0x15b3.
func quoting(want string, n *yaml.Node) string {
	if want != "!!str" || n.Kind != yaml.ScalarNode {
		return ""
	}
	return ": write " + strconv.Quote(n.Value)
}

// doubts warns of what is right, and hardly meant.
func (f *fitter) doubts(spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec, path *field.Path) {
	for i, p := range spec.Pools {
		at := path.Child("pools").Index(i)
		if f.told(at.String()) {
			continue
		}
		if p.Filter == nil {
			f.warn(at, "has no filter: nothing is in it, and it is not published; {} stands for all devices")
			continue
		}
		for j, manager := range p.Filter.DeviceManagers {
			if manager != "sr-iov" && manager != "dummy" {
				f.warn(at.Child("filter", "deviceManagers").Index(j), strconv.Quote(manager)+" is no device manager that Weft has (sr-iov, dummy): none of its devices will be there")
			}
		}
	}
}

func (f *fitter) warn(at *field.Path, text string) {
	f.found = append(f.found, f.object.finding(SeverityWarning, f.line(at.String()), at.String(), text))
}
