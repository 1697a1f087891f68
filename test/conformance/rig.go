// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance runs the real weft-cni and its planners, as a container runtime
// does, against recording delegates (test/delegate) and either a directory of manifests
// or a small API server (internal/kube/kubetest).
//
// It owns the rig, which other black-box tests may use; its own tests are the cases of
// spec/cni.md section 3 by their numbers, from which docs/conformance.md is made, and
// what hostile users, files and disks do.
//
// Invariants: nothing is asked of Weft but through its binaries, and nothing is looked at
// but what they print, call, request and leave; what is recorded of a call names no
// place of the machine that it ran on.
//
// It must not know how Weft is built. Implements: spec/cni.md section 3; architecture 5.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/test/binaries"
)

// Mode is where pods and networks are found.
type Mode string

// Modes.
const (
	Manifests  Mode = "manifests"
	Kubeconfig Mode = "kubeconfig"
)

// Annotations of pods and networks.
const (
	NetworksAnnotation = "k8s.v1.cni.cncf.io/networks"
	DefaultAnnotation  = "v1.multus-cni.io/default-network"
	StatusAnnotation   = "k8s.v1.cni.cncf.io/network-status"
	ResourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"
)

// Rig is the fixture of spec/cni.md section 3: default network defnet (plugin pa), NADs
// default/neta (pb) and other/netb (pc), pod default/pod-a with UID uid-1, container
// cid1, interface eth0.
//
// In texts that a Rig takes, $DIR is its directory, and every recording plugin of a
// configuration gets its log and hold; in those that it gives, its directory is $DIR.
type Rig struct {
	T    testing.TB
	Mode Mode
	API  *kubetest.Server // nil for manifests
	Dir  string
	Bin  string // weft-cni
	// Path is CNI_PATH, Netns CNI_NETNS.
	Path, Netns string
	// Conf are the configuration's members, by key, as JSON.
	Conf map[string]json.RawMessage

	seen, asked int // delegates' calls and requests that were told before
}

// Delegates are the names under which the recording delegate is in CNI_PATH.
func Delegates() []string { return []string{"pa", "pb", "pc", "pd", "pk", "netf"} }

// New makes a rig whose files end with the test.
func New(tb testing.TB, mode Mode) *Rig {
	tb.Helper()
	weft := binaries.Weft(tb)
	r := &Rig{
		T: tb, Mode: mode, Dir: shortDir(tb), Bin: filepath.Join(weft, "weft-cni"),
		Path: weft + ":" + binaries.Delegate(tb, Delegates()...), Conf: map[string]json.RawMessage{},
	}
	r.Netns = r.At("netns")
	r.Write("netns", "")
	for _, dir := range []string{"hold", "manifests"} {
		if err := os.Mkdir(r.At(dir), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	r.Set(`{"cniVersion":"1.0.0","name":"m","type":"weft-cni","stateDir":"$DIR/state","cniDir":"$DIR/multus",
		"binDir":"$DIR/nobin","confDir":"$DIR/conf","deviceInfoDir":"$DIR/devinfo","kubeletDir":"$DIR/kubelet",
		"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]}`)
	if mode == Kubeconfig {
		r.API = kubetest.New(tb)
		r.Set(`{"kubeconfig":` + quote(r.API.Kubeconfig(nil)) + `}`)
	} else {
		r.Set(`{"manifests":"$DIR/manifests"}`)
	}
	r.NAD("default/neta", `{"cniVersion":"1.0.0","type":"pb"}`, nil)
	r.NAD("other/netb", `{"cniVersion":"1.0.0","type":"pc"}`, nil)
	return r
}

// shortDir is a directory whose name does not depend on the test's, and is not so long
// that a message has to shorten it.
func shortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "rig") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// At is a path below the rig's directory.
func (r *Rig) At(path string) string { return filepath.Join(r.Dir, path) }

// Write writes a file below the rig's directory.
func (r *Rig) Write(path, text string) {
	r.T.Helper()
	if err := os.MkdirAll(filepath.Dir(r.At(path)), 0o755); err != nil {
		r.T.Fatal(err)
	}
	if err := os.WriteFile(r.At(path), []byte(text), 0o644); err != nil {
		r.T.Fatal(err)
	}
}

// recorder finds the plugins that record, to tell them where.
var recorder = regexp.MustCompile(`"type":"(pa|pb|pc|pd|pk|netf)"`) //nolint:gochecknoglobals // a constant

// Expand fills in $DIR and, beside every recording plugin's type, its log and hold.
func (r *Rig) Expand(text string) string {
	text = strings.ReplaceAll(text, "$DIR", r.Dir)
	return recorder.ReplaceAllString(text, `"type":"$1","log":`+quote(r.At("calls.jsonl"))+`,"hold":`+quote(r.At("hold")))
}

// Plain is the inverse of Expand, and leaves out where else the rig is.
func (r *Rig) Plain(text string) string {
	text = strings.ReplaceAll(text, `"log":`+quote(r.At("calls.jsonl"))+`,"hold":`+quote(r.At("hold"))+`,`, "")
	text = strings.ReplaceAll(text, `,"log":`+quote(r.At("calls.jsonl"))+`,"hold":`+quote(r.At("hold")), "")
	return r.hide(text)
}

func (r *Rig) hide(text string) string {
	text = strings.ReplaceAll(text, r.Path, "$CNI_PATH")
	for dir := range strings.SplitSeq(r.Path, ":") {
		text = strings.ReplaceAll(text, dir, "$CNI_PATH")
	}
	if r.Netns != r.At("netns") {
		text = strings.ReplaceAll(text, r.Netns, "$DIR/netns")
	}
	text = strings.ReplaceAll(text, r.Dir, "$DIR")
	if r.API != nil {
		text = strings.ReplaceAll(text, r.API.URL(), "$API")
		text = strings.ReplaceAll(text, strings.TrimPrefix(r.API.URL(), "http://"), "$API")
	}
	return text
}

// Set merges a JSON object over the configuration; a null removes its key.
func (r *Rig) Set(text string) {
	r.T.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(r.Expand(text)), &m); err != nil {
		r.T.Fatalf("configuration %s: %v", text, err)
	}
	maps.Copy(r.Conf, m)
	maps.DeleteFunc(r.Conf, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
}

// NAD makes a NetworkAttachmentDefinition, named ns/name, with spec.config as it is given.
func (r *Rig) NAD(name, config string, annotations map[string]string) {
	r.T.Helper()
	ns, name, _ := strings.Cut(name, "/")
	spec, meta := map[string]any{}, map[string]any{"namespace": ns, "name": name}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	if config != "" {
		spec["config"] = r.Expand(config)
	}
	r.object("nad-"+ns+"-"+name, map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": meta, "spec": spec,
	})
}

