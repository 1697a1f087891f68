// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

const (
	nadKind  = "NetworkAttachmentDefinition"
	nadGroup = "k8s.cni.cncf.io"

	// maxListDepth bounds lists inside lists, which aliases could make endless.
	maxListDepth = 3
	// maxObjects and maxFields bound what one document's lists, and one object's
	// merges, may add up to, for the same reason.
	maxObjects = 1 << 16
	maxFields  = 1 << 16
)

// parser reads one file.
type parser struct {
	set     *Set
	file    string
	offset  int // lines before the document that is being read
	objects int // seen in this document
}

func (p *parser) place(n *yaml.Node) Place {
	return Place{File: p.file, Line: p.offset + max(1, n.Line)}
}

func (p *parser) warnAt(pl Place, field, format string, args ...any) {
	p.set.problem(pl, true, field, format, args...)
}

// parse reads the documents, each on its own: a broken one must not take the next with it.
func (p *parser) parse(data []byte) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	for len(data) > 0 {
		size := documentSize(data)
		p.objects = 0
		p.document(data[:size])
		p.offset += bytes.Count(data[:size], []byte("\n"))
		data = data[size:]
	}
}

// documentSize is how much of data belongs to the first document: up to the next
// line, but for the first, that starts with the separator.
func documentSize(data []byte) int {
	for at := 0; ; {
		i := bytes.Index(data[at:], []byte("\n---"))
		if i < 0 {
			return len(data)
		}
		at += i + 1
		if rest := data[at+3:]; len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0 {
			return at
		}
	}
}

func (p *parser) document(doc []byte) {
	text := bytes.TrimLeft(doc, " \t\r\n")
	if after, ok := bytes.CutPrefix(text, []byte("---")); ok {
		text = bytes.TrimLeft(after, " \t\r\n")
	}
	if bytes.HasPrefix(text, []byte("{")) && p.json(text, bytes.Count(doc[:len(doc)-len(text)], []byte("\n"))) {
		return
	}
	lines := yamlLines(doc)
	var n yaml.Node
	if err := yaml.Unmarshal(doc, &n); err != nil {
		p.broken(err, lines)
		return
	}
	if lines.other {
		lines.renumber(&n)
	}
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		p.object(n.Content[0], "", 0)
	}
}

// broken warns of a document that is no YAML, at the line of the file that the
// parser stumbled over. It has that only as text, counted from the document's
// start, from 1 by its scanner and from 0 ("did not find …") by its grammar.
func (p *parser) broken(err error, lines lineMap) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		number, message, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			line, text = n, message
			if strings.HasPrefix(message, "did not find") {
				line++
			}
		}
	}
	p.warnAt(Place{File: p.file, Line: p.offset + lines.line(line)}, "", "document is no YAML and is skipped: %s", fault.Bound(text, 256))
}

// json reads JSON values that follow one another; lines is how many lines of the
// document stand before them. It returns false when YAML has to be tried instead.
func (p *parser) json(text []byte, lines int) bool {
	d := newJSONDecoder(text, lines)
	for first := true; ; first = false {
		n, err := d.next()
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			if first && filepath.Ext(p.file) != ".json" {
				return false
			}
			p.warnAt(Place{File: p.file, Line: p.offset + d.line()}, "", "document is no JSON and is skipped: %s", fault.Bound(err.Error(), 256))
			return true
		}
		p.object(n, "", 0)
	}
}

// object takes one object in; kind is what the items of a typed list are, "" elsewhere.
func (p *parser) object(n *yaml.Node, kind string, depth int) {
	n = target(n)
	if isNull(n) {
		return // an empty document
	}
	place := p.place(n)
	if p.objects++; p.objects > maxObjects {
		if p.objects == maxObjects+1 {
			p.warnAt(place, "", "document holds more than %d objects; the others are skipped", maxObjects)
		}
		return
	}
	v := &view{offset: p.offset}
	if p.set.Inspect != nil {
		v.marks = map[string]Mark{}
	}
	top := v.object(n, "document")
	apiVersion := v.text(top, "", "apiVersion")
	if k := v.text(top, "", "kind"); k != "" {
		kind = k
	}
	if v.err == nil {
		p.take(v, top, kind, typed{apiVersion: apiVersion, place: place, depth: depth})
	}
	if v.err != nil {
		p.warnAt(v.place(place), v.field, "%v; the object is skipped", v.err)
	}
}

// typed is what is known of an object besides its kind.
type typed struct {
	apiVersion string
	place      Place
	depth      int // of lists around it
}

// group tells whether the object is of an API group; items of a typed list may
// leave their apiVersion out.
func (o typed) group(want string) bool {
	group, _, _ := strings.Cut(o.apiVersion, "/")
	return group == want || o.apiVersion == "" && o.depth > 0
}

// take takes an object in by its kind.
func (p *parser) take(v *view, top map[string]*yaml.Node, kind string, o typed) {
	switch {
	case kind == "":
		v.fail("kind", "is missing")
	case kind == "Pod" && o.group("v1"): // the core group has no name: this is its version
		p.pod(v, top, o.place)
	case kind == "Pod":
		v.fail("apiVersion", "of a Pod is v1, not %s", fault.Quote(o.apiVersion))
	case kind == nadKind && o.group(nadGroup):
		p.nad(v, top, o.place)
	case kind == nadKind:
		v.fail("apiVersion", "of a %s is %s/v1, not %s", nadKind, nadGroup, fault.Quote(o.apiVersion))
	case strings.HasSuffix(kind, "List") && top["items"] != nil:
		p.list(v, top["items"], strings.TrimSuffix(kind, "List"), o.depth)
	}
}

