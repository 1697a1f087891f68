// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package weft

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// driverCases are the cases that the network driver is held to: first and last of each run of numbers.
func driverCases() (all []string) {
	for _, run := range [][2]int{{1, 9}, {11, 14}, {16, 24}, {26, 32}, {34, 38}, {40, 43}, {45, 45}, {47, 52}, {54, 54}, {56, 60}, {62, 65}, {67, 68}} {
		for n := run[0]; n <= run[1]; n++ {
			all = append(all, fmt.Sprint("T-", n))
		}
	}
	for n := 1; n <= 10; n++ {
		all = append(all, fmt.Sprint("I", n))
	}
	return all
}

// TestDriverCases: docs/conformance-dra.md has each case and then each invariant once, in order, and
// every test that it names exists.
func TestDriverCases(t *testing.T) {
	page, err := os.ReadFile("docs/conformance-dra.md")
	if err != nil {
		t.Fatal(err)
	}
	var cases []string
	numbered := regexp.MustCompile("^ (T-|I)[0-9]+ $")
	named := regexp.MustCompile("`([a-z0-9/]+)[.](Test[A-Za-z0-9]+)`")
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !numbered.MatchString(cells[1]) {
			continue
		}
		name := strings.TrimSpace(cells[1])
		cases = append(cases, name)
		tests := named.FindAllStringSubmatch(cells[len(cells)-2], -1)
		if len(tests) == 0 || len(tests) != strings.Count(cells[len(cells)-2], "`")/2 {
			t.Errorf("%s: tests are named so: %s", name, cells[len(cells)-2])
		}
		for _, test := range tests {
			if !slices.Contains(testsOf(t, test[1]), test[2]) {
				t.Errorf("%s: %s has no %s", name, test[1], test[2])
			}
		}
	}
	if want := driverCases(); !slices.Equal(cases, want) {
		t.Errorf("the page has %q\nwant %q", cases, want)
	}
}

// TestHooksAskNobody: what the runtime's hooks run cannot ask the API server, since it has no client.
func TestHooksAskNobody(t *testing.T) {
	for dep := range strings.FieldsSeq(string(goCommand(t, "list", "-deps", "./internal/dra/handover/..."))) {
		if strings.HasPrefix(dep, "k8s.io/client-go") || strings.HasPrefix(dep, "github.com/weftnet/weft/internal/kube") {
			t.Errorf("the hand-over links %s", dep)
		}
	}
}

// testsOf are the tests of the package in a directory.
func testsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