// BareNAD makes a NAD with this spec, as JSON; "" is none at all.
func (r *Rig) BareNAD(name, spec string) {
	r.T.Helper()
	ns, name, _ := strings.Cut(name, "/")
	nad := map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"namespace": ns, "name": name},
	}
	if spec != "" {
		nad["spec"] = json.RawMessage(spec)
	}
	r.object("nad-"+ns+"-"+name, nad)
}

// Pod makes a pod; more are its further members, such as spec, and may be nil.
func (r *Rig) Pod(namespace, name, uid string, annotations map[string]string, more map[string]any) {
	r.T.Helper()
	meta := map[string]any{"namespace": namespace, "name": name, "uid": uid}
	if len(annotations) > 0 { // an API server has no empty maps
		meta["annotations"] = annotations
	}
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": meta}
	maps.Copy(pod, more)
	r.object("pod-"+namespace+"-"+name, pod)
}

func (r *Rig) object(file string, o any) {
	r.T.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		r.T.Fatal(err)
	}
	if r.API != nil {
		r.API.Apply(string(b))
		return
	}
	r.Write("manifests/"+file+".json", string(b))
}

// quote is a JSON string.
func quote(s string) string {
	b, _ := json.Marshal(s) // a string can always be encoded
	return string(b)
}

// Outcome is what one call of weft-cni did.
type Outcome struct {
	Status int    // exit status
	Stdout string // $DIR for the rig's directory, as in all texts
	Stderr string
	Error  CNIError // of Stdout, when Status is not 0
	Calls  []Call   // of delegates, in the order in which they began
	// Requests to the API server, as "get pods default/pod-a".
	Requests []string
	// Events that the pod's owner was told, as "InvalidNetworks: text".
	Events []string
}

// CNIError is the printed error.
type CNIError struct {
	CNIVersion string `json:"cniVersion"`
	Code       int    `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details"`
}

// Call is one call of a delegate.
type Call struct {
	Command, ContainerID, IfName, Netns, Args, Type, Stdin string

	PID   int
	End   bool
	T     int64
	Child int
}

func (c Call) String() string { return strings.TrimSpace(c.Type + " " + c.Command + " " + c.IfName) }

// callLimit is beyond what any call may take: one that hangs fails its test.
const callLimit = 30 * time.Second

