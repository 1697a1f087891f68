// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/test/binaries"
)

// rig is the fixture of spec/cni.md section 3: the real weft-cni and weft-planner,
// recording delegates pa, pb and pc, and a directory of manifests.
type rig struct {
	t         *testing.T
	bin       string // weft-cni
	path      string // CNI_PATH
	dir       string
	state     string
	log       string
	hold      string
	manifests string
	netns     string
	conf      map[string]any
	seen      int // calls that were looked at before
}

type answer struct {
	status int
	stdout string
	stderr string
}

// cniError is the printed error; the zero value when the call succeeded.
type cniError struct {
	CNIVersion string `json:"cniVersion"`
	Code       int    `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details"`
}

func newRig(t *testing.T) *rig {
	t.Helper()
	weft := binaries.Weft(t)
	dir := t.TempDir()
	r := &rig{
		t: t, bin: filepath.Join(weft, "weft-cni"), dir: dir,
		path:      weft + ":" + binaries.Delegate(t, "pa", "pb", "pc", "netf"),
		state:     filepath.Join(dir, "state"),
		log:       filepath.Join(dir, "calls.jsonl"),
		hold:      filepath.Join(dir, "hold"),
		manifests: filepath.Join(dir, "manifests"),
		netns:     filepath.Join(dir, "netns"),
	}
	for _, d := range []string{r.hold, r.manifests} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.write(r.netns, "")
	r.conf = map[string]any{
		"cniVersion": "1.0.0", "name": "m", "type": "weft-cni",
		"manifests": r.manifests, "stateDir": r.state, "cniDir": filepath.Join(dir, "multus"),
		"binDir": filepath.Join(dir, "nobin"), "confDir": filepath.Join(dir, "conf"),
		"delegates": []any{r.delegate("pa", "cniVersion", "1.0.0", "name", "defnet")},
	}
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0"))
	r.nad("other", "netb", r.delegate("pc", "cniVersion", "1.0.0"))
	return r
}

// delegate is a plugin's conf with the log and hold of the rig, and more keys as pairs.
func (r *rig) delegate(kind string, pairs ...any) map[string]any {
	out := map[string]any{"type": kind, "log": r.log, "hold": r.hold}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(string)] = pairs[i+1]
	}
	return out
}

func (r *rig) write(path, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// nad writes a NAD manifest; config is any JSON value, or a string that is taken as it is.
func (r *rig) nad(ns, name string, config any) {
	r.t.Helper()
	text, ok := config.(string)
	if !ok {
		text = r.json(config)
	}
	r.write(filepath.Join(r.manifests, "nad-"+ns+"-"+name+".json"), r.json(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"namespace": ns, "name": name},
		"spec":     map[string]any{"config": text},
	}))
}

// pod writes the manifest of pod default/pod-a; annotations are key, value pairs.
func (r *rig) pod(annotations ...string) {
	r.t.Helper()
	m := map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		m[annotations[i]] = annotations[i+1]
	}
	r.write(filepath.Join(r.manifests, "pod.json"), r.json(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"namespace": "default", "name": "pod-a", "uid": "uid-1", "annotations": m},
	}))
}

const networks = "k8s.v1.cni.cncf.io/networks"

func (r *rig) json(v any) string {
	r.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// command prepares a call; env entries override the fixture's, "NAME=" clears one.
func (r *rig) command(verb string, env ...string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), r.bin)
	cmd.Env = append([]string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=cid1", "CNI_IFNAME=eth0", "CNI_NETNS=" + r.netns,
		"CNI_PATH=" + r.path,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-a;K8S_POD_INFRA_CONTAINER_ID=cid1;K8S_POD_UID=uid-1",
	}, env...)
	cmd.Stdin = strings.NewReader(r.json(r.conf))
	return cmd
}

func (r *rig) run(verb string, env ...string) answer {
	r.t.Helper()
	return r.finish(r.command(verb, env...))
}

func (r *rig) finish(cmd *exec.Cmd) answer {
	r.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		r.t.Fatal(err)
	}
	return answer{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ok runs a call that must succeed and returns its stdout.
func (r *rig) ok(verb string, env ...string) string {
	r.t.Helper()
	a := r.run(verb, env...)
	if a.status != 0 {
		r.t.Fatalf("%s: exit %d\n%s\n%s", verb, a.status, a.stdout, a.stderr)
	}
	return a.stdout
}

// fails runs a call that must answer a CNI error with that code and those words.
func (r *rig) fails(code int, words, verb string, env ...string) cniError {
	r.t.Helper()
	a := r.run(verb, env...)
	var e cniError
	if err := json.Unmarshal([]byte(a.stdout), &e); a.status != 1 || err != nil {
		r.t.Fatalf("%s: exit %d, no CNI error: %v\n%s\n%s", verb, a.status, err, a.stdout, a.stderr)
	}
	if e.Code != code || !strings.Contains(e.Msg+" "+e.Details, words) {
		r.t.Fatalf("%s answers %d %q (%q), want code %d with %q", verb, e.Code, e.Msg, e.Details, code, words)
	}
	return e
}

// event is one line of the delegates' log.
type event struct {
	Command     string
	ContainerID string
	IfName      string
	Netns       string
	Args        string
	Type        string
	Stdin       string
	PID         int
	Child       int
	T           int64
	End         bool
}

func (r *rig) events() []event {
	r.t.Helper()
	b, err := os.ReadFile(r.log)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	var out []event
	for line := range strings.Lines(string(b)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			r.t.Fatalf("log line %q: %v", line, err)
		}
		out = append(out, e)
	}
	return out[min(r.seen, len(out)):]
}

// started are the delegates' calls since the last look, in the order in which they began.
func (r *rig) started() []event {
	return slices.DeleteFunc(r.events(), func(e event) bool { return e.End })
}

// calls lists the delegates' calls since the last look as "pa ADD eth0", and has looked.
func (r *rig) calls() []string {
	r.t.Helper()
	out := []string{}
	for _, e := range r.started() {
		out = append(out, e.Type+" "+e.Command+" "+e.IfName)
	}
	r.seen += len(r.events())
	return out
}

func (r *rig) wantCalls(want ...string) {
	r.t.Helper()
	if got := r.calls(); !slices.Equal(got, want) {
		r.t.Errorf("delegates were called\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// files lists a directory, "" when there is none.
func (r *rig) files(dir string) []string {
	r.t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func (r *rig) record() string { return filepath.Join(r.state, "attachments", "cid1-eth0.jsonl") }

// wantClean checks that nothing that a delegate made, and no record, is left.
func (r *rig) wantClean() {
	r.t.Helper()
	for _, dir := range []string{r.hold, filepath.Join(r.state, "attachments"), filepath.Join(r.state, "sweep")} {
		if left := r.files(dir); len(left) > 0 {
			r.t.Errorf("left in %s: %v", filepath.Base(dir), left)
		}
	}
}

// await polls until ok is true.
func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			r.t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // waits for another process
	}
}

// result is the conf of a delegate's result with one interface and address.
func result(version, address string) map[string]any {
	return map[string]any{
		"cniVersion": version,
		"interfaces": []any{map[string]any{"name": "${CNI_IFNAME}", "mac": "02:00:00:00:00:01", "sandbox": "${CNI_NETNS}"}},
		"ips":        []any{map[string]any{"address": address, "interface": 0}},
	}
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}
