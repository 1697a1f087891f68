// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logs makes a program's logger: slog, as JSON or text.
//
// Invariants: a record is one line and one write; no bearer token, JSON web token or
// private key leaves the process by it, whoever logged it and in whatever value.
//
// It must not know who logs: it looks at the line that is about to be written, because the
// libraries that the agent stands on put what a server said into errors and those into logs.
//
// Implements: architecture 4.4 (log).
package logs

import (
	"bytes"
	"io"
	"log/slog"
	"regexp"
)

// Redacted stands where a secret was.
const Redacted = "[redacted]"

// New makes a logger that writes to w; format is json or text.
func New(w io.Writer, level slog.Level, format string) *slog.Logger {
	w = newRedactor(w)
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: byKey}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// byKey takes values away whose key says that they are secret.
func byKey(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case "token", "password", "secret", "authorization", "Authorization":
		a.Value = slog.StringValue(Redacted)
	}
	return a
}

// Redact gives what takes the secrets out of a text that leaves by another way than the log.
func Redact() func(string) string {
	r := newRedactor(io.Discard)
	return func(text string) string {
		if !r.suspect([]byte(text)) {
			return text
		}
		return r.secrets.ReplaceAllString(text, Redacted)
	}
}

// redactor is a writer of whole records.
type redactor struct {
	w       io.Writer
	secrets *regexp.Regexp
}

func newRedactor(w io.Writer) *redactor {
	return &redactor{w: w, secrets: regexp.MustCompile(
		`(?i:bearer) +[A-Za-z0-9._~+/=-]+` + // an Authorization header's
			`|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?` + // a JSON web token's, of a service account
			`|-----BEGIN [A-Z ]*PRIVATE KEY-----[^"]*`, // of a kubeconfig; JSON and text quote what has spaces
	)}
}

func (r *redactor) Write(line []byte) (int, error) {
	out := line
	if r.suspect(line) {
		out = r.secrets.ReplaceAll(line, []byte(Redacted))
	}
	if _, err := r.w.Write(out); err != nil {
		return 0, err
	}
	return len(line), nil
}

// suspect is quicker than the expression, and never wrong when it says no.
func (r *redactor) suspect(line []byte) bool {
	return bytes.Contains(line, []byte("eyJ")) || bytes.Contains(line, []byte("PRIVATE KEY")) ||
		bytes.Contains(bytes.ToLower(line), []byte("bearer "))
}
