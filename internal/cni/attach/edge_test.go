// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

func TestErrorMapping(t *testing.T) {
	delegate := &chain.Error{Plugin: "pb", Command: "ADD", Code: 11, Msg: "pool is empty", Details: "10.0.0.0/8"}
	f := fault.New(fault.Routes, "network n", "default-route", "unreachable")
	for name, c := range map[string]struct {
		err     error
		code    uint
		details string
	}{
		"delegate, wrapped":   {fmt.Errorf("network n: %w", delegate), 11, "10.0.0.0/8"},
		"fault":               {f, 103, ""},
		"joined, first first": {errors.Join(fmt.Errorf("x: %w", delegate), f), 11, "10.0.0.0/8"},
		"anything else":       {errors.New("x"), 100, ""},
	} {
		got := cniError("ADD", c.err)
		if got.Code != c.code || got.Details != c.details {
			t.Errorf("%s: code %d, details %q", name, got.Code, got.Details)
		}
	}
}

func TestSafeText(t *testing.T) {
	for in, want := range map[string]string{
		"link Not Found":         "link Not-Found",
		"not found, NOT FOUND":   "not-found, NOT-FOUND",
		"İnot found":             "İnot-found",
		"notfound":               "notfound",
		"a line\nand another":    "",
		strings.Repeat("x", 1e6): "",
	} {
		got := safeText("DEL", in)
		if strings.Contains(got, "\n") || len(got) > maxErrorText || (want != "" && got != want) {
			t.Errorf("safeText(%.20q) = %.40q (%d bytes), want %q", in, got, len(got), want)
		}
	}
	if got := safeText("ADD", "not found"); got != "not found" {
		t.Errorf("ADD: %q", got)
	}
}

// What a person types without CNI_COMMAND: help, the version, or that it is no argument.
func TestIntroduce(t *testing.T) {
	for name, c := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"nothing":           {nil, 0, "", "Without CNI_COMMAND"},
		"help":              {[]string{"--help"}, 0, "Without CNI_COMMAND", ""},
		"short help":        {[]string{"-h"}, 0, "CNI versions: 0.1.0", ""},
		"version":           {[]string{"--version"}, 0, "weft-cni v1.2.3\n", ""},
		"no argument of it": {[]string{"bogus"}, 2, "", `weft-cni: unexpected argument "bogus"`},
		"no flag of it":     {[]string{"--versions"}, 2, "", `"--versions"`},
		"too many":          {[]string{"--version", "x"}, 2, "", `"x"`},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := Main(Process{
				Args: c.args, Version: func() string { return "v1.2.3" }, Getenv: func(string) string { return "" },
				Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
			})
			if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) ||
				c.stdout == "" && stdout.Len() > 0 || c.stderr == "" && stderr.Len() > 0 {
				t.Errorf("exit %d, stdout %q, stderr %q", code, &stdout, &stderr)
			}
		})
	}
	// A runtime that gives arguments is served all the same.
	var stdout bytes.Buffer
	code := Main(Process{
		Args: []string{"bogus"}, Getenv: func(k string) string { return map[string]string{"CNI_COMMAND": "VERSION"}[k] },
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stdout,
	})
	if code != 0 || !strings.Contains(stdout.String(), "supportedVersions") {
		t.Errorf("VERSION with an argument: exit %d, %s", code, &stdout)
	}
}

func TestLogger(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "weft.log")
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".1", []byte("older"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	l := newLogger(&stderr, request{command: "ADD"})
	l.debug("before the conf")
	l.configure(netconf.Log{File: file, Level: "verbose", MaxSize: 1, MaxBackups: 2})
	l.warnings([]fault.Warning{{Object: "file x", Field: "mtu", Text: "is odd"}})
	l.debug("step\nby step")
	l.close()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "warning: file x: mtu: is odd") || !strings.Contains(lines[1], "debug: step") {
		t.Errorf("log file has %q", lines)
	}
	if stderr.Len() != 0 {
		t.Errorf("logToStderr is false, but stderr has %q", stderr.String())
	}
	for name, size := range map[string]int{file + ".1": 1 << 20, file + ".2": len("older")} {
		if b, err := os.ReadFile(name); err != nil || len(b) != size {
			t.Errorf("%s: %d bytes, %v; want %d", filepath.Base(name), len(b), err, size)
		}
	}
}
