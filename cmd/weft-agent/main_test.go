// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun: what ends before anything is started: output and exit codes.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	for path, text := range map[string]string{
		good: "cni: {binDir: " + dir + ", confDir: " + dir + "}\nstateDir: " + dir + "/state\nsocketDir: " + dir + "/run\n",
		bad:  "nodeName: n1\nx: 1\ncni: {binDir: bin}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	named := func() (string, error) { return " Host-1 \n", nil }
	for name, c := range map[string]struct {
		args           []string
		hostname       func() (string, error)
		code           int
		stdout, stderr string // the whole, or a part that starts with "…"
	}{
		"help":            {[]string{"--help"}, named, 0, usage, ""},
		"help command":    {[]string{"help"}, named, 0, usage, ""},
		"help of one":     {[]string{"install", "-h"}, named, 0, usage, ""},
		"version":         {[]string{"--version"}, named, 0, "…weft-agent ", ""},
		"unknown command": {[]string{"frob"}, named, 2, "", "weft-agent: unknown command \"frob\"; there are run, check-config, install, uninstall\nSee weft-agent --help.\n"},
		"unknown flag":    {[]string{"--frob"}, named, 2, "", "weft-agent: flag provided but not defined: -frob\nSee weft-agent --help.\n"},
		"an argument":     {[]string{"run", "x"}, named, 2, "", "weft-agent: unexpected argument \"x\"\nSee weft-agent --help.\n"},
		"another's flag":  {[]string{"install", "--force"}, named, 2, "", "weft-agent: flag --force belongs to weft-agent uninstall\nSee weft-agent --help.\n"},
		"a good file":     {[]string{"check-config", "--config", good}, named, 0, "the configuration is fine\n", ""},
		"flags first":     {[]string{"check-config", "--config", good, "--node-name", "B"}, named, 2, "", "…flag --node-name: nodeName: \"B\" is no name"},
		"the alias":       {[]string{"check-config", "--config", good, "--enable-cilium-network-driver"}, named, 0, "the configuration is fine\n", ""},
		"a bad file": {
			[]string{"run", "--config", bad},
			named, 2, "",
			"weft-agent: " + bad + ":2: x: is no key of the agent\nweft-agent: " + bad + ":3: cni.binDir: \"bin\" is not absolute\n",
		},
		"no file":            {[]string{"--config", dir + "/none"}, named, 2, "", "weft-agent: " + dir + "/none: cannot be read: no such file or directory\n"},
		"no name":            {[]string{"check-config"}, func() (string, error) { return "", errors.New("none") }, 2, "", "…weft-agent: nodeName: is not given"},
		"nothing to install": {[]string{"install", "--config", good, "--source", dir + "/none"}, named, 1, "", "…weft-agent: "},
	} {
		var stdout, stderr bytes.Buffer
		h := host{hostname: c.hostname, stdout: &stdout, stderr: &stderr}
		if code := h.run(t.Context(), c.args); code != c.code {
			t.Errorf("%s: exit %d, want %d", name, code, c.code)
		}
		for _, out := range []struct{ got, want string }{{stdout.String(), c.stdout}, {stderr.String(), c.stderr}} {
			part, some := strings.CutPrefix(out.want, "…")
			if some && !strings.Contains(out.got, part) || !some && out.got != out.want {
				t.Errorf("%s: output %q, want %q", name, out.got, out.want)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "run")); err == nil {
		t.Error("socketDir was made")
	}
}

// TestInstall: the plugin gets where the configuration says, once, and away again.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	bin, source := filepath.Join(dir, "bin"), filepath.Join(dir, "image")
	for _, d := range []string{bin, source} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	plugin := filepath.Join(source, "weft-cni")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "agent.yaml")
	text := "nodeName: n1\nstateDir: " + dir + "/state\nsocketDir: " + dir + "/run\ncni: {binDir: " + bin + ", confDir: " + dir + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  []string
		said  string
		there bool
	}{
		{[]string{"install", "--source", plugin}, "put weft-cni into " + bin, true},
		{[]string{"install", "--source", plugin}, "is this one already", true},
		{[]string{"uninstall"}, "weft-cni", false},
		{[]string{"uninstall"}, "", false},
	} {
		var out bytes.Buffer
		h := host{hostname: os.Hostname, stdout: &out, stderr: &out}
		code := h.run(t.Context(), append(c.args, "--config", file))
		_, err := os.Stat(filepath.Join(bin, "weft-cni"))
		if code != 0 || !strings.Contains(out.String(), c.said) || (err == nil) != c.there {
			t.Errorf("%v: exit %d, %v\n%s", c.args, code, err, out.String())
		}
	}
}
