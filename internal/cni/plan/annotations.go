// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/selection"
)

// readAnnotations parses what the pod asks for and checks all that needs nobody else:
// numbers, isolation, and what the default network cannot be asked.
func (p *planner) readAnnotations() {
	if p.in.Pod == nil {
		return
	}
	def := p.elements(DefaultNetworkAnnotation)
	switch {
	case len(def) > 1:
		p.fault("annotation "+DefaultNetworkAnnotation, "names %d networks, one is needed", len(def))
	case len(def) == 1:
		p.def = &def[0]
		if p.def.Namespace == "" {
			p.def.Namespace = p.conf.MultusNamespace
			p.explainNamespace(DefaultNetworkAnnotation, p.def)
		}
		if p.def.Interface != "" {
			p.fault(place(DefaultNetworkAnnotation, 0), "asks for the interface name %s; the default network's is the runtime's, %s",
				fault.Quote(p.def.Interface), fault.Quote(p.in.Sandbox.IfName))
		}
		p.isolate(DefaultNetworkAnnotation, p.def)
	}
	p.asked = p.elements(NetworksAnnotation)
	for i := range p.asked {
		e := &p.asked[i]
		if e.Namespace == "" {
			e.Namespace = p.in.Pod.Namespace
			p.explainNamespace(NetworksAnnotation, e)
		}
		p.isolate(NetworksAnnotation, e)
	}
}

// elements parses one annotation. An absent, a blank and an empty one are the same.
func (p *planner) elements(annotation string) []selection.Element {
	elements, warnings, err := selection.Lenient(p.in.Pod.Annotations[annotation])
	for _, w := range warnings {
		w.Object, w.Field = p.object, "annotation "+annotation+w.Field
		p.warnings = append(p.warnings, w)
	}
	for _, f := range fault.All(err) {
		f.Object, f.Field = p.object, "annotation "+annotation+f.Field
		p.faults = append(p.faults, f)
	}
	for _, e := range elements {
		if !e.SplitName {
			continue
		}
		const text = "holds a namespace, which belongs in the key namespace"
		if p.conf.Strict {
			p.fault(place(annotation, e.Index)+".name", text)
		} else {
			p.warn(place(annotation, e.Index)+".name", text)
		}
	}
	return elements
}

// isolate keeps a pod from the networks of other namespaces, where that is wanted.
func (p *planner) isolate(annotation string, e *selection.Element) {
	if e.Broken {
		return
	}
	own := p.in.Pod.Namespace
	p.explainIsolation(annotation, e)
	if !p.conf.NamespaceIsolation || e.Namespace == own || slices.Contains(p.conf.GlobalNamespaces, e.Namespace) {
		return
	}
	p.fault(place(annotation, e.Index),
		"names a network of namespace %s, and pods of %s may use only those of their own and of the global namespaces (%s)",
		fault.Quote(e.Namespace), fault.Quote(own), strings.Join(p.conf.GlobalNamespaces, ", "))
	e.Broken = !p.in.Explain // not looked up: whether it exists is nothing for this pod
}
