// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// Parse reads the value of an annotation. A blank one has no elements. Faults
// (*fault.Fault, code 7, joined) and warnings have no Object, and as Field the place
// in the annotation: "[2].mac"; the caller knows what the annotation stands on.
func Parse(annotation string) ([]Element, []fault.Warning, error) {
	elements, warnings, err := Lenient(annotation)
	if err != nil {
		elements = nil
	}
	return elements, warnings, err
}

// Lenient is Parse for who wants to say all that is wrong, also with what an element
// leads to: it gives the elements beside faults as well, each in its place, without the
// values that are at fault. They must not be acted on.
func Lenient(annotation string) ([]Element, []fault.Warning, error) {
	var p parser
	text := strings.TrimSpace(annotation)
	switch {
	case text == "":
	case strings.ContainsAny(text, "[{\""):
		p.array(text)
	default:
		p.list(text)
	}
	return p.elements, p.warnings, errors.Join(p.faults...)
}

type parser struct {
	elements []Element
	warnings []fault.Warning
	faults   []error

	keys   []key // of the JSON form
	names  []string
	values map[string]json.RawMessage // of the element in work
}

func (p *parser) fault(field, format string, args ...any) {
	p.faults = append(p.faults, fault.New(fault.Config, "", field, format, args...))
}

func (p *parser) warn(field, format string, args ...any) {
	p.warnings = append(p.warnings, fault.Warning{Field: field, Text: fmt.Sprintf(format, args...)})
}

// list reads the short form. One comma at the end is allowed, since templates write it.
func (p *parser) list(text string) {
	if text == "null" {
		p.warn("", "null is read as the name of a NetworkAttachmentDefinition")
	}
	items := strings.Split(text, ",")
	if n := len(items); n > 1 && strings.TrimSpace(items[n-1]) == "" {
		items = items[:n-1]
	}
	if p.tooMany(len(items)) {
		return
	}
	for i, item := range items {
		p.item(i, strings.TrimSpace(item))
	}
}

// tooMany tells one fault in place of one for each of a million elements.
func (p *parser) tooMany(n int) bool {
	if n > MaxElements {
		p.fault("", "names %d networks, at most %d are allowed", n, MaxElements)
	}
	return n > MaxElements
}

// item reads [namespace/]name[@interface].
func (p *parser) item(i int, item string) {
	field := fmt.Sprintf("[%d]", i)
	if item == "" {
		p.broken(i, field, "is empty, a network's name is needed")
		return
	}
	network, iface, _ := strings.Cut(item, "@")
	if strings.Contains(iface, "@") {
		p.broken(i, field, "%s holds more than one '@'", fault.Quote(item))
		return
	}
	e := Element{Index: i, Name: strings.TrimSpace(network), Interface: strings.TrimSpace(iface)}
	if ns, name, ok := strings.Cut(network, "/"); ok {
		if strings.Contains(name, "/") {
			p.broken(i, field, "%s holds more than one '/'", fault.Quote(item))
			return
		}
		e.Namespace, e.Name = strings.TrimSpace(ns), strings.TrimSpace(name)
	}
	p.checkNames(&e, field, "", "", "")
	p.elements = append(p.elements, e)
}

// broken is a fault of an element that leaves nothing of it but its place.
func (p *parser) broken(i int, field, format string, args ...any) {
	p.fault(field, format, args...)
	p.elements = append(p.elements, Element{Index: i, Broken: true})
}

// checkNames checks the three names of an element, which go by the same rules in both
// forms. They stand in field, below these keys.
func (p *parser) checkNames(e *Element, field, namespace, name, iface string) {
	if e.Namespace != "" {
		if err := Namespace(e.Namespace); err != nil {
			e.Broken = true
			p.fault(field+namespace, "namespace %s %w", fault.Quote(e.Namespace), err)
		}
	}
	if err := ObjectName(e.Name); err != nil {
		e.Broken = true
		p.fault(field+name, "name %s %w", fault.Quote(e.Name), err)
	}
	if e.Interface != "" {
		if err := InterfaceName(e.Interface); err != nil {
			p.fault(field+iface, "interface name %s %w", fault.Quote(e.Interface), err)
			e.Interface = ""
		}
	}
}

// array reads the JSON form.
func (p *parser) array(text string) {
	elements, err := netconf.Elements([]byte(text))
	if err != nil {
		p.fault("", "%w", err)
		return
	}
	if p.tooMany(len(elements)) {
		return
	}
	p.keys = keys()
	p.names = names(p.keys)
	p.values = make(map[string]json.RawMessage, len(p.names))
	p.elements = make([]Element, 0, len(elements))
	var o netconf.Object
	for i, raw := range elements {
		if err := o.Reset(raw); err != nil {
			p.broken(i, fmt.Sprintf("[%d]", i), "%w", err)
			continue
		}
		p.object(i, &o)
	}
}
