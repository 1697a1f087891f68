// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/api/v2alpha1"
)

// driver looks at the network driver's configurations, and at the parameters that claims and
// device classes give its devices.
func (l *linter) driver() {
	var all []driverObject
	for _, file := range l.files {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
			all = append(all, driverObjects(file, l.text[file])...)
		}
	}
	drivers := map[string]bool{v2alpha1.DefaultDriverName: true}
	for _, o := range all {
		l.add(o.configuration(drivers)...)
	}
	for _, o := range all { // once the drivers' names are known
		l.add(o.claim(drivers)...)
	}
}

// driverObject is one object of a file; broken documents are told by who reads pods.
type driverObject struct {
	file       string
	from       int // lines of the file before its document
	node       *yaml.Node
	apiVersion string
	kind, name string
}

func driverObjects(file string, data []byte) []driverObject {
	var all []driverObject
	from := 0
	for doc := range split(data) {
		var root yaml.Node
		if yaml.Unmarshal(doc, &root) == nil && len(root.Content) == 1 {
			all = append(all, objectsOf(file, from, root.Content[0], true)...)
		}
		from += bytes.Count(doc, []byte("\n"))
	}
	return all
}

// split cuts a file at the lines that begin a document.
func split(data []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		begin, at := 0, 0
		for line := range bytes.Lines(data) {
			if rest, ok := bytes.CutPrefix(line, []byte("---")); ok && at > begin && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0) {
				if !yield(data[begin:at]) {
					return
				}
				begin = at
			}
			at += len(line)
		}
		yield(data[begin:])
	}
}

func objectsOf(file string, from int, n *yaml.Node, lists bool) []driverObject {
	o := driverObject{file: file, from: from, node: n, apiVersion: scalar(child(n, "apiVersion")), kind: scalar(child(n, "kind"))}
	if items := child(n, "items"); lists && strings.HasSuffix(o.kind, "List") && items != nil {
		var all []driverObject
		for _, item := range items.Content {
			all = append(all, objectsOf(file, from, item, false)...)
		}
		return all
	}
	o.name = scalar(child(child(n, "metadata"), "name"))
	if strings.HasPrefix(o.kind, "ResourceClaim") {
		namespace := scalar(child(child(n, "metadata"), "namespace"))
		if namespace == "" {
			namespace = "default"
		}
		o.name = namespace + "/" + o.name
	}
	return []driverObject{o}
}

// child is the value of a key, nil when there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n = resolved(n); n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return resolved(n.Content[i+1])
		}
	}
	return nil
}

