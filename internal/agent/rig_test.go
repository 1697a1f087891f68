// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/internal/host/logs/logstest"
	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/test/binaries"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

const (
	networksKey = "k8s.v1.cni.cncf.io/networks"
	statusKey   = "k8s.v1.cni.cncf.io/network-status"
	token       = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ3ZWZ0In0.c2VjcmV0LXNpZ25hdHVyZQ"
)

// rig is a node without a kubelet: the real weft-agent and weft-cni, a primary conf and
// NADs with recording delegates, and an API server.
type rig struct {
	t      *testing.T
	server *kubetest.Server
	weft   string // directory of weft-agent and weft-cni
	dir    string
	log    string // of the delegates
	hold   string
	netns  string
	config map[string]any
	agent  *process
	seen   int
}

// process is a running weft-agent.
type process struct {
	cmd   *exec.Cmd
	log   *logstest.Buffer
	ended chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	netns := kerneltest.Netns(t).Path()
	loopback(t)
	r := &rig{
		t: t, dir: dir, netns: netns, weft: binaries.Weft(t), log: filepath.Join(dir, "calls.jsonl"), hold: filepath.Join(dir, "hold"),
		server: kubetest.New(t, kubetest.WithTLS(), kubetest.WithToken(token)),
	}
	for _, d := range []string{r.hold, r.confDir(), filepath.Join(dir, "kubelet")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.write(filepath.Join(r.confDir(), "10-primary.conflist"), r.json(map[string]any{
		"cniVersion": "1.0.0", "name": "primary",
		"plugins": []any{r.delegate("pa", "10.1.0.5/24", "capabilities", map[string]any{"portMappings": true})},
	}))
	r.config = map[string]any{
		"nodeName": "n1", "kubeconfig": r.server.Kubeconfig(nil), "stateDir": filepath.Join(dir, "state"), "socketDir": filepath.Join(dir, "run"),
		"metricsAddress": "127.0.0.1:0", "log": map[string]any{"level": "debug"},
		"cni": map[string]any{
			"confDir": r.confDir(), "binDir": binaries.Delegate(t, "pa", "pb", "pc"), "kubeletDir": filepath.Join(dir, "kubelet"),
			"cniDir": filepath.Join(dir, "multus"), "deviceInfoDir": filepath.Join(dir, "devinfo"),
		},
	}
	r.server.Apply(r.nad("neta", r.delegate("pb", "10.2.0.7/24", "cniVersion", "1.0.0")))
	return r
}

// loopback sets up that of the tests' own namespace: the API server is there.
func loopback(t *testing.T) {
	t.Helper()
	// Not /proc/self, which is the first thread: that one may have been given to a namespace.
	n, err := kernel.OpenNetns("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.SetUp("lo", true); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) confDir() string   { return filepath.Join(r.dir, "net.d") }
func (r *rig) published() string { return filepath.Join(r.confDir(), "00-weft.conflist") }

// delegate is a recording delegate's conf that answers one address.
func (r *rig) delegate(kind, address string, pairs ...any) map[string]any {
	out := map[string]any{"type": kind, "log": r.log, "hold": r.hold, "result": map[string]any{
		"cniVersion": "1.0.0",
		"interfaces": []any{map[string]any{"name": "${CNI_IFNAME}", "mac": "02:00:00:00:00:01", "sandbox": "${CNI_NETNS}"}},
		"ips":        []any{map[string]any{"address": address, "interface": 0}},
	}}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(string)] = pairs[i+1]
	}
	return out
}

// nad and pod are manifests. Pods are of this node.
func (r *rig) nad(name string, config any) string {
	return r.json(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"config": r.json(config)},
	})
}

