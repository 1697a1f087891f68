// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/report"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/test/binaries"
)

// node is the real weft-cni with recording delegates, the real observer, and a planner
// socket whose reports go to the reconciler; the cluster behind it is the fake.
type node struct {
	*Reconciler
	*cluster
	*observe.Observer
	t       *testing.T
	dir     string
	bin     string
	path    string
	conf    map[string]any
	mu      sync.Mutex
	reports []wire.ReportRequest
	times   []observe.Timing
}

const networksKey = "k8s.v1.cni.cncf.io/networks"

func newNode(t *testing.T) *node {
	t.Helper()
	weft := binaries.Weft(t)
	dir := t.TempDir()
	n := &node{t: t, dir: dir, cluster: newCluster(), bin: filepath.Join(weft, "weft-cni"), path: binaries.Delegate(t, "pa", "pb")}
	n.conf = map[string]any{
		"cniVersion": "1.0.0", "name": "m", "type": "weft-cni", "agentSocket": n.in("agent.sock"), "stateDir": n.in("state"),
		"cniDir": n.in("multus"), "binDir": n.in("nobin"), "confDir": n.in("conf"), "deviceInfoDir": n.in("devinfo"),
		"capabilities": map[string]bool{"io.kubernetes.cri.pod-annotations": true},
		"delegates":    []any{map[string]any{"type": "pa", "name": "defnet", "cniVersion": "1.0.0", "result": result("10.0.0.2/24")}},
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	if n.Observer, err = observe.New(n.in("state"), log); err != nil {
		t.Fatal(err)
	}
	n.Timings(func(x observe.Timing) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.times = append(n.times, x)
	})
	n.Reconciler = New(Options{StatusTimeout: 20 * time.Second, DeviceInfoDir: n.in("devinfo")}, n.Observer, n.cluster, log)
	n.notify = n.Pod
	n.write("netns", "")
	n.start(n.Observer.Run)
	n.start(n.Reconciler.Run)
	n.listen()
	return n
}

func (n *node) in(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.in(name)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.in(name), []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// start runs a component until the test's end.
func (n *node) start(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:usetesting // t.Context ends before cleanups
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	})
}

// listen serves the planner socket.
func (n *node) listen() {
	l, err := net.Listen("unix", n.in("agent.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				_ = wire.Serve(c, c, n.answer)
			})
		}
	})
	n.t.Cleanup(func() { _ = l.Close(); group.Wait() })
}

func (n *node) answer(req wire.Request) wire.Response {
	open := func(*netconf.Conf) (planner.Source, error) { return source{n}, nil }
	return planner.Handle(context.Background(), req, open, func(ctx context.Context, req wire.ReportRequest, _ planner.Open) wire.Response {
		n.mu.Lock()
		n.reports = append(n.reports, req)
		n.mu.Unlock()
		return n.Report(ctx, req)
	})
}

// source plans for pods that ask for the network neta, whose device is vf1.
type source struct{ *node }

func (s source) Pod(_ context.Context, namespace, name string) (*plan.Pod, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	p, ok := s.cache[name]
	if !ok {
		return nil, fault.New(fault.TryLater, "pod "+namespace+"/"+name, "", "is not known")
	}
	return &plan.Pod{Namespace: namespace, Name: name, UID: p.uid, Annotations: map[string]string{networksKey: "neta"}}, nil
}

func (s source) NAD(_ context.Context, ref plan.NADRef) (plan.NAD, error) {
	conf := map[string]any{
		"type": "pb", "cniVersion": "1.0.0", "result": result("10.1.0.2/24"),
		"capabilities": map[string]bool{"CNIDeviceInfoFile": true, "deviceID": true},
	}
	if _, err := os.Stat(s.in("broken")); err == nil {
		conf["fail"] = map[string]any{"ADD": map[string]any{"code": 123, "msg": "no more of these"}}
	}
	b, err := json.Marshal(conf)
	return plan.NAD{Found: ref.Name == "neta", Config: string(b), ResourceName: "ex.com/vf"}, err
}

func (s source) Devices(context.Context, *plan.Pod) (map[string][]string, error) {
	return map[string][]string{"ex.com/vf": {"vf1"}}, nil
}

func (s source) Warnings() []fault.Warning { return nil }

// run calls weft-cni for a pod of the cluster.
func (n *node) run(verb, name string, annotations map[string]string) (stdout string, ok bool) {
	n.t.Helper()
	conf := maps.Clone(n.conf)
	conf["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": annotations}
	stdin, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.CommandContext(n.t.Context(), n.bin)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c" + name, "CNI_IFNAME=eth0", "CNI_NETNS=" + n.in("netns"), "CNI_PATH=" + n.path,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name + ";K8S_POD_INFRA_CONTAINER_ID=c" + name + ";K8S_POD_UID=uid-" + name,
	}
	cmd.Stdin = bytes.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err = cmd.Run()
	if _, exit := errors.AsType[*exec.ExitError](err); err != nil && !exit {
		n.t.Error(err)
	}
	if stderr.Len() > 0 {
		n.t.Logf("%s %s: %s", verb, name, stderr.String())
	}
	return out.String(), err == nil
}

// await polls until ok is true.
func (n *node) await(what string, ok func() bool) {
	n.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			n.t.Fatalf("waited in vain until %s", what)
		}
	}
}

func result(address string) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"interfaces": []any{map[string]any{"name": "${CNI_IFNAME}", "mac": "02:00:00:00:00:01", "sandbox": "${CNI_NETNS}"}},
		"ips":        []any{map[string]any{"address": address, "interface": 0}},
	}
}

var asks = map[string]string{networksKey: "neta"}