func resolved(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func scalar(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

func (o driverObject) finding(severity string, line int, field, text string) Finding {
	return Finding{Severity: severity, Source: &Source{File: o.file, Line: o.from + line}, Object: o.kind + " " + o.name, Field: field, Text: text}
}

// configuration judges a node or cluster configuration, and notes its driver's name.
func (o driverObject) configuration(drivers map[string]bool) []Finding {
	if o.apiVersion != v2alpha1.GroupVersion().String() {
		return nil
	}
	switch o.kind {
	case v2alpha1.NodeConfigKind:
		var c v2alpha1.CiliumNetworkDriverNodeConfigSpec
		return o.spec(&c, drivers, func() (*v2alpha1.CiliumNetworkDriverNodeConfigSpec, *field.Path, error) {
			return &c, field.NewPath("spec"), c.ValidateFor(o.name)
		})
	case v2alpha1.ClusterConfigKind:
		var c v2alpha1.CiliumNetworkDriverClusterConfigSpec
		return o.spec(&c, drivers, func() (*v2alpha1.CiliumNetworkDriverNodeConfigSpec, *field.Path, error) {
			return c.Spec, field.NewPath("spec", "spec"), c.Validate()
		})
	}
	return nil
}

// spec reads the object's spec, and has it judged.
func (o driverObject) spec(into any, drivers map[string]bool, judge func() (*v2alpha1.CiliumNetworkDriverNodeConfigSpec, *field.Path, error)) []Finding {
	spec := child(o.node, "spec")
	if spec == nil {
		return []Finding{o.finding(SeverityFault, o.node.Line, "spec", "is missing")}
	}
	f := fitter{object: o, lines: map[string]int{"metadata.name": lineOf(child(child(o.node, "metadata"), "name"), o.node.Line)}}
	data := []byte("{}")
	if clean := f.fit(spec, reflect.TypeOf(into).Elem(), "spec", spec.Line); clean != nil {
		var plain any
		err := clean.Decode(&plain)
		if err == nil {
			data, err = json.Marshal(plain)
		}
		if err != nil {
			return append(f.found, o.finding(SeverityFault, spec.Line, "spec", err.Error()))
		}
	}
	if err := json.Unmarshal(data, into); err != nil { // such as a number that is too large
		return append(f.found, o.finding(SeverityFault, spec.Line, "spec", err.Error()))
	}
	node, path, err := judge()
	for _, fault := range faultsIn(err) {
		if !f.told(fault.Field) {
			f.found = append(f.found, o.finding(SeverityFault, f.line(fault.Field), fault.Field, fault.ErrorBody()))
		}
	}
	if node != nil {
		if node.DriverName != "" {
			drivers[node.DriverName] = true
		}
		f.doubts(node, path)
	}
	return f.found
}

func lineOf(n *yaml.Node, otherwise int) int {
	if n == nil {
		return otherwise
	}
	return n.Line
}

func faultsIn(err error) []*field.Error {
	var all []*field.Error
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // what errors.Join gives
		for _, one := range joined.Unwrap() {
			if f, ok := errors.AsType[*field.Error](one); ok {
				all = append(all, f)
			}
		}
	}
	return all
}

// claim judges the parameters for the drivers in a claim, a template of claims or a device class.
func (o driverObject) claim(drivers map[string]bool) []Finding {
	at := map[string][]string{"ResourceClaim": {"spec", "devices", "config"}, "ResourceClaimTemplate": {"spec", "spec", "devices", "config"}, "DeviceClass": {"spec", "config"}}[o.kind]
	if at == nil || !strings.HasPrefix(o.apiVersion, "resource.k8s.io/") {
		return nil
	}
	config := o.node
	for _, key := range at {
		config = child(config, key)
	}
	if config == nil || config.Kind != yaml.SequenceNode {
		return nil
	}
	var found []Finding
	for i, entry := range config.Content {
		opaque := child(entry, "opaque")
		if driver := scalar(child(opaque, "driver")); drivers[driver] {
			path := strings.Join(at, ".") + "[" + strconv.Itoa(i) + "].opaque.parameters"
			found = append(found, o.parameters(child(opaque, "parameters"), path, lineOf(opaque, o.node.Line))...)
		}
	}
	return found
}

func (o driverObject) parameters(n *yaml.Node, path string, line int) []Finding {
	if n == nil {
		return []Finding{o.finding(SeverityFault, line, path, "is missing")}
	}
	lines := map[string]int{"": n.Line}
	raw := []byte("null")
	if n.Kind == yaml.MappingNode {
		// Member by member: a decoder would not take two of one name, and the parser tells them.
		var members []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			var value any
			if err := n.Content[i+1].Decode(&value); err != nil {
				return []Finding{o.finding(SeverityFault, n.Content[i].Line, path, err.Error())}
			}
			text, err := json.Marshal(value)
			if err != nil {
				return []Finding{o.finding(SeverityFault, n.Content[i].Line, path, err.Error())}
			}
			key, _ := json.Marshal(n.Content[i].Value) //nolint:errchkjson // a string
			members = append(members, string(key)+":"+string(text))
			lines[n.Content[i].Value] = n.Content[i].Line
		}
		raw = []byte("{" + strings.Join(members, ",") + "}")
	}
	_, err := v2alpha1.ParseParameters(raw)
	return o.parameterFaults(err, path, lines)
}

func (o driverObject) parameterFaults(err error, path string, lines map[string]int) []Finding {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // what errors.Join gives
		var all []Finding
		for _, one := range joined.Unwrap() {
			all = append(all, o.parameterFaults(one, path, lines)...)
		}
		return all
	}
	fault, ok := errors.AsType[*v2alpha1.ParameterError](err)
	if !ok {
		return nil
	}
	at := path
	if fault.Key != "" {
		at += "." + fault.Key
	}
	line, ok := lines[fault.Key]
	if !ok {
		line = lines[""]
	}
	return []Finding{o.finding(SeverityFault, line, at, fault.Text)}
}
