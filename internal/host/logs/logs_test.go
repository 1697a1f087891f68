// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const jwt = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLV8"

// TestNoSecretLeaves: whatever the way in which a secret gets into a record.
func TestNoSecretLeaves(t *testing.T) {
	key := "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIA\n-----END EC PRIVATE KEY-----"
	for _, format := range []string{"json", "text"} {
		var b bytes.Buffer
		log := New(&b, slog.LevelDebug, format)
		log.Info("a "+jwt+" here", "n", 1)
		log.Error("failed", "error", fmt.Errorf("get: %w", errors.New("Authorization: Bearer abc.def-1~/+==")))
		log.Warn("config", "config", struct{ Auth, Key string }{"bearer opaque-token", key})
		log.With("header", map[string][]string{"Authorization": {"Bearer opaque-token"}}).WithGroup("g").Debug("request", "token", "opaque-token", "password", "opaque-token")
		for _, secret := range []string{jwt, "eyJ", "abc.def-1", "opaque-token", "MHcCAQEEIA", "PRIVATE KEY"} {
			if strings.Contains(b.String(), secret) {
				t.Errorf("%s: %q is in\n%s", format, secret, b.String())
			}
		}
		if n := strings.Count(b.String(), "\n"); n != 4 {
			t.Errorf("%s: %d lines\n%s", format, n, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if format == "json" && !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
	}
}

// TestOthersStay: what only looks a little like a secret is left as it is.
func TestOthersStay(t *testing.T) {
	var b bytes.Buffer
	log := New(&b, slog.LevelInfo, "text")
	log.Debug("is below the level")
	log.Info("started", "pod", "default/eyJ", "kubeconfig", "/etc/weft/kubeconfig", "kind", "bearer")
	for _, part := range []string{"pod=default/eyJ", "kubeconfig=/etc/weft/kubeconfig", "kind=bearer"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("%q is not in %s", part, b.String())
		}
	}
	if strings.Contains(b.String(), "below") {
		t.Error(b.String())
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestReaderGone: nobody reads the log; that is told to the handler, and stops nothing.
func TestReaderGone(t *testing.T) {
	New(broken{}, slog.LevelInfo, "json").Info("said to nobody")
}

func TestRedact(t *testing.T) {
	redact := Redact()
	for text, want := range map[string]string{
		"nothing secret":          "nothing secret",
		"server said: " + jwt:     "server said: " + Redacted,
		"header Bearer abc.def x": "header " + Redacted + " x",
	} {
		if got := redact(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
