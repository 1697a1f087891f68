// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package version_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/host/version"
)

// A program that is built as the Makefile does says the release's version.
func TestSetByTheLinker(t *testing.T) {
	if v := version.String(); v == "" {
		t.Error("a test's program has no version")
	}
	program := filepath.Join(t.TempDir(), "say")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath",
		"-ldflags=-X github.com/weftnet/weft/internal/host/version.word=v1.2.3", "-o", program, "./testdata/say")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "v1.2.3" {
		t.Errorf("it says: %v, %s", err, out)
	}
}