// Command prepares a call of weft-cni; env overrides the fixture's environment, "NAME=" clears one.
func (r *Rig) Command(verb string, env ...string) *exec.Cmd {
	r.T.Helper()
	conf, err := json.Marshal(r.Conf)
	if err != nil {
		r.T.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.T.Context(), callLimit)
	r.T.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, r.Bin)
	cmd.Dir = r.Dir
	cmd.Env = append([]string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=cid1", "CNI_IFNAME=eth0", "CNI_NETNS=" + r.Netns, "CNI_PATH=" + r.Path,
		"CNI_ARGS=" + Args("default", "pod-a", "uid-1"),
	}, env...)
	cmd.Stdin = bytes.NewReader(conf)
	return cmd
}

// Args is CNI_ARGS as a runtime fills it in.
func Args(namespace, name, uid string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + name + ";K8S_POD_INFRA_CONTAINER_ID=cid1;K8S_POD_UID=" + uid
}

// Call runs weft-cni and says what it did.
func (r *Rig) Call(verb string, env ...string) Outcome {
	r.T.Helper()
	return r.Finish(r.Command(verb, env...))
}

// Finish runs a prepared call.
func (r *Rig) Finish(cmd *exec.Cmd) Outcome {
	r.T.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		r.T.Fatal(err)
	}
	o := Outcome{Requests: []string{}, Status: cmd.ProcessState.ExitCode(), Stdout: r.hide(stdout.String()), Stderr: r.hide(stderr.String())}
	if o.Status != 0 {
		if err := json.Unmarshal([]byte(o.Stdout), &o.Error); err != nil {
			r.T.Fatalf("exit status %d without a CNI error: %v\n%s\n%s", o.Status, err, o.Stdout, o.Stderr)
		}
	}
	o.Calls = r.calls()
	r.requests(&o)
	return o
}

// Events are all lines of the delegates' log: each call at its start and at its end.
func (r *Rig) Events() []Call {
	r.T.Helper()
	b, err := os.ReadFile(r.At("calls.jsonl"))
	if err != nil && !os.IsNotExist(err) {
		r.T.Fatal(err)
	}
	var all []Call
	for line := range bytes.Lines(b) {
		var c Call
		if err := json.Unmarshal(line, &c); err != nil {
			r.T.Fatalf("log line %q: %v", line, err)
		}
		all = append(all, c)
	}
	return all
}

func (r *Rig) calls() []Call {
	r.T.Helper()
	all := r.Events()
	fresh := slices.DeleteFunc(slices.Clone(all[min(r.seen, len(all)):]), func(c Call) bool { return c.End })
	r.seen = len(all)
	return fresh
}

func (r *Rig) requests(o *Outcome) {
	if r.API == nil {
		return
	}
	all := r.API.Requests()
	for _, q := range all[min(r.asked, len(all)):] {
		text := q.Verb + " " + q.Resource
		if q.Subresource != "" {
			text += "/" + q.Subresource
		}
		if q.Name != "" {
			text += " " + q.Namespace + "/" + q.Name
		}
		o.Requests = append(o.Requests, text)
		var e struct{ Reason, Message string }
		if q.Resource == "events" && json.Unmarshal([]byte(q.Body), &e) == nil {
			o.Events = append(o.Events, r.hide(e.Reason+": "+e.Message))
		}
	}
	r.asked = len(all)
}

// AwaitEvent waits until an event is among the requests of an outcome, and says whether
// one came. Events are told if there is time: a busy machine may have none.
func (r *Rig) AwaitEvent(o *Outcome) bool {
	timeout := time.After(2 * time.Second) // the planner gives up before
	for len(o.Events) == 0 {
		arrived := r.API.Arrived()
		r.requests(o)
		if len(o.Events) > 0 {
			break
		}
		select {
		case <-arrived:
		case <-timeout:
			return false
		}
	}
	return true
}

// Names are the calls as "pa ADD eth0".
func (o Outcome) Names() []string {
	names := []string{}
	for _, c := range o.Calls {
		names = append(names, c.String())
	}
	return names
}

// Left lists what is left that a DEL should have removed, as paths below the rig's directory.
func (r *Rig) Left() []string {
	r.T.Helper()
	left := []string{}
	for _, dir := range []string{"hold", "state/attachments", "state/sweep", "state/quarantine", "devinfo/cni"} {
		entries, err := os.ReadDir(r.At(dir))
		if err != nil && !os.IsNotExist(err) {
			r.T.Fatal(err)
		}
		for _, e := range entries {
			left = append(left, dir+"/"+e.Name())
		}
	}
	return left
}