func (p *parser) list(v *view, items *yaml.Node, kind string, depth int) {
	items = target(items)
	switch {
	case isNull(items):
		return
	case items.Kind != yaml.SequenceNode:
		v.fail("items", "is no list")
		return
	case depth >= maxListDepth:
		v.fail("items", "stands in too many lists")
		return
	}
	for _, item := range items.Content {
		p.object(item, kind, depth+1)
		if p.objects > maxObjects {
			return
		}
	}
}

func (p *parser) pod(v *view, top map[string]*yaml.Node, place Place) {
	m := v.metadata(top)
	if v.err != nil {
		return
	}
	pod := Pod{Place: place, Pod: plan.Pod{Namespace: m.namespace, Name: m.name, UID: m.uid, Annotations: m.annotations}}
	if v.marks != nil {
		pod.Marks = v.marks
		pod.Limits, pod.Claims = limits(top["spec"])
	}
	p.set.addPod(pod)
}

func (p *parser) nad(v *view, top map[string]*yaml.Node, place Place) {
	m := v.metadata(top)
	spec := v.object(top["spec"], "spec")
	config := v.text(spec, "spec.", "config")
	if v.err == nil {
		p.set.addNAD(NAD{
			Place: place, Marks: v.marks, Ref: plan.NADRef{Namespace: m.namespace, Name: m.name},
			NAD: plan.NAD{Found: true, Config: config, ResourceName: m.annotations[plan.ResourceNameAnnotation]},
		})
	}
}

// metadata is what is read of an object's metadata.
type metadata struct {
	namespace, name, uid string
	annotations          map[string]string
}

func (v *view) metadata(top map[string]*yaml.Node) metadata {
	meta := v.object(top["metadata"], "metadata")
	m := metadata{
		namespace: v.text(meta, "metadata.", "namespace"),
		name:      v.text(meta, "metadata.", "name"),
		uid:       v.text(meta, "metadata.", "uid"),
	}
	if m.namespace == "" {
		m.namespace = "default"
	}
	if m.name == "" {
		v.fail("metadata.name", "is missing")
	}
	annotations := v.object(meta["annotations"], "metadata.annotations")
	if len(annotations) > 0 {
		m.annotations = make(map[string]string, len(annotations))
	}
	for key := range annotations {
		m.annotations[key] = v.text(annotations, "metadata.annotations.", key)
	}
	return m
}

// view reads fields of an object and remembers the first thing that is wrong.
type view struct {
	field  string
	err    error
	seen   int             // fields looked at
	offset int             // lines before the document
	at     int             // line in the document of what failed, 0 = unknown
	marks  map[string]Mark // nil when nobody asks
}

// place is that of what failed, where it is known to whoever asks for marks; otherwise that of the object.
func (v *view) place(object Place) Place {
	if v.marks != nil && v.at > 0 {
		object.Line = v.offset + v.at
	}
	return object
}

// failAt is fail for what stands at n.
func (v *view) failAt(n *yaml.Node, field, format string, args ...any) {
	if v.err == nil {
		v.at = n.Line
	}
	v.fail(field, format, args...)
}

func (v *view) fail(field, format string, args ...any) {
	if v.err == nil {
		v.field, v.err = field, fmt.Errorf(format, args...)
	}
}

// object returns the fields of a mapping; absent and null are an empty one.
func (v *view) object(n *yaml.Node, field string) map[string]*yaml.Node {
	out := map[string]*yaml.Node{}
	v.fields(out, n, field, 0)
	return out
}

// fields collects the fields of n, and those that it merges in (<<) and does not set itself.
func (v *view) fields(out map[string]*yaml.Node, n *yaml.Node, field string, depth int) {
	n = target(n)
	if isNull(n) {
		return
	}
	v.seen += 1 + len(n.Content)/2
	switch {
	case n.Kind != yaml.MappingNode:
		v.failAt(n, field, "is no object")
		return
	case depth > maxListDepth || v.seen > maxFields:
		v.fail(field, "merges too many objects")
		return
	}
	own := make(map[string]bool, len(n.Content)/2)
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := target(n.Content[i]), n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode:
			v.fail(field, "has a key that is no string")
		case key.Tag == "!!merge":
			merged = append(merged, value)
		case own[key.Value]:
			v.failAt(key, field, "has the key %s twice", fault.Quote(key.Value))
		default:
			own[key.Value] = true
			if _, ok := out[key.Value]; !ok {
				out[key.Value] = value
			}
		}
	}
	for _, m := range merged {
		if m = target(m); m.Kind != yaml.SequenceNode {
			v.fields(out, m, field, depth+1)
			continue
		}
		for _, one := range m.Content {
			v.fields(out, one, field, depth+1)
		}
	}
}

// text returns a string field; absent and null are "".
func (v *view) text(fields map[string]*yaml.Node, prefix, key string) string {
	n := target(fields[key])
	if isNull(n) {
		return ""
	}
	if n.Kind != yaml.ScalarNode {
		v.failAt(n, prefix+fault.Bound(key, 64), "is no string; a list or an object is written as a block after a |")
		return ""
	}
	if v.marks != nil {
		v.marks[prefix+key] = Mark{Line: v.offset + n.Line, Column: n.Column}
	}
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp": // an unquoted date is a string to Kubernetes
		return n.Value
	default:
		v.failAt(n, prefix+fault.Bound(key, 64), "is no string but %s %s: quote it", strings.TrimPrefix(tag, "!!"), fault.Quote(n.Value))
		return ""
	}
}

// target follows an alias to what it stands for.
func target(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == 0 || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}
