// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"fmt"
	"slices"
	"strconv"
)

// Value is one value of an entry with where it comes from, in words.
type Value struct {
	Field  string `json:"field"`
	Value  string `json:"value,omitempty"`
	Source string `json:"source"`
	Rule   string `json:"rule"`
}

// Values explains an entry: every field that has a value, or whose value was taken away by a rule.
func (r *Result) Values(i int) []Value {
	e, why := &r.Interfaces[i], &r.Explain[i]
	queues := ""
	if e.QueueCount != 0 {
		queues = strconv.Itoa(int(e.QueueCount))
	}
	texts := [NumFields]string{
		Name: e.Name, MAC: e.MAC, PodInterfaceName: e.PodInterfaceName, InterfaceName: e.InterfaceName,
		InfoSource: e.InfoSource, QueueCount: queues, LinkState: e.LinkState,
	}
	var values []Value
	for f := range NumFields {
		if f == Addresses {
			values = append(values, addressValues(e, why)...)
		} else if texts[f] != "" {
			values = append(values, why.Fields[f].value(f.String(), texts[f]))
		}
	}
	return values
}

func addressValues(e *Interface, why *Explanation) []Value {
	var values []Value
	for i, ip := range e.IPs {
		o := Origin{}
		if i < len(why.Addresses) {
			o = why.Addresses[i]
		}
		values = append(values, o.value(fmt.Sprintf("%s[%d]", Addresses, i), ip))
	}
	if o := why.Fields[Addresses]; len(e.IPs) == 0 && o.Rule != NoRule {
		values = append(values, o.value(Addresses.String(), ""))
	}
	return values
}

// RejectedValues are what was known of an entry and not used; none without Input.Explain.
func (r *Result) RejectedValues(i int) []Value {
	var values []Value
	for _, j := range r.Explain[i].Rejected {
		values = append(values, j.value(j.Field.String(), j.Value))
	}
	return values
}

func (o Origin) value(field, value string) Value {
	return Value{Field: field, Value: value, Source: o.Source.String(), Rule: o.Rule.String()}
}

// PrecedenceRow is one row of the table of precedence, in words.
type PrecedenceRow struct {
	Kind    string
	Field   string
	Sources []string
	// Except are the sources under pod-authoritative for masquerade, where they differ.
	Except []string
}

// Precedence is the table that the merge takes every value by.
func Precedence() []PrecedenceRow {
	t, except := precedence(FamilyMerge, false), precedence(PodAuthoritative, true)
	var rows []PrecedenceRow
	for k := range NumKinds {
		for f := range NumFields {
			if t[k][f] == (sources{}) {
				continue
			}
			row := PrecedenceRow{Kind: k.String(), Field: f.String(), Sources: t[k][f].words()}
			if e := except[k][f].words(); !slices.Equal(e, row.Sources) {
				row.Except = e
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (s sources) words() []string {
	var words []string
	for _, source := range s {
		if source != NoSource {
			words = append(words, source.String())
		}
	}
	return words
}

// Rules are all rules that can choose or reject a value.
func Rules() []Rule {
	var all []Rule
	for r := FirstSource; r <= NoDomain; r++ {
		all = append(all, r)
	}
	return all
}
