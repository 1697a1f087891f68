// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/test/lab"
)

// TestOperatorPriority is T-60: the older configuration goes first, the other one says why it does
// not, and takes over when the first is gone.
func TestOperatorPriority(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", map[string]string{"role": "x"})
	w.node("n2", nil)
	w.config("b-all", "")
	waitSecond(t) // creationTimestamps have seconds
	w.config("a-role", "{matchLabels: {role: x}}")
	drive(t)
	w.want("n1", "b-all b-all", "n2", "b-all b-all")
	w.wantStatus("b-all", "2 [n1 n2]; Accepted True Valid",
		"a-role", "0 []; Accepted True Valid; cilium.io/ConflictingClusterConfiguration True configurationConflict "+
			"b-all goes first and governs nodes that this configuration selects too: n1")
	w.wantEvent("a-role", "Conflicting")
	out, err := lab.Cluster(t).Kubectl(t.Context(), "", "get", "ndcc", "--no-headers")
	if lines := strings.Fields(out); err != nil || len(lines) != 6 || lines[0] != "a-role" || lines[1] != "True" || lines[3] != "b-all" || lines[4] != "2" {
		t.Errorf("kubectl get ndcc: %q, %v", out, err)
	}
	w.delete(w.configs, "b-all")
	w.want("n1", "a-role a-role", "n2", "none")
	w.wantStatus("a-role", "1 [n1]; Accepted True Valid")
	w.wantEvent("a-role", "Resolved")
}

// TestOperatorSameAge: of one second, the name decides, in whatever order they came, whatever the
// clock of the operator says.
func TestOperatorSameAge(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", nil)
	drive(t)
	inTime(t, "two configurations of one second", func() error {
		waitSecond(t)
		z, a := w.config("z", ""), w.config("a", "")
		if z.GetCreationTimestamp() == a.GetCreationTimestamp() {
			return nil
		}
		w.delete(w.configs, "z")
		w.delete(w.configs, "a")
		return errors.New("the server's clock went on between the two")
	})
	w.want("n1", "a a")
	w.wantStatus("a", "1 [n1]; Accepted True Valid")
	// One that is made again is the youngest.
	w.delete(w.configs, "a")
	w.want("n1", "z z")
	waitSecond(t)
	w.config("a", "")
	w.wantStatus("a", "0 []; Accepted True Valid; cilium.io/ConflictingClusterConfiguration True configurationConflict "+
		"z goes first and governs nodes that this configuration selects too: n1")
	w.want("n1", "z z")
}

// TestOperatorFrozen is T-61: one that becomes conflicting keeps the nodes that it had, which are
// neither changed nor deleted until another takes them.
func TestOperatorFrozen(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", map[string]string{"role": "x"})
	w.node("n2", map[string]string{"role": "z"})
	w.config("first", "{matchLabels: {role: x}}")
	waitSecond(t)
	w.config("second", "{matchLabels: {role: z}}")
	drive(t)
	w.want("n1", "first first", "n2", "second second")
	w.patch(w.configs, "second", `{"spec":{"nodeSelector":{"matchLabels":null,"matchExpressions":[{"key":"role","operator":"Exists"}]},"spec":{"pools":[{"name":"changed"}]}}}`)
	w.wantStatus("second", "0 []; Accepted True Valid; cilium.io/ConflictingClusterConfiguration True configurationConflict "+
		"first goes first and governs nodes that this configuration selects too: n1")
	w.want("n1", "first first", "n2", "second second")
	w.config("third", "{matchLabels: {role: z}}")
	w.want("n2", "third third")
	w.delete(w.configs, "third")
	w.want("n2", "none")
	w.delete(w.configs, "first")
	w.want("n1", "second changed", "n2", "second changed")
}

