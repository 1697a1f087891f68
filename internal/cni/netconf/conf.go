// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
)

// warning is what a setter returns for a value that it could do without.
type warning string

func (w warning) Error() string { return string(w) }

// Parse reads Weft's own configuration. Its faults are *fault.Fault of code 7, all of
// them joined, each with the key; warnings come with a usable Conf and with faults
// alike. b must not change afterwards.
func Parse(b []byte) (*Conf, []fault.Warning, error) {
	p := parser{Parser: &Parser{}, object: "configuration"}
	o := p.whole(b, "")
	if o == nil {
		return nil, nil, errors.Join(p.faults...)
	}
	if raw, ok := o.Get("name"); ok {
		if name, err := Decode[string](raw, "a string"); err == nil && name != "" {
			p.object += " " + fault.Bound(name, maxName)
		}
	}
	r := reader{parser: p, conf: Defaults()}
	r.conf.Raw = b
	r.read(o)
	r.check()
	if len(r.faults) > 0 {
		return nil, r.warnings, errors.Join(r.faults...)
	}
	return r.conf, r.warnings, nil
}

// reader fills a Conf.
type reader struct {
	parser
	conf     *Conf
	warnings []fault.Warning
}

func (r *reader) warn(key, format string, args ...any) {
	r.warnings = append(r.warnings, fault.Warning{Object: r.object, Field: key, Text: fmt.Sprintf(format, args...)})
}

// read decodes every key that is written, once, in the order of the table.
func (r *reader) read(o *Object) {
	table := fields()
	values := r.known(o, table)
	for _, f := range table {
		raw, ok := values[f.Name]
		if !ok || f.set == nil {
			continue
		}
		err := f.set(r.conf, raw)
		if w, ok := errors.AsType[warning](err); ok {
			r.warn(f.Name, "%s", string(w))
		} else if err != nil {
			r.fault(f.Name, "%w", err)
		}
	}
	if raw, ok := values["delegates"]; ok {
		r.delegates(raw)
	}
}

func (r *reader) known(o *Object, table []field) map[string]json.RawMessage {
	names := make([]string, len(table))
	for i, f := range table {
		names[i] = f.Name
	}
	values := make(map[string]json.RawMessage, len(names))
	Known(values, o, names, func(key, text string) { r.warn(key, "%s", text) })
	return values
}

func (r *reader) delegates(raw json.RawMessage) {
	if r.conf.ClusterNetwork != "" {
		r.warn("delegates", "is ignored, because clusterNetwork is set")
		return
	}
	elements, err := elementsOf(raw)
	if err != nil {
		r.fault("delegates", "%w", err)
		return
	}
	for i, e := range elements {
		p := parser{Parser: &Parser{}, object: r.object}
		n := p.network(e)
		r.faults = append(r.faults, Within(fmt.Sprintf("delegates[%d]", i), p.faults...)...)
		r.conf.Delegates = append(r.conf.Delegates, n)
	}
	if len(r.faults) > 0 {
		r.conf.Delegates = nil
	}
}

// check holds what concerns several keys.
func (r *reader) check() {
	c := r.conf
	if !KnownVersion(c.CNIVersion) {
		r.fault("cniVersion", "%s is none of %s", fault.Quote(c.CNIVersion), strings.Join(Versions(), ", "))
	}
	if c.Name != "" {
		if err := NetworkName(c.Name); err != nil {
			r.fault("name", "%s %w", fault.Quote(c.Name), err)
		}
	}
	if len(r.faults) == 0 && c.ClusterNetwork == "" && len(c.Delegates) == 0 {
		r.fault("", "names no default network: neither clusterNetwork nor delegates is set")
	}
	if !c.NamesCluster() && len(c.DefaultNetworks) > 0 {
		r.warn("defaultNetworks", "is ignored, because clusterNetwork is not set")
	}
	for i, name := range c.DefaultNetworks {
		if name == "" {
			r.fault(fmt.Sprintf("defaultNetworks[%d]", i), "is empty")
		}
	}
}

// Within puts the faults of a part under the field that holds it.
func Within(field string, faults ...error) []error {
	moved := make([]error, 0, len(faults))
	for _, err := range faults {
		for _, f := range fault.All(err) {
			inner := *f
			inner.Field = join(field, f.Field)
			moved = append(moved, &inner)
		}
	}
	return moved
}

func join(outer, inner string) string {
	switch {
	case inner == "":
		return outer
	case inner[0] == '[':
		return outer + inner
	}
	return outer + "." + inner
}
