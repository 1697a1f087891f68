// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/inspect"
)

// hostile is a name as a file may hold it, which would turn a terminal red, rename its window and
// write over the line before.
const hostile = `"web\e[31m\e]0;x\a\u009b2J\u202e"`

const hostilePod = `apiVersion: v1
kind: Pod
metadata:
  name: ` + hostile + `
  namespace: ` + hostile + `
  annotations: {k8s.v1.cni.cncf.io/networks: ` + hostile + `}
`

// What a directory has besides is checked although one of its files cannot be read.
func TestLoadGoesOn(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b.yaml", filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 1<<30); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "d.yaml")
	if err := os.WriteFile(good, []byte(hostilePod), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := inspect.Load([]string{dir}, "")
	if err != nil {
		t.Fatal(err)
	}
	if files, pods, _, _ := w.Counts(); files != 1 || pods != 1 {
		t.Errorf("%d files and %d pods", files, pods)
	}
	for _, want := range []string{"a.yaml: is no regular file", "b.yaml: ", "c.yaml: is too large"} {
		if err := w.Unread(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if w, err = inspect.Load([]string{good}, ""); err != nil || w.Unread() != nil {
		t.Error(err, w.Unread())
	}
	if _, err := inspect.Load([]string{good, large}, ""); err == nil {
		t.Error("a file that is named itself is left out")
	}
}

// Nothing that files say reaches a terminal as anything but text.
func TestNothingIsPrintedRaw(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(file, []byte(hostilePod), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := inspect.Load([]string{file}, "")
	if err != nil {
		t.Fatal(err)
	}
	e, err := w.Explain(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := e.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	if err := w.Lint(t.Context()).WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "web\ufffd[31m") {
		t.Errorf("the name is not shown:\n%q", out.String())
	}
	if strings.ContainsAny(out.String(), "\x1b\a\u009b\u202e") {
		t.Errorf("shown raw:\n%q", out.String())
	}
}
