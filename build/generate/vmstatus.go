// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/weftnet/weft/vmistatus"
)

const (
	vmStatusFile = "docs/vm-status.md"
	tablesBegin  = "<!-- Tables: written by make generate from vmistatus: edit them there. -->\n"
	tablesEnd    = "<!-- End of tables. -->\n"
)

// vmStatus is docs/vm-status.md with its tables made anew; the text around them is a person's.
func vmStatus() ([]byte, error) {
	text, err := os.ReadFile(vmStatusFile)
	if err != nil {
		return nil, err
	}
	before, rest, ok := bytes.Cut(text, []byte(tablesBegin))
	_, after, end := bytes.Cut(rest, []byte(tablesEnd))
	if !ok || !end {
		return nil, errors.New(vmStatusFile + ": the marks of the tables are gone")
	}
	return []byte(string(before) + tablesBegin + vmTables() + tablesEnd + string(after)), nil
}

func vmTables() string {
	var b strings.Builder
	b.WriteString("\n| entry | field | sources, the first that has a value |\n|---|---|---|\n")
	for _, r := range vmistatus.Precedence() {
		sources := strings.Join(r.Sources, ", ")
		if r.Except != nil {
			sources += "; for masquerade under `pod-authoritative`: " + strings.Join(r.Except, ", ")
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", r.Kind, r.Field, cell(sources))
	}
	b.WriteString("\n| rule | what it does |\n|---|---|\n")
	for _, r := range vmistatus.Rules() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r, cell(r.Meaning()))
	}
	b.WriteString("\n| warning | tells |\n|---|---|\n")
	for _, c := range vmistatus.Codes() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c, cell(c.Meaning()))
	}
	b.WriteString("\n")
	return b.String()
}
