// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: this kernel has no vlan\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestC","Elapsed":0.2}
go: some message
{"Action":"pass","Package":"p","Elapsed":1.5}
`

func TestReport(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if err := r.summary(true); err != nil {
		t.Fatalf("a skip for the kernel's sake was refused: %v", err)
	}
	want := `FAIL p TestC (0.2s)
    c_test.go:9: got 1, want 2
go: some message
ok   p (1.5s)
skip p TestB: this kernel has no vlan
1 tests passed, 1 skipped
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestSkipWithoutKernelReason(t *testing.T) {
	const skipped = `{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: strace is missing\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
`
	for strict, refused := range map[bool]bool{true: true, false: false} {
		r := newReport(&strings.Builder{})
		if err := r.read(strings.NewReader(skipped)); err != nil {
			t.Fatal(err)
		}
		if err := r.summary(strict); (err != nil) != refused {
			t.Errorf("strict %v: error %v", strict, err)
		}
	}
}

// TestRun runs the real go command on a package that has no tests and on one that does not exist.
func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-run", "^TestReport$", "."}, &out, true); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !strings.HasSuffix(out.String(), "1 tests passed, 0 skipped\n") {
		t.Errorf("got %q", out.String())
	}
	if err := run(t.Context(), []string{"./missing"}, &out, true); err == nil {
		t.Error("a package that does not exist passed")
	}
}
