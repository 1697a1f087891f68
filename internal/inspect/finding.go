// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/manifests"
)

// Source is a place in a file.
type Source struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"` // from 1; 0 when no line is known
}

func (s *Source) String() string {
	switch {
	case s == nil:
		return ""
	case s.Line == 0:
		return s.File
	}
	return fmt.Sprintf("%s:%d", s.File, s.Line)
}

// Severities of a Finding.
const (
	SeverityFault   = "fault"
	SeverityWarning = "warning"
)

// Finding is one fault or warning.
type Finding struct {
	Severity string  `json:"severity"`
	Source   *Source `json:"source,omitempty"` // absent when it stands in none of the files
	Object   string  `json:"object"`
	Field    string  `json:"field,omitempty"`
	Text     string  `json:"text"`
	Code     uint    `json:"code,omitempty"` // CNI error code with which an ADD would fail
}

// Write prints a finding as compilers do, so that editors find the place.
func (f Finding) Write(w io.Writer) error {
	text := (&fault.Fault{Object: f.Object, Field: f.Field, Text: f.Text}).Error()
	if f.Source != nil {
		text = f.Source.String() + ": " + f.Severity + ": " + text
	} else {
		text = f.Severity + ": " + text
	}
	_, err := fmt.Fprintln(w, Printable(text))
	return err
}

// faults gives every fault in err with its place.
func (w *World) faults(err error) []Finding {
	var all []Finding
	for _, f := range fault.All(err) {
		at := -1
		if syntax, ok := errors.AsType[*json.SyntaxError](f.Err); ok {
			at = int(syntax.Offset) - 1
		}
		all = append(all, Finding{
			Severity: SeverityFault, Source: w.source(f.Object, f.Field, f.Text, at),
			Object: f.Object, Field: f.Field, Text: f.Text, Code: uint(f.Code),
		})
	}
	return all
}

func (w *World) warning(v fault.Warning) Finding {
	return Finding{Severity: SeverityWarning, Source: w.source(v.Object, v.Field, v.Text, -1), Object: v.Object, Field: v.Field, Text: v.Text}
}

// source finds where a field of an object stands. A text that begins with an index is
// about that element of the field's value; at, unless -1, is the byte of the value that
// is meant. nil when no file holds the object.
func (w *World) source(object, field, text string, at int) *Source {
	s, ok := w.subjects[object]
	if !ok {
		return nil
	}
	if _, rest, ok := index(text + " "); ok && field != "" && strings.HasPrefix(rest, " ") {
		field += text[:len(text)-len(rest)+1]
	}
	if s.marks == nil {
		return s.inConf(field, at)
	}
	key, inner := s.value(field)
	mark, ok := s.marks[key]
	if !ok {
		return &Source{File: s.file, Line: s.line}
	}
	value := s.values[key]
	lead := 0
	if key != "spec.config" { // annotations are read without the space around them
		lead = spaces(value)
	}
	if at >= 0 {
		at += lead
	} else {
		at = lead + offset(value[lead:], inner)
	}
	return &Source{File: s.file, Line: lineAt(w.text[s.file], mark, value, min(at, len(value)-1))}
}

// value splits a field of a manifest into the path of the string that holds it and the
// field inside that string.
func (s subject) value(field string) (key, inner string) {
	if rest, ok := strings.CutPrefix(field, "annotation "); ok {
		field = "metadata.annotations." + rest
	}
	for mark := range s.marks {
		rest, ok := strings.CutPrefix(field, mark)
		if ok && len(mark) > len(key) && (rest == "" || strings.IndexByte(" [.", rest[0]) >= 0) {
			key, inner = mark, rest
		}
	}
	return key, inner
}

// inConf finds a field of a CNI configuration.
func (s subject) inConf(field string, at int) *Source {
	if s.prefix != "" && field != "name" && field != "cniVersion" {
		field = s.prefix + "." + field
	}
	if at < 0 {
		at = offset(s.text, field)
	}
	at = max(0, min(at, len(s.text)))
	return &Source{File: s.file, Line: 1 + strings.Count(s.text[:at], "\n")}
}

// problem is a finding about a manifest as such. What is skipped would be refused by an
// API server.
func (w *World) problem(p manifests.Problem) Finding {
	severity := SeverityWarning
	if p.Skipped {
		severity = SeverityFault
	}
	f := Finding{
		Severity: severity, Source: &Source{File: p.Place.File, Line: p.Place.Line},
		Object: "document", Field: p.Field, Text: strings.TrimPrefix(p.Text, "document "), // said by Object
	}
	if f.Field == f.Object {
		f.Field = ""
	}
	return f
}