// TestRealAdd: with the real weft-cni, the status is there when ADD answers, by one write,
// says what the report says, and stays as it is while the record goes on; DEL is seen and timed.
func TestRealAdd(t *testing.T) {
	n := newNode(t)
	n.write("devinfo/dp/ex.com-vf-vf1-device.json", `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:00:01.1"}}`)
	n.set("a", func(p *pod) { *p = pod{uid: "uid-a", annotation: "[" + foreignText + "]"} })
	if out, ok := n.run("ADD", "a", asks); !ok {
		t.Fatal(out)
	}
	annotation := n.annotation("a")
	if n.written() != 1 {
		t.Errorf("%d writes", n.written())
	}
	if d := cmp.Diff([]any{
		map[string]any{"name": "defnet", "interface": "eth0", "ips": []any{"10.0.0.2"}, "mac": "02:00:00:00:00:01", "default": true},
		map[string]any{
			"name": "default/neta", "interface": "net1", "ips": []any{"10.1.0.2"}, "mac": "02:00:00:00:00:01",
			"device-info": map[string]any{"type": "pci", "version": "1.1.0", "pci": map[string]any{"pci-address": "0000:00:01.1"}},
		},
		foreign,
	}, parsed(t, annotation)); d != "" {
		t.Error(d)
	}
	// The record says what the report says.
	status, err := report.StatusOf(n.reports[0].Attachments)
	if err != nil || len(n.reports) != 1 || !status.In(annotation) {
		t.Errorf("%d reports, %v", len(n.reports), err)
	}
	n.await("the record is finished", func() bool { return n.Counts() == observe.Counts{Records: 1, Finished: 1} })
	n.await("nothing waits", func() bool { pending, _ := n.Lag(); return pending == 0 })
	if out, ok := n.run("ADD", "a", asks); !ok { // repeated
		t.Error(out)
	}
	if n.written() != 1 || n.asked != 1 || n.annotation("a") != annotation {
		t.Errorf("%d writes, %d calls", n.written(), n.asked)
	}
	if out, ok := n.run("DEL", "a", asks); !ok {
		t.Error(out)
	}
	n.await("the record is gone", func() bool { return n.Counts() == observe.Counts{} })
	var timed []string
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.times {
		timed = append(timed, fmt.Sprintf("%s %s %v", x.Verb, x.Plugin, x.Failed))
		if x.Duration <= 0 || x.Duration > time.Minute {
			t.Errorf("%+v", x)
		}
	}
	if d := cmp.Diff([]string{"ADD pa false", "ADD pb false", "ADD  false", "DEL pb false", "DEL pa false", "DEL  false"}, timed); d != "" {
		t.Error(d)
	}
	if n.written() != 1 {
		t.Errorf("%d writes", n.written())
	}
}

// TestRealPlainPod: one that the hands plan alone has its status soon, and no ADD waits.
func TestRealPlainPod(t *testing.T) {
	n := newNode(t)
	n.pod("a")
	if out, ok := n.run("ADD", "a", map[string]string{"x": "y"}); !ok {
		t.Fatal(out)
	}
	n.await("its status is written", func() bool { return n.written() == 1 })
	if d := cmp.Diff([]any{map[string]any{
		"name": "defnet", "interface": "eth0", "ips": []any{"10.0.0.2"}, "mac": "02:00:00:00:00:01", "default": true,
	}}, parsed(t, n.annotation("a"))); d != "" || len(n.reports) != 0 {
		t.Error(d, n.reports)
	}
	if out, ok := n.run("DEL", "a", nil); !ok {
		t.Error(out)
	}
}

// TestRealFailure: an ADD that fails is told on the pod, and its status is not written.
func TestRealFailure(t *testing.T) {
	n := newNode(t)
	n.pod("a")
	n.write("broken", "")
	if out, ok := n.run("ADD", "a", asks); ok || !strings.Contains(out, "no more of these") {
		t.Errorf("ADD answers %s", out)
	}
	n.await("the record is gone", func() bool { return n.Counts() == observe.Counts{} })
	if len(n.told) != 1 || n.told[0].Reason != planner.ReasonFailed || !strings.Contains(n.told[0].Message, "no more of these") || n.asked != 0 {
		t.Errorf("told %+v, %d writes", n.told, n.asked)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.ContainsFunc(n.times, func(x observe.Timing) bool { return x.Verb == "ADD" && x.Plugin == "pb" && x.Failed }) {
		t.Errorf("timed %+v", n.times)
	}
}

// TestRealBurst: ADDs at once, with an API that is slow and at first refuses, are each
// written once, and all of them are right in the end.
func TestRealBurst(t *testing.T) {
	n := newNode(t)
	const pods = 8
	n.slow = 20 * time.Millisecond
	refusals := map[string]bool{}
	n.fault = func(name string) error { // called with the lock
		if first := !refusals[name]; first {
			refusals[name] = true
			return tooMany{}
		}
		return nil
	}
	var group sync.WaitGroup
	for i := range pods {
		name := fmt.Sprint("p", i)
		n.pod(name)
		group.Go(func() {
			if out, ok := n.run("ADD", name, asks); !ok {
				t.Error(out)
			}
		})
	}
	group.Wait()
	n.await("all are finished", func() bool { return n.Counts().Finished == pods })
	n.await("nothing waits", func() bool { pending, _ := n.Lag(); return pending == 0 })
	if n.written() != pods {
		t.Errorf("wrote to %v", n.cluster.writes)
	}
	for i := range pods {
		if all := parsed(t, n.annotation(fmt.Sprint("p", i))); len(all) != 2 {
			t.Errorf("pod %d has %v", i, all)
		}
	}
}
