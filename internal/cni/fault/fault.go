// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fault is how the rooms of internal/cni say what is wrong: a CNI error
// code, the object, the field in it, and a text for the person who has to mend it.
//
// Invariants: a Fault's text is one line, its quotations are bounded and
// printable whatever bytes a user supplied, and it never says "not found"
// (containerd reads those words in a DEL error as success).
//
// It imports the standard library only, and knows nothing of CNI's wire form:
// the one function that maps a Fault to a CNI error is at the edge, in attach.
//
// Implements: spec/cni.md rule 2; architecture 4.1 (error codes).
package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Code is a CNI error code (CNI SPEC section 5). The zero value is invalid.
type Code uint

// The codes that Weft itself answers. Delegates' codes are passed through.
const (
	// UnknownContainer: CHECK of a sandbox that no finished ADD is recorded of.
	UnknownContainer Code = 3
	// Environment: a CNI_* variable is missing or malformed.
	Environment Code = 4
	// Config: somebody must change something (annotation, NAD, configuration).
	Config Code = 7
	// TryLater: time may mend it.
	TryLater Code = 11
	// Unavailable and Limited are STATUS answers.
	Unavailable Code = 50
	Limited     Code = 51
	// Codes of Weft's own, described in docs/errors.md.
	Internal Code = 100 // a fault of Weft itself
	State    Code = 101 // the state directory cannot be read or written
	Result   Code = 102 // a delegate's answer is no CNI result
	Routes   Code = 103 // a default route could not be set, or read back
	Delegate Code = 104 // a delegate could not be started, was killed, or exited without a CNI error
)

// Fault is one thing wrong with one object.
type Fault struct {
	Code Code
	// Object is what carries the fault: "pod default/web", "NetworkAttachmentDefinition default/neta",
	// "configuration m", "file /etc/cni/multus/net.d/10-a.conf".
	Object string
	// Field is the path inside the object, "" when the whole object is meant:
	// "annotation k8s.v1.cni.cncf.io/networks[2].mac", "spec.config plugins[0].type".
	Field string
	// Text says what is wrong, quoting what it cites with Quote.
	Text string
	// Err is the cause, if there is one.
	Err error
}

// Warning is something worth telling that stops nothing.
type Warning struct {
	Object string `json:"object"`
	Field  string `json:"field,omitempty"`
	Text   string `json:"text"`
}

// MaxText bounds the text of one Fault, in bytes (architecture 4.1).
const MaxText = 4 << 10

// maxQuoted is how many runes of cited text a message repeats.
const maxQuoted = 64

// New makes a Fault; args are wrapped in format as by fmt.Errorf, so that a %w
// among them becomes Err. object and field may be "".
func New(code Code, object, field, format string, args ...any) *Fault {
	err := fmt.Errorf(format, args...)
	return &Fault{Code: code, Object: object, Field: field, Text: err.Error(), Err: errors.Unwrap(err)}
}

// Error is one printable line of at most MaxText bytes: object, field and text.
func (f *Fault) Error() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{f.Object, f.Field, f.Text} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return Hyphenate(Bound(strings.Join(parts, ": "), MaxText))
}

// Unwrap gives the cause.
func (f *Fault) Unwrap() error { return f.Err }

// Quote cites s in a message: quoted, printable, at most 64 runes and then "…".
func Quote(s string) string {
	n := 0
	for i := range s {
		if n == maxQuoted {
			return strconv.Quote(s[:i] + "…")
		}
		n++
	}
	return strconv.Quote(s)
}

// Bound makes s one line of printable UTF-8 of at most max bytes; what was cut
// off is shown as "…".
func Bound(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case !unicode.IsPrint(r): // also what a broken UTF-8 sequence decodes to, were it not printable
			return '\uFFFD'
		}
		return r
	}, s)
	if len(s) <= limit {
		return s
	}
	const more = "…"
	if limit < len(more) {
		return ""
	}
	cut := limit - len(more)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + more
}

// Hyphenate turns "not found", in any case, into "not-found": a runtime takes the former
// for success on DEL. A delegate's words need it there, a Fault's own are never without.
func Hyphenate(s string) string {
	const words = "not found"
	var b []byte
	for i := 0; i+len(words) <= len(s); i++ {
		if !strings.EqualFold(s[i:i+len(words)], words) {
			continue
		}
		if b == nil {
			b = []byte(s)
		}
		b[i+len("not")] = '-'
	}
	if b == nil {
		return s
	}
	return string(b)
}

// All gives every Fault in err, walking wrapped and joined errors in order.
func All(err error) []*Fault {
	switch e := err.(type) { //nolint:errorlint // this is the walk that errors.As does not offer
	case nil:
		return nil
	case *Fault:
		return []*Fault{e}
	case interface{ Unwrap() []error }:
		var all []*Fault
		for _, inner := range e.Unwrap() {
			all = append(all, All(inner)...)
		}
		return all
	default:
		return All(errors.Unwrap(err))
	}
}
