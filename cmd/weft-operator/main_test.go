// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun: what ends before anything is started: output and exit codes.
func TestRun(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string // the whole, or a part that starts with "…"
	}{
		"help":         {[]string{"--help"}, 0, usage, ""},
		"version":      {[]string{"--version"}, 0, "…weft-operator ", ""},
		"unknown flag": {[]string{"--frob"}, 2, "", "weft-operator: flag provided but not defined: -frob\nSee weft-operator --help.\n"},
		"an argument":  {[]string{"run"}, 2, "", "weft-operator: unexpected argument \"run\"\nSee weft-operator --help.\n"},
		"a format":     {[]string{"--log-format=xml"}, 2, "", "…--log-format"},
		"every fault": {
			[]string{"--api-rate=0", "--webhook", "--webhook-address=x", "--webhook-secret=A", "--lease=1s", "--certificate-life=1s"},
			2, "",
			"weft-operator: webhook-address: address x: missing port in address\nweft-operator: certificate-life: 1s is less than 3s\n" +
				"weft-operator: webhook-secret: \"A\" is no name of a Kubernetes object\nweft-operator: api-rate: 0 is not from 1 to 10000\nweft-operator: lease: 1s is less than 2s\n",
		},
		"pods alone":    {[]string{"--webhook-pods"}, 2, "", "weft-operator: webhook-pods: needs --webhook\n"},
		"no kubeconfig": {[]string{"--kubeconfig=" + kubeconfig + "x"}, 2, "", "…kubeconfig: "},
		"no address":    {[]string{"--kubeconfig=" + kubeconfig, "--metrics-address=nowhere"}, 1, "", "…listen for metrics and health"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := (host{stdout: &stdout, stderr: &stderr}).run(t.Context(), c.args); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for what, pair := range map[string][2]string{"stdout": {stdout.String(), c.stdout}, "stderr": {stderr.String(), c.stderr}} {
				part, in := strings.CutPrefix(pair[1], "…")
				if !in && pair[0] != pair[1] || in && !strings.Contains(pair[0], part) {
					t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
				}
			}
		})
	}
}

// TestUsage: every flag stands in the help, with its default.
func TestUsage(t *testing.T) {
	o, err := parse(nil, "here")
	if err != nil || o.config.Namespace != "here" {
		t.Errorf("%+v, %v", o, err)
	}
	flagsOf(&o).VisitAll(func(f *flag.Flag) {
		if !strings.Contains(usage, "--"+f.Name) {
			t.Errorf("--%s is not in the help", f.Name)
		}
		switch f.DefValue {
		case "", "false", "here":
		default:
			if want := strings.TrimSuffix(strings.ToLower(f.DefValue), "0m0s"); !strings.Contains(usage, "("+want+")") {
				t.Errorf("--%s: the help has no (%s)", f.Name, want)
			}
		}
	})
}