// TestOperatorDrift is T-62: what goes, changes or is changed by hand is made right.
func TestOperatorDrift(t *testing.T) {
	w := newOperatorWorld(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		w.node(n, map[string]string{"role": "x"})
	}
	w.config("c", "{matchLabels: {role: x}}")
	o := drive(t)
	w.want("n1", "c c", "n2", "c c", "n3", "c c")
	w.node("n1", map[string]string{"role": "z"})
	w.deleteNode("n2")
	w.want("n1", "none", "n2", "none", "n3", "c c")
	w.wantStatus("c", "1 [n3]; Accepted True Valid")

	// Fields of others go; labels and annotations of others stay.
	w.patch(w.nodes, "n3", `{"metadata":{"labels":{"mine":"1"},"annotations":{"mine":"2"}},"spec":{"pools":[{"name":"hand"},{"name":"c"}],"draRegistrationTimeout":7}}`)
	w.want("n3", "c c")
	object, err := w.nodes.Get(t.Context(), "n3", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := json.Marshal(object.Object["spec"])
	if object.GetLabels()["mine"] != "1" || object.GetAnnotations()["mine"] != "2" || !strings.Contains(string(spec), `"draRegistrationTimeout":5`) {
		t.Errorf("%v %v %s", object.GetLabels(), object.GetAnnotations(), spec)
	}
	uid := object.GetUID()
	w.delete(w.nodes, "n3")
	inTime(t, "n3 is made again", func() error {
		object, err := w.nodes.Get(t.Context(), "n3", metav1.GetOptions{})
		if err == nil && object.GetUID() == uid {
			err = errors.New("it is the old one")
		}
		return err
	})
	w.want("n3", "c c")
	// A mark that is taken away makes it one written by hand, which is adopted again.
	w.patch(w.nodes, "n3", `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`)
	w.want("n3", "c c")
	// A status that is written by hand, and a spec that is changed.
	if _, err := w.configs.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"status":{"nodeCount":9,"nodes":["x"]}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	w.wantStatus("c", "1 [n3]; Accepted True Valid")
	w.patch(w.configs, "c", `{"spec":{"spec":{"pools":[{"name":"new"}]}}}`)
	w.want("n3", "c new")
	w.quiet(o)
}

// TestOperatorByHand is T-63: what was written by hand survives, and comes back.
func TestOperatorByHand(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", map[string]string{"role": "x"})
	w.node("n2", nil)
	for _, n := range []string{"n1", "n2", "no-node"} {
		w.make(w.nodes, nodeConfigKind, n, `{pools: [{name: hand, filter: {ifNames: [x]}}], draRegistrationTimeout: 9}`)
	}
	o := drive(t)
	w.quiet(o)
	w.want("n1", "hand hand", "n2", "hand hand", "no-node", "hand hand")
	w.config("c", "{matchLabels: {role: x}}")
	w.want("n1", "c c", "n2", "hand hand")
	w.wantEvent("n1", "Adopted")
	w.patch(w.configs, "c", `{"spec":{"spec":{"pools":[{"name":"new"}]}}}`)
	w.want("n1", "c new")
	w.delete(w.configs, "c")
	w.want("n1", "hand hand", "n2", "hand hand", "no-node", "hand hand")
	object, err := w.nodes.Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := json.Marshal(object.Object["spec"])
	if !strings.Contains(string(spec), `"draRegistrationTimeout":9`) || !strings.Contains(string(spec), `"ifNames":["x"]`) || len(object.GetAnnotations())+len(object.GetLabels()) != 0 {
		t.Errorf("put back: %v %v %s", object.GetLabels(), object.GetAnnotations(), spec)
	}
}

// TestOperatorRestart is T-64: an operator that starts writes nothing where all is right; one that is
// killed at any point leaves nothing that the next one does not finish.
func TestOperatorRestart(t *testing.T) {
	w := newOperatorWorld(t)
	const nodes = 120
	var want []string
	for i := range nodes {
		name := fmt.Sprintf("n%03d", i)
		w.node(name, map[string]string{"role": fmt.Sprint(i % 3)})
		want = append(want, name, fmt.Sprintf("c%d c%d", i%3, i%3))
	}
	for i := range 3 {
		w.config(fmt.Sprint("c", i), fmt.Sprintf("{matchLabels: {role: %q}}", fmt.Sprint(i)))
	}
	w.make(w.nodes, nodeConfigKind, "n005", `{pools: [{name: hand}]}`)
	made := func() int {
		list, err := w.nodes.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	for _, at := range []int{2, 30, 70, 100} { // objects, when the process is killed
		o := operate(t, "--enable-network-driver", "--api-rate=60")
		inTime(t, "work begins", func() error {
			if n := made(); n < at {
				return fmt.Errorf("%d of %d", n, at)
			}
			return nil
		})
		o.end(syscall.SIGKILL)
	}
	o := drive(t)
	w.want(want...)
	w.quiet(o)
	o.end(syscall.SIGTERM)
	o = drive(t)
	inTime(t, "it leads", func() error {
		if o.metric("weft_operator_leader", "") != 1 || o.metric("weft_operator_reconcile_duration_seconds_count", `kind="config"`) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	w.quiet(o)
	if n := o.metric("weft_operator_writes_total", ""); n != 0 {
		t.Errorf("%v writes where all was right", n)
	}
	// Killed while nodes change and while they are deleted.
	for i := range nodes {
		w.node(fmt.Sprintf("n%03d", i), map[string]string{"role": "none"})
		if i == nodes/2 {
			o.end(syscall.SIGKILL)
		}
	}
	o = drive(t)
	for i := range nodes {
		want[2*i+1] = "none"
	}
	want[2*5+1] = "hand hand"
	w.want(want...)
	w.quiet(o)
}

// TestOperatorWrong is T-65: what is wrong with a configuration is said on itself, and changes
// nothing elsewhere, nor on the nodes that it had.
func TestOperatorWrong(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", map[string]string{"role": "x"})
	w.node("n2", map[string]string{"role": "z"})
	w.config("good", "{matchLabels: {role: z}}")
	w.config("wrong", "{matchLabels: {role: x}}")
	drive(t)
	w.want("n1", "wrong wrong", "n2", "good good")
	// The definition takes this selector, whose key is none.
	w.patch(w.configs, "wrong", `{"spec":{"nodeSelector":{"matchLabels":null,"matchExpressions":[{"key":"no key!","operator":"Exists"}]}}}`)
	inTime(t, "it is said", func() error {
		if s := w.status("wrong"); !strings.Contains(s, "Accepted False Invalid") || !strings.Contains(s, "nodeSelector") {
			return errors.New(s)
		}
		return nil
	})
	w.wantEvent("wrong", "Invalid")
	w.want("n1", "wrong wrong", "n2", "good good")
	w.wantStatus("good", "1 [n2]; Accepted True Valid")
	w.patch(w.configs, "good", `{"spec":{"spec":{"pools":[{"name":"new"}]}}}`)
	w.want("n2", "good new")
	w.patch(w.configs, "wrong", `{"spec":{"nodeSelector":{"matchExpressions":null,"matchLabels":{"role":"x"}}}}`)
	w.wantStatus("wrong", "1 [n1]; Accepted True Valid")
	// A field that the definition does not have is dropped by the server, and no reason to write.
	w.patch(w.configs, "good", `{"spec":{"spec":{"frob":1,"pools":[{"name":"newer","frob":2}]}}}`)
	w.want("n2", "good newer")
}

// TestOperatorGate: without the flag it serves health and does nothing.
func TestOperatorGate(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", nil)
	w.config("c", "")
	o := operate(t)
	o.ready()
	o.end(syscall.SIGTERM)
	if got := w.state("n1"); got != "none" {
		t.Errorf("n1 is %q", got)
	}
	operate(t, "--enable-cilium-network-driver")
	w.want("n1", "c c")
}

// TestOperatorReplicas: one of two leads; the other has everything at hand and takes over, at once
// when the leader is told to end, after a lease's time when it is killed.
func TestOperatorReplicas(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", nil)
	w.config("c", "")
	first := drive(t)
	w.want("n1", "c c")
	second := drive(t)
	if second.metric("weft_operator_leader", "") != 0 {
		t.Error("both lead")
	}
	for i, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		first.end(s)
		name := fmt.Sprint("m", i)
		w.node(name, nil)
		w.want(name, "c c")
		if second.metric("weft_operator_leader", "") != 1 {
			t.Error("another one wrote")
		}
		first, second = second, drive(t)
	}
}

// TestOperatorServerAway: the API server ends and comes back; nothing is lost, and nothing deleted.
func TestOperatorServerAway(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", map[string]string{"role": "x"})
	w.config("c", "{matchLabels: {role: x}}")
	o := drive(t, "--lease=60s") // a lead is not kept without a server, so it is a longer one
	w.want("n1", "c c")
	before, err := w.nodes.Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cp := lab.Cluster(t)
	if err := cp.End(t.Context(), lab.APIServer, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cp.Start(lab.APIServer); err != nil {
		t.Fatal(err)
	}
	if err := cp.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.node("n2", map[string]string{"role": "x"})
	w.want("n2", "c c")
	after, err := w.nodes.Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("n1 was written: %v", err)
	}
	if _, err := o.get("/healthz"); err != nil {
		t.Error(err)
	}
}

// TestOperatorFlips: labels change all the time; in the end every node has what its labels say, and
// no node was written that did not change.
func TestOperatorFlips(t *testing.T) {
	const nodes = 40
	flips := 2000
	if os.Getenv("WEFT_E2E_FULL") != "" {
		flips = 10000
	}
	w := newOperatorWorld(t)
	roles := map[string]string{}
	for i := range nodes + 1 {
		name := fmt.Sprintf("n%02d", i)
		roles[name] = "a"
		w.node(name, map[string]string{"role": "a"})
	}
	for _, c := range []string{"a", "b", "c"} {
		w.config(c, fmt.Sprintf("{matchLabels: {role: %s}}", c))
	}
	still := fmt.Sprintf("n%02d", nodes)
	o := drive(t)
	w.want(still, "a a")
	before, err := w.nodes.Get(t.Context(), still, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	start := time.Now()
	for range flips {
		name := fmt.Sprintf("n%02d", random.IntN(nodes))
		roles[name] = string("abcd"[random.IntN(4)])
		w.node(name, map[string]string{"role": roles[name]})
	}
	for name, role := range roles {
		want := role + " " + role
		if role == "d" {
			want = "none"
		}
		w.want(name, want)
	}
	t.Logf("%d flips, one after the other, until all is right: %s; %v writes", flips, time.Since(start).Round(time.Second), o.metric("weft_operator_writes_total", ""))
	after, err := w.nodes.Get(t.Context(), still, metav1.GetOptions{})
	if err != nil || after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("%s was written: %v", still, err)
	}
	w.quiet(o)
}

// ciliumNodes defines CiliumNodes until the test ends.
func ciliumNodes(t *testing.T) {
	t.Helper()
	lab.Apply(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumnodes.cilium.io}
spec:
  group: cilium.io
  scope: Cluster
  names: {kind: CiliumNode, plural: ciliumnodes, singular: ciliumnode}
  versions:
  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`)
	t.Cleanup(func() {
		if _, err := lab.Cluster(t).Kubectl(context.Background(), "", "delete", "crd", "ciliumnodes.cilium.io", "--ignore-not-found"); err != nil { //nolint:usetesting // the test's own is over
			t.Error(err)
		}
	})
	if _, err := lab.Cluster(t).Kubectl(t.Context(), "", "wait", "--for=condition=Established", "--timeout=60s", "crd/ciliumnodes.cilium.io"); err != nil {
		t.Fatal(err)
	}
}

// TestOperatorCiliumNodes: nodes are CiliumNodes as soon as there are any, and core Nodes again when
// there are none; in between nothing is taken away.
func TestOperatorCiliumNodes(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", map[string]string{"role": "x"})
	w.config("c", "{matchLabels: {role: x}}")
	drive(t, "--look=300ms")
	w.want("n1", "c c")
	ciliumNodes(t)
	lab.Apply(t, "{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n1, labels: {role: x}}}")
	lab.Apply(t, "{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: c1, labels: {role: x}}}")
	w.want("c1", "c c", "n1", "c c")
	lab.Apply(t, "{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n1, labels: {role: z}}}")
	w.want("n1", "none")
	if _, err := lab.Cluster(t).Kubectl(t.Context(), "", "delete", "crd", "ciliumnodes.cilium.io"); err != nil {
		t.Fatal(err)
	}
	w.want("n1", "c c", "c1", "none")
}

// quiet waits until nothing waits, and looks that the writes end: what is still to be said of the last
// change (a status waits a little) takes its time on a busy machine; two seconds without a write must come.
func (w *operatorWorld) quiet(o *operatorProcess) {
	w.t.Helper()
	inTime(w.t, "nothing waits", func() error {
		if n := o.metric("weft_operator_pending", ""); n != 0 {
			return fmt.Errorf("%v wait", n)
		}
		return nil
	})
	const quiet, most = 2, 15                                       // seconds
	writes, still := o.metric("weft_operator_writes_total", ""), -1 // the first one is not whole
	for range most {
		waitSecond(w.t)
		now := o.metric("weft_operator_writes_total", "")
		if still++; now != writes {
			writes, still = now, 0
		}
		if still == quiet {
			return
		}
	}
	w.t.Errorf("it has not ceased to write after %d seconds in which nothing changed", most)
}

// wantEvent waits for an event about a configuration.
func (w *operatorWorld) wantEvent(name, reason string) {
	w.t.Helper()
	inTime(w.t, "event "+reason+" of "+name, func() error {
		list, err := w.kube.EventsV1().Events(corev1.NamespaceDefault).List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == name && e.Reason == reason && time.Since(e.EventTime.Time) < 2*operatorBound {
				return nil
			}
		}
		return fmt.Errorf("none of %d events", len(list.Items))
	})
}