func (r *rig) pod(name, networks string) string {
	meta := map[string]any{"name": name, "uid": "uid-" + name}
	if networks != "" {
		meta["annotations"] = map[string]any{networksKey: networks}
	}
	return r.json(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": map[string]any{"nodeName": "n1"}})
}

func (r *rig) json(v any) string {
	r.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

func (r *rig) write(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) read(path string) string {
	r.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	return string(b)
}

// command is weft-agent with the rig's configuration.
func (r *rig) command(args ...string) *exec.Cmd {
	r.t.Helper()
	path := filepath.Join(r.dir, "agent.yaml")
	r.write(path, r.json(r.config)) // JSON is YAML
	cmd := exec.Command(filepath.Join(r.weft, "weft-agent"), append(args, "--config", path)...)
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start starts the agent, with a few environment variables.
func (r *rig) start(env ...string) *process {
	r.t.Helper()
	p := &process{cmd: r.command(), log: &logstest.Buffer{}, ended: make(chan error, 1)}
	p.cmd.Stderr = p.log
	p.cmd.Env = append(p.cmd.Env, env...)
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	r.agent = p
	r.t.Cleanup(func() {
		r.kill()
		if r.t.Failed() {
			r.t.Logf("agent %d:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

func (r *rig) startReady(env ...string) *process {
	r.t.Helper()
	p := r.start(env...)
	r.await("the agent is ready", func() bool { return r.node().Ready })
	return p
}

// stop ends the agent in order.
func (r *rig) stop() {
	r.t.Helper()
	p := r.agent
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		p.ended <- err
		if err != nil {
			r.t.Fatalf("the agent ended with %v", err)
		}
	case <-time.After(bound):
		r.t.Fatal("the agent does not end")
	}
}

// kill ends the agent as a crash does.
func (r *rig) kill() {
	_ = r.agent.cmd.Process.Kill()
	err := <-r.agent.ended
	r.agent.ended <- err
}

// debug is a client of the agent's debug socket.
func (r *rig) debug() *debug.Client {
	c := debug.NewClient(filepath.Join(r.dir, "run", "debug.sock"))
	r.t.Cleanup(c.Close)
	return c
}

// node is the agent's state, zero while it does not answer.
func (r *rig) node() debug.Node {
	c := debug.NewClient(filepath.Join(r.dir, "run", "debug.sock"))
	defer c.Close()
	answer, err := c.Node(r.t.Context())
	if err != nil {
		return debug.Node{}
	}
	return answer.State
}

func condition(n debug.Node, name string) bool {
	for _, c := range n.Conditions {
		if c.Name == name {
			return c.OK
		}
	}
	return false
}

// bound is how long anything that happens at once may take.
const bound = 30 * time.Second

func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(bound); !ok(); {
		if time.Now().After(deadline) {
			r.t.Fatalf("waited in vain until %s", what)
		}
		if r.agent != nil {
			select {
			case err := <-r.agent.ended:
				r.agent.ended <- err
				if r.agent.cmd.ProcessState.ExitCode() != 0 {
					r.t.Fatalf("waiting until %s, the agent ended: %v", what, err)
				}
			default:
			}
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // waits for another process
	}
}

// cni runs weft-cni as a runtime does that reads the published conf; annotations are the pod's.
func (r *rig) cni(verb, pod string, annotations map[string]string) (int, string) {
	r.t.Helper()
	cmd := r.call(verb, pod, annotations)
	out, err := cmd.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		r.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (r *rig) call(verb, pod string, annotations map[string]string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(filepath.Join(r.weft, "weft-cni"))
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=cid-" + pod, "CNI_IFNAME=eth0", "CNI_NETNS=" + r.netns, "CNI_PATH=" + r.weft,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_INFRA_CONTAINER_ID=cid-" + pod + ";K8S_POD_UID=uid-" + pod,
	}
	cmd.Stdin = strings.NewReader(r.stdin(annotations))
	return cmd
}

// stdin is the published conf as a runtime hands it to the plugin.
func (r *rig) stdin(annotations map[string]string) string {
	r.t.Helper()
	var list struct {
		Name, CNIVersion string
		Plugins          []map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(r.read(r.published())), &list); err != nil || len(list.Plugins) != 1 {
		r.t.Fatalf("published conf: %v\n%s", err, r.read(r.published()))
	}
	conf := map[string]any{}
	for k, v := range list.Plugins[0] {
		conf[k] = v
	}
	conf["name"], conf["cniVersion"] = list.Name, list.CNIVersion
	conf["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": annotations}
	return r.json(conf)
}

// add is an ADD of a pod that must succeed.
func (r *rig) add(pod, networks string) {
	r.t.Helper()
	if code, out := r.cni("ADD", pod, asks(networks)); code != 0 {
		r.t.Fatalf("ADD of %s: exit %d: %s", pod, code, out)
	}
}

// del is a DEL of a pod that must succeed.
func (r *rig) del(pod string) {
	r.t.Helper()
	if code, out := r.cni("DEL", pod, nil); code != 0 {
		r.t.Fatalf("DEL of %s: exit %d: %s", pod, code, out)
	}
}

func asks(networks string) map[string]string {
	if networks == "" {
		return map[string]string{"other": "annotation"}
	}
	return map[string]string{networksKey: networks}
}

// calls lists the delegates' calls since the last look as "pa ADD eth0".
func (r *rig) calls() []string {
	r.t.Helper()
	all := []string{}
	for line := range strings.Lines(r.read(r.log)) {
		var e struct {
			Command, IfName, Type string
			End                   bool
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			r.t.Fatal(err)
		}
		if !e.End {
			all = append(all, e.Type+" "+e.Command+" "+e.IfName)
		}
	}
	n := r.seen
	r.seen = len(all)
	return all[n:]
}

// status is the pod's network-status as "name interface address" lines.
func (r *rig) status(pod string) []string {
	r.t.Helper()
	var entries []struct {
		Name, Interface string
		IPs             []string
	}
	if text := r.server.Annotation("default", pod, statusKey); text != "" {
		if err := json.Unmarshal([]byte(text), &entries); err != nil {
			r.t.Fatal(err)
		}
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name+" "+e.Interface+" "+strings.Join(e.IPs, ","))
	}
	return out
}

// requests are those that the server got, but for events and what follows the caches.
func (r *rig) requests() []string {
	out := []string{}
	for _, q := range r.server.Requests() {
		if q.Verb != "watch" && q.Resource != "events" {
			out = append(out, strings.TrimSpace(q.Verb+" "+q.Resource+" "+q.Name+" "+q.Subresource))
		}
	}
	return out
}

// wantClean checks that nothing that a delegate made, and no record, is left.
func (r *rig) wantClean() {
	r.t.Helper()
	for _, dir := range []string{r.hold, filepath.Join(r.dir, "state", "attachments")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			r.t.Fatal(err)
		}
		for _, e := range entries {
			r.t.Errorf("left: %s/%s", filepath.Base(dir), e.Name())
		}
	}
}

// get asks the agent's HTTP server.
func (r *rig) get(path string) (int, string) {
	r.t.Helper()
	var address string
	r.await("the agent serves HTTP", func() bool {
		for line := range strings.Lines(r.agent.log.String()) {
			var e struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &e) == nil && e.Msg == "serving metrics and health" {
				address = e.Address
			}
		}
		return address != ""
	})
	res, err := http.Get("http://" + address + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// rss is the agent's anonymous memory in bytes.
func (p *process) rss(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var kib int
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("the kernel tells no RssAnon")
	return 0
}
