// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// module writes a module with the files given and returns its folder.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.com/m\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const good = `package a

import "testing"

func FuzzGood(f *testing.F) { f.Fuzz(func(t *testing.T, b []byte) {}) }
`

const bad = `package b

import "testing"

func FuzzBad(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) { t.Fatal("always") })
}

func TestNothing(t *testing.T) {}
`

const helper = bad + `
func FuzzHelper(n int) {}
`

func TestFind(t *testing.T) {
	dir := module(t, map[string]string{
		"a/a_test.go":          good,
		"b/b_test.go":          helper,
		"c/testdata/c_test.go": good,
		"d/go.mod":             "module example.com/d\n",
		"d/d_test.go":          good,
	})
	got, err := find(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []target{{"./a", "FuzzGood"}, {"./b", "FuzzBad"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{})); diff != "" {
		t.Error(diff)
	}
}

func TestRunReportsTheCrashAndGoesOn(t *testing.T) {
	dir := module(t, map[string]string{"a/a_test.go": strings.ReplaceAll(bad, "package b", "package a"), "b/b_test.go": strings.ReplaceAll(good, "package a", "package b")})
	var out strings.Builder
	err := run(t.Context(), dir, time.Second, &out)
	if err == nil || !strings.Contains(err.Error(), "FuzzBad") || !strings.Contains(err.Error(), "a_test.go:7: always") {
		t.Errorf("error %v does not name the target that crashed, and how", err)
	}
	if !strings.Contains(out.String(), "fuzz ./b FuzzGood") {
		t.Errorf("the target after the crash did not run:\n%s", out.String())
	}
}

func TestRunReportsWhatIsNotBuilt(t *testing.T) {
	dir := module(t, map[string]string{"a/a_test.go": good + "\nvar _ = missing\n", "b/b_test.go": strings.ReplaceAll(good, "package a", "package b")})
	var out strings.Builder
	err := run(t.Context(), dir, time.Second, &out)
	if err == nil || !strings.Contains(err.Error(), "undefined: missing") {
		t.Errorf("error %v does not say what cannot be built", err)
	}
	if !strings.Contains(out.String(), "fuzz ./b FuzzGood") {
		t.Errorf("the package after it did not run:\n%s", out.String())
	}
}

// The testing package says of a program that counts nothing that it fuzzes blindly.
func TestGuided(t *testing.T) {
	const blind = "without coverage guidance"
	dir := module(t, map[string]string{"a/a_test.go": good})
	build := func(each time.Duration) (*fuzzer, string) {
		f := &fuzzer{root: dir, work: t.TempDir(), cache: t.TempDir(), each: each}
		program, path, err := f.build(t.Context(), "./a")
		if err != nil || path != "example.com/m/a" {
			t.Fatalf("%q, %v", path, err)
		}
		f.each = time.Second
		return f, program
	}
	for _, each := range []time.Duration{time.Second, long} {
		f, program := build(each)
		out, err := f.run(t.Context(), target{"./a", "FuzzGood"}, program, "p")
		if err != nil || !strings.Contains(string(out), "execs: ") || strings.Contains(string(out), blind) {
			t.Errorf("fuzzed for %v: %v\n%s", each, err, out)
		}
	}
	f, program := build(time.Second)
	if _, err := goOutput(t.Context(), dir, "test", "-c", "-o", program, "./a"); err != nil {
		t.Fatal(err)
	}
	if out, err := f.run(t.Context(), target{"./a", "FuzzGood"}, program, "p"); err != nil || !strings.Contains(string(out), blind) {
		t.Errorf("a program that counts nothing: %v\n%s", err, out)
	}
}

func TestRunWithoutTargets(t *testing.T) {
	if err := run(t.Context(), module(t, map[string]string{}), time.Second, &strings.Builder{}); err == nil {
		t.Error("nothing to fuzz passed")
	}
}
