// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package weft

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// migrateCommands are the programs that docs/migrate-from-multus.md has people run.
func migrateCommands() []string {
	return []string{"kubectl", "helm", "ctr", "ls", "cp", "mv", "weft", "/mnt/weft", "/mnt/weft-agent"}
}

// TestMigrateFromMultus: what the page has people type are programs and flags that there are, and what
// it quotes is what the sources say, word for word.
func TestMigrateFromMultus(t *testing.T) {
	page, err := os.ReadFile("docs/migrate-from-multus.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := said(t)
	quoted := regexp.MustCompile("^\\| `([^`]+)` \\| .+ \\| .+ \\|$")
	flags := regexp.MustCompile(` --?([a-z][a-z-]*)`)
	commands, messages := 0, 0
	for line := range strings.Lines(string(page)) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands++
			program, rest, _ := strings.Cut(strings.TrimSpace(command), " ")
			if !slices.Contains(migrateCommands(), program) {
				t.Errorf("no program %q: %s", program, line)
			}
			if !strings.HasPrefix(program, "weft") && !strings.HasPrefix(program, "/mnt/") {
				continue
			}
			for _, flag := range flags.FindAllStringSubmatch(" "+rest, -1) {
				if !slices.Contains(sources, flag[1]) && flag[1] != "A" {
					t.Errorf("no flag %q: %s", flag[1], line)
				}
			}
		}
		if row := quoted.FindStringSubmatch(strings.TrimSpace(line)); row != nil {
			messages++
			if !anySays(sources, row[1]) {
				t.Errorf("no source says %q", row[1])
			}
		}
	}
	if commands < 20 || messages < 14 {
		t.Errorf("the page has %d commands and quotes %d messages", commands, messages)
	}
	for _, path := range regexp.MustCompile(`deploy/[a-z/-]+`).FindAllString(string(page), -1) {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
