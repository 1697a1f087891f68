// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/test/lab"
)

// operatorBound is the longest that anything may take on a machine that has much else to do.
const operatorBound = 60 * time.Second

// inTime waits until f says nothing, and fails with the last that it said.
func inTime(t testing.TB, what string, f func() error) {
	t.Helper()
	var err error
	ctx, cancel := context.WithTimeout(t.Context(), operatorBound)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = f(); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// world is a cluster with nodes and configurations that end with the test.
type operatorWorld struct {
	t              testing.TB
	kube           kubernetes.Interface
	nodes, configs dynamic.ResourceInterface // configurations
}

func newOperatorWorld(t testing.TB) *operatorWorld {
	t.Helper()
	kube, err := kubernetes.NewForConfig(lab.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(lab.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	lab.InstallCRDs(t)
	of := func(resource string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{Group: "cilium.io", Version: "v2alpha1", Resource: resource})
	}
	w := &operatorWorld{t: t, kube: kube, nodes: of(nodeConfigs), configs: of(clusterConfigs)}
	w.clear(t.Context())
	t.Cleanup(func() { w.clear(context.Background()) }) //nolint:usetesting // the test's own is over
	return w
}

// clear takes all nodes and configurations away.
func (w *operatorWorld) clear(ctx context.Context) {
	w.t.Helper()
	for _, r := range []dynamic.ResourceInterface{w.configs, w.nodes} {
		if err := r.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// node makes a node, or gives an existing one the labels.
func (w *operatorWorld) node(name string, labels map[string]string) {
	w.t.Helper()
	nodes := w.kube.CoreV1().Nodes()
	_, err := nodes.Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		body, _ := json.Marshal([]any{map[string]any{"op": "replace", "path": "/metadata/labels", "value": labels}})
		_, err = nodes.Patch(w.t.Context(), name, types.JSONPatchType, body, metav1.PatchOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *operatorWorld) deleteNode(name string) {
	w.t.Helper()
	if err := w.kube.CoreV1().Nodes().Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// make creates an object.
func (w *operatorWorld) make(r dynamic.ResourceInterface, kind, name, spec string) *unstructured.Unstructured {
	w.t.Helper()
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(spec), &parsed); err != nil {
		w.t.Fatalf("%s: %v", spec, err)
	}
	o, err := r.Create(w.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": parsed,
	}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// config makes a cluster configuration with a pool of its own name; selector is YAML, "" none.
func (w *operatorWorld) config(name, selector string) *unstructured.Unstructured {
	w.t.Helper()
	spec := "spec: {pools: [{name: " + name + "}]}\n"
	if selector != "" {
		spec += "nodeSelector: " + selector + "\n"
	}
	return w.make(w.configs, clusterConfigKind, name, spec)
}

func (w *operatorWorld) patch(r dynamic.ResourceInterface, name, merge string) {
	w.t.Helper()
	if _, err := r.Patch(w.t.Context(), name, types.MergePatchType, []byte(merge), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *operatorWorld) delete(r dynamic.ResourceInterface, name string) {
	w.t.Helper()
	if err := r.Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// state is what a node's configuration says: "by POOL" of the operator, "hand POOL", or "none".
func (w *operatorWorld) state(node string) string {
	o, err := w.nodes.Get(w.t.Context(), node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "none"
	case err != nil:
		return err.Error()
	}
	who, labels := "hand", o.GetLabels()
	if labels["app.kubernetes.io/managed-by"] == "weft-operator" {
		who = o.GetAnnotations()["networkdriver.cilium.io/cluster-config"]
	}
	var pools []string
	list, _, _ := unstructured.NestedSlice(o.Object, "spec", "pools")
	for _, p := range list {
		name, _ := p.(map[string]any)["name"].(string)
		pools = append(pools, name)
	}
	return who + " " + strings.Join(pools, ",")
}

// want waits until nodes' configurations are so: pairs of a node and a state.
func (w *operatorWorld) want(pairs ...string) {
	w.t.Helper()
	for p := range slices.Chunk(pairs, 2) {
		inTime(w.t, "configuration of node "+p[0], func() error {
			if got := w.state(p[0]); got != p[1] {
				return fmt.Errorf("it is %q, want %q", got, p[1])
			}
			return nil
		})
	}
}

// status is what the status of a cluster configuration says, in one line.
func (w *operatorWorld) status(name string) string {
	o, err := w.configs.Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var s struct {
		ObservedGeneration int64
		NodeCount          int
		Nodes              []string
		Conditions         []metav1.Condition
	}
	b, _ := json.Marshal(o.Object["status"])
	if err := json.Unmarshal(b, &s); err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%d %v", s.NodeCount, s.Nodes)
	for _, c := range s.Conditions {
		text += strings.TrimSpace(fmt.Sprintf("; %s %s %s %s", c.Type, c.Status, c.Reason, c.Message))
	}
	if s.ObservedGeneration != o.GetGeneration() {
		text += "; observed an older one"
	}
	return strings.Join(strings.Fields(text), " ")
}

func (w *operatorWorld) wantStatus(pairs ...string) {
	w.t.Helper()
	for p := range slices.Chunk(pairs, 2) {
		inTime(w.t, "status of "+p[0], func() error {
			if got := w.status(p[0]); got != p[1] {
				return fmt.Errorf("it is\n %q, want\n %q", got, p[1])
			}
			return nil
		})
	}
}

// operator is one process of weft-operator.
type operatorProcess struct {
	t       testing.TB
	cmd     *exec.Cmd
	address string // of metrics and health
	log     string
	ended   bool
}

// operatorKubeconfig is that of the operator's own account, with the rights that are shipped.
func operatorKubeconfig(t testing.TB, server string) string {
	t.Helper()
	cp := lab.Cluster(t)
	rbac, err := os.ReadFile(filepath.Join(cp.Root(), "deploy", "operator", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	lab.Apply(t, string(rbac))
	token, err := cp.Kubectl(t.Context(), "", "--namespace=kube-system", "create", "token", "weft-operator", "--duration=1h")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
  clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: u, user: {token: %s}}]}`,
		server, base64.StdEncoding.EncodeToString(cp.Config().CAData), strings.TrimSpace(token))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// operatorProgram is built once.
var operatorProgram struct {
	build sync.Once
	path  string
}

// operate starts weft-operator with short leases.
func operate(t testing.TB, args ...string) *operatorProcess {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &operatorProcess{t: t, address: listener.Addr().String(), log: filepath.Join(t.TempDir(), "log")}
	listener.Close()
	log, err := os.Create(o.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	operatorProgram.build.Do(func() { operatorProgram.path = lab.Program(t, "weft-operator") })
	o.cmd = exec.Command(operatorProgram.path, append([]string{
		"--kubeconfig=" + operatorKubeconfig(t, lab.Cluster(t).Config().Host), "--metrics-address=" + o.address, "--lease=4s", "--log-format=text",
	}, args...)...)
	o.cmd.Stdout, o.cmd.Stderr = log, log
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !o.ended {
			o.end(syscall.SIGTERM)
		}
		if t.Failed() {
			text, _ := os.ReadFile(o.log)
			t.Logf("%s\n%s", o.cmd.Args, text[max(0, len(text)-6000):])
		}
	})
	return o
}

// drive is operate with the network driver, ready.
func drive(t testing.TB, args ...string) *operatorProcess {
	t.Helper()
	o := operate(t, append([]string{"--enable-network-driver"}, args...)...)
	o.ready()
	return o
}

// end ends the process by a signal and waits for it.
func (o *operatorProcess) end(s syscall.Signal) {
	o.t.Helper()
	o.ended = true
	if err := o.cmd.Process.Signal(s); err != nil {
		o.t.Fatal(err)
	}
	err := o.cmd.Wait()
	if s == syscall.SIGTERM && err != nil {
		o.t.Errorf("weft-operator ended with %v", err)
	}
}

// get is an answer of its HTTP server.
func (o *operatorProcess) get(path string) (string, error) {
	req, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, "http://"+o.address+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status + ": " + string(body))
	}
	return string(body), err
}

func (o *operatorProcess) ready() {
	o.t.Helper()
	inTime(o.t, "weft-operator is ready", func() error { _, err := o.get("/readyz"); return err })
}

// metric is the sum of a metric's values whose labels hold a text.
func (o *operatorProcess) metric(name, labels string) float64 {
	o.t.Helper()
	body, err := o.get("/metrics")
	if err != nil {
		o.t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(body) {
		var v float64
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.Contains(rest, labels) || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		if _, err := fmt.Sscan(rest[strings.LastIndex(rest, " ")+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}

// waitSecond waits until the clock shows another second, which is what creationTimestamps count.
func waitSecond(t testing.TB) {
	t.Helper()
	select {
	case <-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second + 50*time.Millisecond))):
	case <-t.Context().Done():
		t.Fatal(context.Cause(t.Context()))
	}
}

// context0 is that of cleaning up, when the test's own is over.
func context0() context.Context { return context.Background() } //nolint:usetesting // the test's own is over
