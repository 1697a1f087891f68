// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/vm/machine"
)

var update = flag.Bool("update", false, "write what the commands print into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weft": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// Scripts have three commands more: "exits CODE PROGRAM ARGS…"; "apiserver FILE…", which
// starts an API server with those objects and sets KUBECONFIG ("apiserver -forbid" has one
// that refuses everything, "-hang" one that never answers, "-allow" one that allows all that
// is asked); and "agent FILE", which starts a debug socket that answers what the file says,
// and sets SOCKET.
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
					case "-allow":
						server.Inject(kubetest.Fault{Resource: "selfsubjectaccessreviews", Body: `{"status": {"allowed": true}}`})
						server.Inject(kubetest.Fault{Resource: "subjectaccessreviews", Body: `{"status": {"allowed": false}}`})
					case "-hang":
						server.Inject(kubetest.Fault{Hang: true})
					default:
						server.Apply(ts.ReadFile(file))
					}
				}
				ts.Setenv("KUBECONFIG", server.Kubeconfig(nil))
			},
			"agent": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv("SOCKET", startAgent(t, ts, ts.ReadFile(args[0])))
			},
		},
	})
}

// view is what an agent of a script answers.
type view struct {
	State debug.Node
	Nets  []debug.Network
	All   []debug.Pod
	// Plans are those of pods, by namespace/name; a pod with a Fault has none.
	Plans map[string]struct {
		plan.Output
		Fault *fault.Fault
	}
	// Lately is what top shows; none: an agent that keeps nothing.
	Lately *debug.Top
	// Tables are what statedb prints; none: the network driver is off.
	Tables json.RawMessage
	// Machines are virtual ones; none: they are not reported.
	Machines machines
}

// machines are virtual ones, and their bundles by namespace/name.
type machines struct {
	All     []machine.Machine
	Bundles map[string]json.RawMessage
}

func (m machines) VMIs() []machine.Machine { return m.All }
func (m machines) Record(_ context.Context, namespace, name string) (json.RawMessage, error) {
	if b, ok := m.Bundles[namespace+"/"+name]; ok {
		return b, nil
	}
	return nil, errors.New("it is not on this node")
}

func (v *view) Node() debug.Node          { return v.State }
func (v *view) Pods() []debug.Pod         { return v.All }
func (v *view) Networks() []debug.Network { return v.Nets }
func (v *view) Top() debug.Top            { return *v.Lately }
func (v *view) Explain(_ context.Context, namespace, name string) (plan.Output, error) {
	p, ok := v.Plans[namespace+"/"+name]
	switch {
	case !ok:
		return plan.Output{}, debug.ErrNoPod
	case p.Fault != nil:
		return p.Output, p.Fault
	}
	return p.Output, nil
}

// startAgent serves a view, with the times in it counted from now: "-3m" in place of a time.
func startAgent(t *testing.T, ts *testscript.TestScript, text string) string {
	t.Helper()
	now := time.Now()
	text = regexp.MustCompile(`"-(\d+[smh])"`).ReplaceAllStringFunc(text, func(s string) string {
		ago, err := time.ParseDuration(strings.Trim(s, `"`))
		ts.Check(err)
		return now.Add(ago).Format(`"` + time.RFC3339Nano + `"`)
	})
	var v view
	ts.Check(json.Unmarshal([]byte(text), &v))
	path := filepath.Join(t.TempDir(), "debug.sock") // the script's own directory is too deep for a socket
	server := debug.New(path, &v, slog.New(slog.DiscardHandler))
	if v.Lately != nil {
		server.ServeTop(&v)
	}
	if v.Tables != nil {
		server.ServeTables(func(w io.Writer) error {
			_, err := w.Write(v.Tables)
			return err
		})
	}
	if v.Machines.All != nil {
		server.ServeVMIs(v.Machines)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	ts.Defer(func() {
		cancel()
		ts.Check(<-ended)
	})
	select {
	case <-server.Ready():
	case err := <-ended:
		ended <- err
		ts.Fatalf("agent: %v", err)
	}
	return path
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

// A bundle that is a FIFO is refused as by explain and lint: nobody may ever write to it.
func TestBundleIsAFIFO(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "bundle")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"replay", "record"} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{"vmi", verb, "-f", fifo}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "is no regular file") {
			t.Errorf("%s: exit %d: %s", verb, code, &stderr)
		}
	}
}
