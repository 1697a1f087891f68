// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/weftnet/weft/vmistatus"
)

// Output is a merged status as it is shown. Its JSON form is stable.
type Output struct {
	Interfaces []vmistatus.Interface `json:"interfaces"`
	Warnings   []string              `json:"warnings"`
	Explain    []Entry               `json:"explain,omitempty"`
}

// Entry explains one of the interfaces.
type Entry struct {
	Name     string            `json:"name"`
	Kind     string            `json:"kind"`
	Values   []vmistatus.Value `json:"values"`
	Rejected []vmistatus.Value `json:"rejected,omitempty"`
}

// Replay merges the bundle.
func (b *Bundle) Replay(explain bool) *Output {
	return NewOutput(vmistatus.Merge(b.Input()), explain)
}

// NewOutput shows a result, on demand with where each value comes from.
func NewOutput(r vmistatus.Result, explain bool) *Output {
	o := &Output{Interfaces: []vmistatus.Interface{}, Warnings: []string{}}
	o.Interfaces = append(o.Interfaces, r.Interfaces...)
	for _, w := range r.Warnings {
		o.Warnings = append(o.Warnings, w.String())
	}
	if !explain {
		return o
	}
	o.Explain = []Entry{}
	for i := range r.Interfaces {
		o.Explain = append(o.Explain, Entry{
			Name: label(&r.Interfaces[i]), Kind: r.Explain[i].Kind.String(), Values: r.Values(i), Rejected: r.RejectedValues(i),
		})
	}
	return o
}

// label names an entry, which need not have a name.
func label(e *vmistatus.Interface) string {
	return cmp.Or(e.Name, e.InterfaceName, e.MAC, "-")
}

// WriteTable prints the interfaces, the warnings and the explanations for a person.
func (o *Output) WriteTable(w io.Writer) error {
	t := table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row("NAME", "MAC", "ADDRESSES", "GUEST", "POD", "SOURCES", "QUEUES", "LINK")
	for i := range o.Interfaces {
		e := &o.Interfaces[i]
		queues := ""
		if e.QueueCount != 0 {
			queues = strconv.Itoa(int(e.QueueCount))
		}
		t.row(e.Name, e.MAC, strings.Join(e.IPs, ","), e.InterfaceName, e.PodInterfaceName, strings.ReplaceAll(e.InfoSource, " ", ""), queues, e.LinkState)
	}
	t.flush()
	for _, text := range o.Warnings {
		t.line("warning: " + printable(text))
	}
	for _, e := range o.Explain {
		t.line("")
		t.line(printable(e.Name) + " (" + e.Kind + ")")
		for _, v := range e.Values {
			t.row("  "+v.Field, v.Value, v.Source, v.Rule)
		}
		for _, v := range e.Rejected {
			t.row("  not "+v.Field, v.Value, v.Source, v.Rule)
		}
		t.flush()
	}
	t.flush()
	return t.err
}

// table prints until the first error.
type table struct {
	w   *tabwriter.Writer
	err error
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = cmp.Or(printable(cells[i]), "-")
	}
	t.line(strings.Join(cells, "\t"))
}

func (t *table) line(text string) {
	if t.err == nil {
		_, t.err = fmt.Fprintln(t.w, text)
	}
}

func (t *table) flush() {
	if t.err == nil {
		t.err = t.w.Flush()
	}
}

// printable has nothing that a terminal or the columns might obey.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
