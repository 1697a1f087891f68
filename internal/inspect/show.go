// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// page prints lines until the first error.
type page struct {
	w   io.Writer
	err error
}

func (p *page) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, Printable(fmt.Sprintf(format, args...)))
	}
}

// Printable is text with U+FFFD in place of what a terminal would act on: what files, the API server
// and hosts say may hold escape sequences. Line breaks stay.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// cell is Printable in one cell of a table.
func cell(text string) string { return Printable(strings.ReplaceAll(text, "\n", " ")) }

// table prints rows in columns.
func (p *page) table(rows [][]string) {
	if p.err != nil {
		return
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = cell(text)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if p.err = w.Flush(); p.err != nil {
		return
	}
	for line := range strings.Lines(b.String()) {
		p.line("%s", strings.TrimRight(line, " \n")) // an empty last cell was filled up
	}
}

func (p *page) findings(indent string, findings []Finding) {
	for _, f := range findings {
		if p.err == nil {
			_, p.err = io.WriteString(p.w, indent)
		}
		if p.err == nil {
			p.err = f.Write(p.w)
		}
	}
}

// WriteTable prints the report, a line a finding.
func (r *Report) WriteTable(w io.Writer) error {
	p := page{w: w}
	p.findings("", r.Faults)
	p.findings("", r.Warnings)
	return p.err
}

// Summary is the report in one line.
func (r *Report) Summary() string {
	return fmt.Sprintf("%s, %s in %s: %s, %s, %s", count(len(r.Faults), "fault"), count(len(r.Warnings), "warning"), count(r.Checked.Files, "file"),
		count(r.Checked.Pods, "pod"), count(r.Checked.Networks, "network"), count(r.Checked.Configurations, "configuration"))
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// WriteTable prints the explanation: pod by pod, attachment by attachment.
func (e *Explanation) WriteTable(w io.Writer) error {
	p := page{w: w}
	p.findings("", e.Problems)
	for _, pod := range e.Pods {
		p.line("%s", strings.TrimRight(fmt.Sprintf("pod %s/%s  %s", pod.Namespace, pod.Name, pod.Source), " "))
		p.table(pod.rows)
		p.decisions("  ", pod.Decisions)
		for i, a := range pod.Attachments {
			plugins := "none"
			if len(a.Plugins) > 0 {
				plugins = strings.Join(a.Plugins, ", ")
			}
			p.line("  %d  %s  %s  (%s)", i, a.Interface, a.Network, plugins)
			p.decisions("     ", a.Decisions)
		}
		p.findings("  ", pod.Warnings)
		p.findings("  ", pod.Faults)
		if pod.OK {
			p.line("  fails: nothing that can be seen here")
		} else {
			first := pod.Faults[0]
			p.line("  fails: before any plugin runs, with code %d, first for the %s", first.Code, strings.TrimSpace(first.Object+" "+first.Field))
		}
		p.line("")
	}
	if len(e.Unseen) > 0 {
		p.line("Not seen from here:")
	}
	for _, text := range e.Unseen {
		p.line("  %s", text)
	}
	return p.err
}

func (p *page) decisions(indent string, all []Decision) {
	rows := make([][]string, len(all))
	for i, d := range all {
		rows[i] = []string{indent + d.Subject, d.Value, d.Reason, d.Source.String()}
	}
	p.table(rows)
}
