// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
)

// Results of a Check.
const (
	ResultOK    = "ok"
	ResultInfo  = "info" // good to know; nothing to do
	ResultWarn  = "warn" // works, but not as it should
	ResultFault = "fault"
)

// Check is one thing that was looked at on a node.
type Check struct {
	Check  string `json:"check"` // what was looked at: "conf order"
	Result string `json:"result"`
	Object string `json:"object,omitempty"` // what it is about, where that is one thing
	Field  string `json:"field,omitempty"`
	Text   string `json:"text"`         // what was seen
	Do     string `json:"do,omitempty"` // what to do about it; "" where nothing is to be done
}

// Checkup is what doctor and explain node show.
type Checkup struct {
	// Node is the node's name, "" when neither agent nor API server told it.
	Node   string  `json:"node,omitempty"`
	Checks []Check `json:"checks"`
	// Unseen says what could not be looked at from here.
	Unseen []string `json:"unseen"`
}

func newCheckup() *Checkup { return &Checkup{Checks: []Check{}, Unseen: []string{}} }

// Faulty says whether a fault was found.
func (c *Checkup) Faulty() bool {
	return slices.ContainsFunc(c.Checks, func(c Check) bool { return c.Result == ResultFault })
}

// Summary is the checkup in one line.
func (c *Checkup) Summary() string {
	n := map[string]int{}
	for _, check := range c.Checks {
		n[check.Result]++
	}
	return fmt.Sprintf("%s, %s, %d ok, %d to know", count(n[ResultFault], "fault"), count(n[ResultWarn], "warning"), n[ResultOK], n[ResultInfo])
}

// WriteTable prints a line a check, and what to do below it.
func (c *Checkup) WriteTable(w io.Writer) error {
	p := page{w: w}
	rows := make([][]string, len(c.Checks))
	for i, check := range c.Checks {
		rows[i] = []string{check.Result, check.Check, check.Text}
	}
	var lines lineBuffer
	cells := page{w: &lines}
	cells.table(rows)
	for i, line := range lines.all {
		p.line("%s", line)
		if do := c.Checks[i].Do; do != "" {
			p.line("       do: %s", do)
		}
	}
	if len(c.Unseen) > 0 {
		p.line("Not seen from here:")
	}
	for _, text := range c.Unseen {
		p.line("  %s", text)
	}
	return p.err
}

// lineBuffer keeps what page prints, a line a call.
type lineBuffer struct{ all []string }

func (b *lineBuffer) Write(line []byte) (int, error) {
	b.all = append(b.all, string(line[:len(line)-1]))
	return len(line), nil
}

func (c *Checkup) add(result, check, text, do string) {
	c.Checks = append(c.Checks, Check{Check: check, Result: result, Text: oneLine(text), Do: do})
}

func (c *Checkup) ok(check, format string, args ...any) {
	c.add(ResultOK, check, fmt.Sprintf(format, args...), "")
}

func (c *Checkup) info(check, format string, args ...any) {
	c.add(ResultInfo, check, fmt.Sprintf(format, args...), "")
}

func (c *Checkup) notSeen(format string, args ...any) {
	c.Unseen = append(c.Unseen, fmt.Sprintf(format, args...))
}

// oneLine keeps a text in its cell, whatever a plugin or a user wrote in it.
func oneLine(s string) string {
	return fault.Bound(strings.Join(strings.Fields(s), " "), fault.MaxText)
}
