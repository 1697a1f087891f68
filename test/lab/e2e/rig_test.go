// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/image"
)

// Annotations of pods.
const (
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
	statusAnnotation   = "k8s.v1.cni.cncf.io/network-status"
)

// Bounds of waits. The machine may be busy with other things; all is well much sooner.
const (
	limit    = 3 * time.Minute
	interval = 200 * time.Millisecond
)

// nadResource is where NetworkAttachmentDefinitions are served.
var nadResource = schema.GroupVersionResource{ //nolint:gochecknoglobals // a constant that Go has no word for
	Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions",
}

// installed is done once: the cluster of the test binary has Weft from then on.
var installed = sync.OnceValue(func() error { //nolint:gochecknoglobals // one cluster per test process
	ctx, cancel := context.WithTimeoutCause(context.Background(), 2*limit, errors.New("weft is not installed in time"))
	defer cancel()
	return theCluster.InstallWeft(ctx)
})

// theCluster is lab.Cluster for installed, which has no test.
var theCluster *lab.ControlPlane //nolint:gochecknoglobals // set by the first rig, before installed reads it

// rig is one test's share of the cluster: a namespace of its own on the first node, with Weft
// installed as deploy/ ships it. When the test is over its pods are gone, and nothing of them
// is left on the node.
type rig struct {
	t     *testing.T
	cp    *lab.ControlPlane
	node  *lab.Node
	kube  *kubernetes.Clientset
	nads  dynamic.NamespaceableResourceInterface
	ns    string
	start time.Time

	configured bool // the agents' configuration is not the shipped one
	patience   time.Duration
}

