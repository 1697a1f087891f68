// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package weft

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// said are the constant parts of everything that the sources can say: the pieces of string constants
// between what is put in. A constant that is made of several, joined by +, is one.
func said(t *testing.T) []string {
	t.Helper()
	verb := regexp.MustCompile(`%[+#]?[a-zA-Z]`)
	var all []string
	for _, root := range []string{"internal", "cmd", "vmistatus", "api"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				e, is := n.(ast.Expr)
				if !is {
					return true
				}
				s, constant := constantText(e)
				if constant {
					all = append(all, verb.ReplaceAllString(s, "…"))
				}
				return !constant
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// constantText is the value of a string, or of several joined.
func constantText(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, isX := constantText(e.X)
		y, isY := constantText(e.Y)
		return x + y, isX && isY && e.Op == token.ADD
	}
	return "", false
}

// TestTroubleshooting: each part of the page begins with a command, and what it quotes is what the
// sources say, word for word.
func TestTroubleshooting(t *testing.T) {
	page, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := said(t)
	cli, err := os.ReadFile("docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("^\\| `([^`]+)` \\| .+ \\| .+ \\|$")
	command := regexp.MustCompile(`weft (get [a-z]+|doctor|explain pod|top)`)
	messages := 0
	for i, part := range strings.Split(string(page), "\n## ") {
		heading, body, _ := strings.Cut(part, "\n")
		for _, c := range command.FindAllStringSubmatch(body, -1) {
			what := strings.TrimPrefix(c[1], "get ")
			if !strings.Contains(string(cli), what) {
				t.Errorf("%s: docs/cli.md has no %q", heading, c[1])
			}
		}
		if i == 0 {
			continue
		}
		if !strings.HasPrefix(body, "\n    ") {
			t.Errorf("%s: does not begin with a command", heading)
		}
		for line := range strings.Lines(body) {
			row := quoted.FindStringSubmatch(strings.TrimSpace(line))
			if row == nil {
				if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| it says |") {
					t.Errorf("%s: a row that quotes nothing: %s", heading, line)
				}
				continue
			}
			messages++
			if !anySays(sources, row[1]) {
				t.Errorf("%s: no source says %q", heading, row[1])
			}
		}
	}
	if messages < 40 {
		t.Errorf("the page quotes %d messages", messages)
	}
}

// anySays says whether one constant holds the message: its constant part as it stands, and where the
// message goes on with "…" at an end, anything may stand there. The part has to be long enough to
// be about something.
func anySays(sources []string, message string) bool {
	part := strings.Trim(message, "… ")
	part = strings.TrimSuffix(part, ":")
	if len(part) < 14 {
		return false
	}
	for _, s := range sources {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}

// TestAnySays: the test above can fail.
func TestAnySays(t *testing.T) {
	sources := []string{"device … of pool …: there is none", "the pod is gone by now"}
	for message, want := range map[string]bool{
		"device … of pool …: there is none": true, "… of pool …: there is none": true, "the pod is gone by now: …": true,
		"device … of pool …: there was none": false, "device of pool: there is none": false, "is gone": false,
	} {
		if got := anySays(sources, message); got != want {
			t.Errorf("%q: %v", message, got)
		}
	}
}
