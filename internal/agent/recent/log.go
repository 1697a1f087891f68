// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"context"
	"log/slog"
	"slices"
	"strings"
)

// Handler gives a handler that does what next does, and also notes every warning and error as a
// fault: its part and its pod are the attributes of those names. Redact takes secrets out of
// a text.
func (r *Recent) Handler(next slog.Handler, redact func(string) string) slog.Handler {
	return tap{next: next, to: r, redact: redact}
}

// tap is a handler on the way to another one.
type tap struct {
	next   slog.Handler
	to     *Recent
	redact func(string) string
	with   []slog.Attr // of loggers made from this one
}

// Enabled implements slog.Handler: a fault is noted also where the log leaves it out.
func (t tap) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || t.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (t tap) Handle(ctx context.Context, record slog.Record) error {
	if record.Level >= slog.LevelWarn {
		t.note(record)
	}
	if !t.next.Enabled(ctx, record.Level) {
		return nil
	}
	return t.next.Handle(ctx, record)
}

// note makes a fault of a record. What changes from one time to the next is left out, so that
// the same fault is known again.
func (t tap) note(record slog.Record) {
	var part, pod, namespace string
	text := []string{record.Message}
	take := func(a slog.Attr) bool {
		value := a.Value.Resolve().String()
		switch a.Key {
		case "part":
			part = value
		case "pod":
			pod = value
		case "namespace", "pod_namespace":
			namespace = value
		case "request", "count", "attempts", "next", "stack", "pid":
		case "error", "err", "reason", "why":
			text = append(text, value)
		default:
			text = append(text, a.Key+" "+value)
		}
		return true
	}
	for _, a := range t.with {
		take(a)
	}
	record.Attrs(take)
	if pod != "" && namespace != "" && !strings.Contains(pod, "/") {
		pod = namespace + "/" + pod
	}
	t.to.Fault(part, pod, t.redact(strings.Join(text, ": ")))
}

// WithAttrs implements slog.Handler.
func (t tap) WithAttrs(attrs []slog.Attr) slog.Handler {
	t.next = t.next.WithAttrs(attrs)
	t.with = append(slices.Clip(t.with), attrs...)
	return t
}

// WithGroup implements slog.Handler. The names of groups are left out of faults.
func (t tap) WithGroup(name string) slog.Handler {
	t.next = t.next.WithGroup(name)
	return t
}