// newRig makes the rig of a test. Tests with one cannot be parallel: they look for leftovers.
func newRig(t *testing.T) *rig {
	t.Helper()
	theCluster = lab.Cluster(t)
	r := &rig{t: t, cp: theCluster, node: theCluster.Nodes()[0], start: time.Now(), patience: limit}
	if err := installed(); err != nil {
		t.Fatal("install weft: ", err)
	}
	var err error
	if r.kube, err = kubernetes.NewForConfig(r.cp.Config()); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(r.cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	r.nads = client.Resource(nadResource)
	t.Cleanup(r.clean) // after the namespace is gone
	r.ns = lab.Namespace(t)
	t.Cleanup(r.keepLogs) // before it is gone
	r.agentReady()
	return r
}

// step says what the test does now, and when.
func (r *rig) step(format string, args ...any) {
	r.t.Helper()
	r.t.Logf("%5.1f s: %s", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// wait calls f until it succeeds; f's last error is what was seen last.
func (r *rig) wait(what string, f func() error) {
	r.t.Helper()
	if err := r.within(r.patience, f); err != nil {
		r.t.Fatalf("wait for %s: %v", what, err)
	}
}

// within is wait for who wants to go on.
func (r *rig) within(bound time.Duration, f func() error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for end := time.Now().Add(bound); ; <-tick.C {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v: %w", bound, err)
		}
	}
}

// kubectl runs kubectl in the test's namespace.
func (r *rig) kubectl(args ...string) string {
	r.t.Helper()
	out, err := r.cp.Kubectl(r.t.Context(), "", append([]string{"--namespace=" + r.ns}, args...)...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// podSpec is a pod of busybox on the rig's node that ends at once when it is deleted.
func (r *rig) podSpec(name, networks string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name},
		Spec: corev1.PodSpec{
			NodeName: r.node.Name, TerminationGracePeriodSeconds: new(int64(0)), EnableServiceLinks: new(false),
			AutomountServiceAccountToken: new(false),
			Containers:                   []corev1.Container{{Name: "main", Image: image.BusyboxName}},
		},
	}
	if networks != "" {
		pod.Annotations = map[string]string{networksAnnotation: networks}
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// create makes a pod, with the networks that the annotation names; "" is a plain one. It does
// not wait.
func (r *rig) create(name, networks string, change ...func(*corev1.Pod)) *corev1.Pod {
	r.t.Helper()
	pod, err := r.kube.CoreV1().Pods(r.ns).Create(r.t.Context(), r.podSpec(name, networks, change...), metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod
}

// get reads a pod.
func (r *rig) get(name string) *corev1.Pod {
	r.t.Helper()
	pod, err := r.kube.CoreV1().Pods(r.ns).Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod
}

// running waits until pods are Ready and returns the last one.
func (r *rig) running(names ...string) (last *corev1.Pod) {
	r.t.Helper()
	for _, name := range names {
		r.wait("pod "+name+" to run", func() error {
			pod, err := r.kube.CoreV1().Pods(r.ns).Get(r.t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			last = pod
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("it is %s; its last event: %s", pod.Status.Phase, r.lastEvent(name))
		})
	}
	return last
}

// remove deletes pods and waits until they are gone.
func (r *rig) remove(names ...string) {
	r.t.Helper()
	for _, name := range names {
		err := r.kube.CoreV1().Pods(r.ns).Delete(r.t.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			r.t.Fatal(err)
		}
	}
	r.gone(names...)
}

// gone waits until pods are no more.
func (r *rig) gone(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.wait("the end of pod "+name, func() error {
			pod, err := r.kube.CoreV1().Pods(r.ns).Get(r.t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return err
			}
			return fmt.Errorf("it is %s; its last event: %s", pod.Status.Phase, r.lastEvent(name))
		})
	}
}

// nad makes a network of the test's namespace, or gives it another configuration, and waits
// until the node's agent knows it: a pod may then name it.
func (r *rig) nad(name, config string) { r.t.Helper(); r.nadIn(r.ns, name, config) }

func (r *rig) nadIn(namespace, name, config string) {
	r.t.Helper()
	nads := r.nads.Namespace(namespace)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"config": config},
	}}
	_, err := nads.Create(r.t.Context(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var patch []byte
		if patch, err = json.Marshal(map[string]any{"spec": map[string]any{"config": config}}); err == nil {
			_, err = nads.Patch(r.t.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{})
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// noNAD deletes a network.
func (r *rig) noNAD(name string) {
	r.t.Helper()
	if err := r.nads.Namespace(r.ns).Delete(r.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// status is what network-status says, nil without one.
func (r *rig) status(pod *corev1.Pod) []netStatus {
	r.t.Helper()
	text, ok := pod.Annotations[statusAnnotation]
	if !ok {
		return nil
	}
	var all []netStatus
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		r.t.Fatalf("network-status of pod %s: %v in %s", pod.Name, err, text)
	}
	return all
}

// netStatus is one element of network-status.
type netStatus struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	MAC       string   `json:"mac"`
	Default   bool     `json:"default"`
	Gateway   []string `json:"gateway"`
	MTU       int      `json:"mtu"`
}

// events are those of a pod, in no order.
func (r *rig) events(pod string) ([]corev1.Event, error) {
	list, err := r.kube.CoreV1().Events(r.ns).List(r.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// lastEvent is the newest warning of a pod, or the newest event.
func (r *rig) lastEvent(pod string) string {
	events, err := r.events(pod)
	if err != nil {
		return err.Error()
	}
	last, text := time.Time{}, "none"
	for _, e := range events {
		if at := e.LastTimestamp.Time; !at.Before(last) {
			last, text = at, e.Type+" "+e.Reason+": "+e.Message
		}
	}
	return text
}

// event waits for a warning of Weft's on a pod whose message has all the given parts.
func (r *rig) event(pod string, parts ...string) corev1.Event {
	r.t.Helper()
	return r.anyEvent(func(e corev1.Event) bool { return e.Source.Component == "weft" }, pod, parts)
}

// eventAbout is event for those of the kubelet.
func (r *rig) eventAbout(pod string, parts ...string) corev1.Event {
	r.t.Helper()
	return r.anyEvent(func(e corev1.Event) bool { return e.Source.Component == "kubelet" }, pod, parts)
}

func (r *rig) anyEvent(own func(corev1.Event) bool, pod string, parts []string) (found corev1.Event) {
	r.t.Helper()
	r.wait(fmt.Sprintf("an event of pod %s with %q", pod, parts), func() error {
		events, err := r.events(pod)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, e := range events {
			if e.Type == corev1.EventTypeWarning && own(e) && containsAll(e.Message, parts) {
				found = e
				return nil
			}
			seen[e.Source.Component+" "+e.Reason+": "+e.Message] = true
		}
		return fmt.Errorf("its events are %q", slices.Sorted(maps.Keys(seen)))
	})
	return found
}

func containsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
}

// exec runs a command in a pod through the API server and the kubelet.
func (r *rig) exec(pod string, args ...string) string {
	r.t.Helper()
	return r.kubectl(append([]string{"exec", pod, "--"}, args...)...)
}

// keepLogs writes down what a person would look at after a failure, beside the logs of the
// cluster, which are kept when a test fails.
func (r *rig) keepLogs() {
	if !r.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx(), time.Minute)
	defer cancel()
	var b strings.Builder
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--output=wide"},
		{"describe", "pods", "--namespace=" + r.ns},
		{"get", "events", "--namespace=" + r.ns},
		{"get", "network-attachment-definitions", "--all-namespaces", "--output=yaml"},
	} {
		out, err := r.cp.Kubectl(ctx, "", args...)
		fmt.Fprintf(&b, "# kubectl %s (%v)\n%s\n", strings.Join(args, " "), err, out)
	}
	const look = `cd /; tail -n +1 /var/log/pods/kube-system_weft-agent*/*/*.log /etc/cni/net.d/* 2>&1
		ls -laR /var/lib/weft /var/lib/cni /run/netns; tail -n +1 /var/lib/weft/attachments/*
		ip -d address; ip route; ps -ef`
	out, err := r.node.Exec(ctx, "sh", "-c", look)
	fmt.Fprintf(&b, "# the node (%v)\n%s\n", err, out)
	name := strings.ReplaceAll(r.t.Name(), "/", "-") + ".txt"
	if err := os.WriteFile(filepath.Join(r.node.Logs, name), []byte(b.String()), 0o644); err != nil {
		r.t.Log(err)
	}
	id := filepath.Base(r.cp.Dir)
	kept := filepath.Join(filepath.Dir(filepath.Dir(r.cp.Dir)), "logs", id)
	r.t.Logf("what was there is in %s/%s/%s; the logs of agent, containerd, kubelet and API server are beside it", kept, r.node.Name, name)
}
