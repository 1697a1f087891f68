// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weftnet/weft/internal/cni/fault"
)

// decoder takes one file apart.
type decoder struct {
	file     string
	config   Config
	fields   map[string]field
	sections map[string]bool
	faults   []error
}

func decode(file string, data []byte) (Config, []error) {
	d := &decoder{file: file, config: Defaults(), fields: map[string]field{}, sections: map[string]bool{}}
	for _, f := range fields() {
		d.fields[f.Name] = f
		if section, _, nested := strings.Cut(f.Name, "."); nested {
			d.sections[section] = true
		}
	}
	d.document(data)
	return d.config, d.faults
}

// fail notes a fault of a key that stands in a line (0 = unknown).
func (d *decoder) fail(line int, key, format string, args ...any) {
	d.faults = append(d.faults, &Fault{d.place(line), key, fmt.Sprintf(format, args...)})
}

func (d *decoder) place(line int) string {
	if line == 0 {
		return d.file
	}
	return fmt.Sprintf("%s:%d", d.file, line)
}

func (d *decoder) document(data []byte) {
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return // an empty file, or one with comments alone: the defaults
	case err != nil:
		d.fail(0, "", "is no YAML: %s", fault.Bound(strings.TrimPrefix(err.Error(), "yaml: "), 256))
		return
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		line := second.Line
		d.fail(line, "", "has something after the first document")
	}
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 && !null(doc.Content[0]) {
		d.mapping(doc.Content[0], "")
	}
}

// mapping takes the top of the file ("") or a section.
func (d *decoder) mapping(n *yaml.Node, section string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n.Line, section, "is %s, keys with values are needed", kind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			d.fail(key.Line, section, "has a key that is %s, a string is needed", kind(key))
			continue
		}
		path := key.Value
		if section != "" {
			path = section + "." + key.Value
		}
		if line, twice := seen[key.Value]; twice {
			d.fail(key.Line, shown(path), "is written twice, first in line %d", line)
			continue
		}
		seen[key.Value] = key.Line
		d.member(path, key, value)
	}
}

// member takes one key and its value. Null is as good as not written.
func (d *decoder) member(path string, key, value *yaml.Node) {
	f, known := d.fields[path]
	known = known && !strings.Contains(key.Value, ".") // a section's keys stand inside it
	name, inCNI := strings.CutPrefix(path, "cni.")
	inCNI = inCNI && name == key.Value
	switch {
	case key.Value == path && d.sections[path]:
		if !null(value) {
			d.mapping(value, path)
		}
	case known && null(value):
	case known:
		if err := f.set(&d.config, value); err != nil {
			d.fail(value.Line, path, "%v", err)
			return
		}
		d.config.origins[path] = d.place(value.Line)
	case inCNI && confKey(name):
		if why := refused(name); why != "" {
			d.fail(key.Line, path, "%s", why)
			return
		}
		d.confMember(name, value)
	default:
		d.fail(key.Line, shown(path), "is no key of the agent%s", d.hint(path))
	}
}

// confMember takes a key for the published configuration.
func (d *decoder) confMember(name string, value *yaml.Node) {
	if null(value) {
		return
	}
	plain, err := toJSON(value, 0)
	var raw []byte
	if err == nil {
		raw, err = json.Marshal(plain)
	}
	if err != nil {
		d.fail(value.Line, "cni."+name, "%v", err)
		return
	}
	d.config.CNI.Conf[name] = raw
	d.config.origins["cni."+name] = d.place(value.Line)
}

// hint names the key that was probably meant.
func (d *decoder) hint(path string) string {
	section, name, nested := strings.Cut(path, ".")
	if !nested {
		section, name = "", path
	}
	for _, k := range Keys() {
		last := k.Name[strings.LastIndexByte(k.Name, '.')+1:]
		if k.Name != path && (strings.EqualFold(k.Name, path) || strings.EqualFold(last, name)) {
			return "; " + k.Name + " is one"
		}
	}
	for _, k := range ConfKeys() {
		if name := "cni." + k; strings.EqualFold(name, path) || !nested && section == "" && strings.EqualFold(k, path) {
			return "; " + name + " is one"
		}
	}
	return ""
}

// shown is a key that somebody else wrote, as a fault may print it.
func shown(path string) string { return fault.Bound(path, 128) }

func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kind names what a node is, for a message.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which is not taken here"
	default:
	}
	switch n.ShortTag() {
	case "!!str":
		return "the text " + fault.Quote(n.Value)
	case "!!int", "!!float":
		return "the number " + fault.Bound(n.Value, 64)
	case "!!bool":
		return "the truth value " + fault.Bound(n.Value, 64)
	case "!!null":
		return "empty"
	}
	return "a value of type " + fault.Bound(n.ShortTag(), 64)
}
