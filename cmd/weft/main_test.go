// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weftnet/weft/internal/kube/kubetest"
)

var update = flag.Bool("update", false, "write what the commands print into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weft": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// Scripts have two commands more: "exits CODE PROGRAM ARGS…", and "apiserver FILE…", which
// starts an API server with those objects and sets KUBECONFIG ("apiserver -forbid" has one
// that refuses everything, "-hang" one that never answers).
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			return os.CopyFS(filepath.Join(env.WorkDir, "examples"), os.DirFS(examples))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				err = ts.Exec(args[1], args[2:]...)
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					got = exit.ExitCode()
				} else {
					ts.Check(err)
				}
				if got != want {
					ts.Fatalf("%v exits with %d, want %d", args[1:], got, want)
				}
			},
			"apiserver": func(ts *testscript.TestScript, _ bool, args []string) {
				server := kubetest.New(t)
				for _, file := range args {
					switch file {
					case "-forbid":
						server.Inject(kubetest.Fault{Status: 403})
					case "-hang":
						server.Inject(kubetest.Fault{Hang: true})
					default:
						server.Apply(ts.ReadFile(file))
					}
				}
				ts.Setenv("KUBECONFIG", server.Kubeconfig(nil))
			},
		},
	})
}

// The examples are right, but for the one that shows what isolation refuses.
func TestExamplesAreClean(t *testing.T) {
	entries, err := os.ReadDir("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		dir, want := filepath.Join("../../examples", entry.Name()), 0
		if entry.Name() == "isolation" {
			want = 1
		}
		for _, command := range []string{"lint", "explain"} {
			var stdout, stderr strings.Builder
			if got := run(t.Context(), []string{command, "-f", dir}, &stdout, &stderr); got != want {
				t.Errorf("%s of %s: exit code %d, want %d\n%s%s", command, dir, got, want, stdout.String(), stderr.String())
			}
		}
	}
}
