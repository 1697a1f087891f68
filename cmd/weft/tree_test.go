// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandIsTold: each command has examples in its help, and a row of the page; those that lists
// have one row for several ("networks\\|pods").
func TestEveryCommandIsTold(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(page)) {
		if cell, ok := strings.CutPrefix(line, "| `weft "); ok {
			rows = append(rows, strings.Fields(strings.ReplaceAll(cell, "`", " "))...)
			rows = append(rows, "\n")
		}
	}
	told := strings.Join(rows, " ")
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		seen++
		if !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s --help has no example of it: %q", cmd.CommandPath(), cmd.Example)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if path, _ := strings.CutPrefix(cmd.CommandPath(), "weft "); !cmd.HasSubCommands() && !has(told, path) {
			t.Errorf("docs/cli.md has no row of %s", cmd.CommandPath())
		}
	}
	walk(newRoot())
	if seen < 15 {
		t.Errorf("%d commands", seen)
	}
}

// has says whether a row begins with the words of a command.
func has(rows, path string) bool {
	group, last, nested := strings.Cut(path, " ")
	if !nested {
		group, last = "", path
	}
	for row := range strings.SplitSeq(rows, "\n") {
		words := strings.Fields(row)
		if group != "" && len(words) > 0 && words[0] == group {
			words = words[1:]
		} else if group != "" {
			continue
		}
		if len(words) == 0 {
			continue
		}
		for name := range strings.SplitSeq(words[0], `\|`) {
			if name == last {
				return true
			}
		}
	}
	return false
}
