// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package crash_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/test/crash/ptrace"
)

// callLimit is far beyond what any call takes here. DEL's own deadline is 45 s.
const callLimit = 30 * time.Second

// tools are the binaries that all scenes use.
type tools struct {
	weft string // weft-cni
	path string // CNI_PATH
}

// scene is one sandbox with one default network and two NADs, and a state directory of its
// own. Every process that works for it has its directory as current directory.
type scene struct {
	tools
	dir   string
	netns string
	conf  map[string]any   // Weft's own
	confs []map[string]any // the three networks'
	// failing: ADD is meant to fail, in its last delegate.
	failing bool
	// present checks that an ADD made everything, clean what is left when it was undone.
	present func(t *testing.T, s *scene)
	clean   func(t *testing.T, s *scene)
	plug    *plug // what an agent changes, nil where there is none
}

func newScene(t *testing.T, tl tools) *scene {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{tools: tl, dir: dir}
	s.conf = map[string]any{
		"cniVersion": "1.1.0", "name": "crash", "type": "weft-cni",
		"manifests": s.at("manifests"), "stateDir": s.at("state"), "cniDir": s.at("multus"),
		"binDir": s.at("nobin"), "confDir": s.at("conf"), "delegateLimit": 4,
	}
	for _, sub := range []string{"manifests", "hold", "data"} {
		if err := os.Mkdir(s.at(sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.write(t, "manifests/pod.json", map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"namespace": "default", "name": "pod-a", "uid": "uid-1",
			"annotations": map[string]any{"k8s.v1.cni.cncf.io/networks": "neta,netb"},
		},
	})
	return s
}

// at is a path in the scene's directory.
func (s *scene) at(path string) string { return filepath.Join(s.dir, path) }

func (s *scene) write(t *testing.T, path string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.at(path), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// networks writes the default network and the two NADs. They need a name and a version.
func (s *scene) networks(t *testing.T, def, neta, netb map[string]any) {
	t.Helper()
	s.conf["delegates"] = []any{def}
	s.confs = []map[string]any{def, neta, netb}
	if s.plug != nil {
		s.announce(t)
	}
	for name, config := range map[string]map[string]any{"neta": neta, "netb": netb} {
		b, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, "manifests/"+name+".json", map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": map[string]any{"namespace": "default", "name": name},
			"spec":     map[string]any{"config": string(b)},
		})
	}
}

// answer is how a call of weft-cni ended.
type answer struct {
	ptrace.Outcome
	verb           string
	stdout, stderr string
}

func (a answer) String() string {
	return fmt.Sprintf("%s: status %#x\nstdout: %s\nstderr: %s", a.verb, uint32(a.Status), a.stdout, a.stderr)
}

// kill runs weft-cni under the tracer, until it is killed or has ended.
func (s *scene) kill(t *testing.T, verb string, when ptrace.Command) answer {
	t.Helper()
	return s.call(t, verb, func(ctx context.Context, c *exec.Cmd) (ptrace.Outcome, error) {
		when.Path, when.Args, when.Dir, when.Env = c.Path, c.Args, c.Dir, c.Env
		when.Files = []*os.File{c.Stdin.(*os.File), c.Stdout.(*os.File), c.Stderr.(*os.File)}
		return ptrace.Run(ctx, when)
	})
}

// plain runs weft-cni without the tracer, which takes a third of the time.
func plain(_ context.Context, c *exec.Cmd) (ptrace.Outcome, error) {
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		err = nil
	}
	if err != nil {
		return ptrace.Outcome{}, err
	}
	return ptrace.Outcome{Status: c.ProcessState.Sys().(syscall.WaitStatus)}, nil
}

