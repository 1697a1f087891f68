// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command gotest runs "go test" with the arguments that it is given, prints a line a
// package, the whole output of every test that fails, and at the end every test that
// was skipped with its reason. "go test" alone hides a skip, and a suite that skips
// itself is green without having looked.
//
// With WEFT_CI=1 a skip is a failure unless its reason names the kernel, as in "this
// kernel makes no vlan links": that is nobody's to install.
//
// It must not know what the tests are about. It owns the test part of the Makefile
// (architecture 5).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Getenv("WEFT_CI") == "1")
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer, strict bool) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("open pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	r := newReport(out)
	readErr := r.read(pipe)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	if readErr != nil {
		return readErr
	}
	return r.summary(strict)
}

// event is a line of "go test -json" (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// report gathers events; output is kept per test until it is known how the test ended.
type report struct {
	out    io.Writer
	output map[string][]string
	passed int
	skips  []skip
}

type skip struct{ name, reason string }

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[string][]string{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

func (r *report) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(r.out, "%s", line) // not an event: a message of the go command
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass":
		r.pass(e, key)
	case "fail":
		fmt.Fprintf(r.out, "FAIL %s %s (%.1fs)\n%s", e.Package, e.Test, e.Elapsed, strings.Join(r.output[key], ""))
		delete(r.output, key)
	case "skip":
		if e.Test != "" {
			r.skips = append(r.skips, skip{key, reason(r.output[key])})
		}
		delete(r.output, key)
	}
}

func (r *report) pass(e event, key string) {
	if e.Test == "" {
		fmt.Fprintf(r.out, "ok   %s (%.1fs)\n", e.Package, e.Elapsed)
	} else {
		r.passed++
	}
	delete(r.output, key)
}

// reason is what the test said when it gave up: its output without the runner's own lines.
func reason(output []string) string {
	var said []string
	for line := range strings.Lines(strings.Join(output, "")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		// "file_test.go:12: text"
		if _, rest, ok := strings.Cut(line, "_test.go:"); ok {
			if _, text, ok := strings.Cut(rest, ": "); ok {
				line = text
			}
		}
		said = append(said, line)
	}
	return strings.Join(said, " ")
}

func (r *report) summary(strict bool) error {
	slices.SortFunc(r.skips, func(a, b skip) int { return strings.Compare(a.name, b.name) })
	refused := 0
	for _, s := range r.skips {
		fmt.Fprintf(r.out, "skip %s: %s\n", s.name, s.reason)
		if !strings.Contains(s.reason, "kernel") {
			refused++
		}
	}
	fmt.Fprintf(r.out, "%d tests passed, %d skipped\n", r.passed, len(r.skips))
	if strict && refused > 0 {
		return fmt.Errorf("%d tests were skipped for another reason than the kernel", refused)
	}
	return nil
}