// call runs weft-cni for the scene's sandbox, GC with an empty list of what lives.
func (s *scene) call(t *testing.T, verb string, run func(context.Context, *exec.Cmd) (ptrace.Outcome, error)) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	c := exec.CommandContext(ctx, s.weft)
	c.Dir = s.dir
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_PATH=" + s.path}
	switch verb {
	case applied, undone:
		c.Args, c.Env = append(c.Args, "apply"), c.Env[:1]
		s.write(t, "stdin", s.order(t, verb))
	case "GC":
		conf := maps.Clone(s.conf)
		conf["cni.dev/valid-attachments"] = []any{}
		s.write(t, "stdin", conf)
	default:
		c.Env = append(c.Env, "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0", "CNI_NETNS="+s.netns,
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-a;K8S_POD_UID=uid-1")
		s.write(t, "stdin", s.conf)
	}
	open := func(name string, flags int) *os.File {
		f, err := os.OpenFile(s.at(name), flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	// Files, so that nobody waits for a delegate that keeps a pipe open.
	const fresh = os.O_RDWR | os.O_CREATE | os.O_TRUNC | os.O_APPEND
	stdin, stdout, stderr := open("stdin", os.O_RDONLY), open("stdout", fresh), open("stderr", fresh)
	defer stdin.Close()
	defer stdout.Close()
	defer stderr.Close()
	c.Stdin, c.Stdout, c.Stderr = stdin, stdout, stderr
	out, err := run(ctx, c)
	a := answer{Outcome: out, verb: verb, stdout: s.read(t, "stdout"), stderr: s.read(t, "stderr")}
	if err != nil {
		t.Fatalf("%v\n%s", err, a)
	}
	return a
}

const container = "crashed"

// complete runs a call that nobody kills, and checks its answer.
func (s *scene) complete(t *testing.T, verb string) answer {
	t.Helper()
	if verb == applied || verb == undone {
		return s.obeyed(t, verb)
	}
	a := s.call(t, verb, plain)
	want := 0
	if verb == "ADD" && s.failing {
		want = 1
	}
	if !a.Status.Exited() || a.Status.ExitStatus() != want {
		t.Fatalf("want exit status %d of %s", want, a)
	}
	if verb == "ADD" && !s.failing {
		s.present(t, s)
	}
	return a
}

func (s *scene) read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(s.at(path))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// record is the record's text, for a person.
func (s *scene) record(t *testing.T) string {
	t.Helper()
	return s.read(t, "state/attachments/"+container+"-eth0.jsonl")
}

// recording makes a scene of recording delegates; extra keys go to their plugins' confs.
func recording(t *testing.T, tl tools, extra map[string]map[string]any) *scene {
	t.Helper()
	s := newScene(t, tl)
	s.netns = s.at("netns")
	s.write(t, "netns", "")
	s.delegates(t, extra)
	s.present = func(t *testing.T, s *scene) {
		t.Helper()
		want := []string{container + "-eth0-pa", container + "-net1-pb", container + "-net2-pc"}
		if got := files(t, s.at("hold")); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("after ADD the delegates hold %v, want %v", got, want)
		}
	}
	s.clean = func(t *testing.T, s *scene) {
		t.Helper()
		if left := files(t, s.at("hold")); len(left) > 0 {
			t.Errorf("delegates still hold %v", left)
		}
		if left := files(t, s.at("multus")); len(left) > 0 {
			t.Errorf("left of Multus: %v", left)
		}
		s.undone(t)
	}
	return s
}

// delegates (re)writes the confs of the recording delegates.
func (s *scene) delegates(t *testing.T, extra map[string]map[string]any) {
	t.Helper()
	conf := func(kind, name string) map[string]any {
		m := map[string]any{
			"cniVersion": "1.1.0", "name": name, "type": kind,
			"log": s.at("calls.jsonl"), "hold": s.at("hold"),
		}
		maps.Copy(m, extra[kind])
		return m
	}
	s.networks(t, conf("pa", "defnet"), conf("pb", "neta"), conf("pc", "netb"))
}

// byMultus leaves what Multus leaves of an ADD: its scratch file, and what the delegates hold.
func (s *scene) byMultus(t *testing.T) {
	t.Helper()
	if err := os.Mkdir(s.at("multus"), 0o700); err != nil {
		t.Fatal(err)
	}
	type element struct {
		Name  string
		Bytes []byte
	}
	var all []element
	for i, n := range []struct{ kind, ifName, name string }{{"pa", "eth0", "defnet"}, {"pb", "net1", "default/neta"}, {"pc", "net2", "default/netb"}} {
		conf, err := json.Marshal(s.confs[i])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, element{n.name, conf})
		s.write(t, "hold/"+container+"-"+n.ifName+"-"+n.kind, nil)
	}
	s.write(t, "multus/"+container, all)
}

// event is one line of the delegates' log.
type event struct {
	Command, IfName, Type string
	PID                   int
	End                   bool
}

func (s *scene) events(t *testing.T) []event {
	t.Helper()
	var out []event
	for line := range bytes.Lines([]byte(s.read(t, "calls.jsonl"))) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("delegates' log, line %q: %v", line, err)
		}
		out = append(out, e)
	}
	return out
}

// undone checks the delegates' log: after the last ADD of each that began there is a DEL
// that ended.
func (s *scene) undone(t *testing.T) {
	t.Helper()
	type key struct{ kind, ifName string }
	open := map[key]bool{}
	for _, e := range s.events(t) {
		k := key{e.Type, e.IfName}
		switch {
		case e.Command == "ADD" && !e.End:
			open[k] = true
		case e.Command == "DEL" && e.End:
			delete(open, k)
		}
	}
	for k := range open {
		t.Errorf("ADD of %s %s was not followed by a DEL", k.kind, k.ifName)
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
