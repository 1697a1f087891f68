// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// churn starts pods one after the other, looks at each that runs, deletes it, and ends when all
// have come and gone: what a node does all day, for something to be done to it meanwhile.
type churn struct {
	rig      *rig
	parallel int                // so many pods are there at most
	networks func(n int) string // the annotation of the nth pod; "" is a plain one
	links    int                // interfaces of a pod with networks, besides eth0
	more     func(created int) bool
	at       map[int]func() // called once so many pods have been seen running

	created, seen int
	left          map[string]string // pods that are not gone, and their last event
	reached       time.Time         // when something last happened
}

// run fails the test when nothing happens for the limit of a wait.
func (c *churn) run() {
	c.rig.t.Helper()
	c.left, c.reached = map[string]string{}, time.Now()
	looked := map[string]bool{}
	for tick := time.NewTicker(interval); ; <-tick.C {
		for len(c.left) < c.parallel && c.more(c.created) {
			name := fmt.Sprintf("churn-%d", c.created)
			c.rig.create(name, c.networks(c.created), untilItEnds)
			c.left[name] = ""
			c.created++
		}
		c.look(looked)
		if len(c.left) == 0 && !c.more(c.created) {
			tick.Stop()
			return
		}
		if time.Since(c.reached) > limit {
			for name := range c.left {
				c.left[name] = c.rig.lastEvent(name)
			}
			c.rig.t.Fatalf("%d of %d pods were seen running, then nothing for %v; there are %q", c.seen, c.created, limit, c.left)
		}
	}
}

// untilItEnds makes the API server keep a deleted pod until the kubelet says that it is gone.
func untilItEnds(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(1)) }

// look goes once over the pods.
func (c *churn) look(looked map[string]bool) {
	c.rig.t.Helper()
	pods := c.rig.pods()
	for name := range c.left {
		if pods[name] == nil {
			delete(c.left, name)
			c.reached = time.Now()
		}
	}
	for name, pod := range pods {
		if _, ours := c.left[name]; !ours || looked[name] {
			continue
		}
		switch pod.Status.Phase {
		case corev1.PodRunning:
		case corev1.PodFailed, corev1.PodSucceeded:
			c.rig.t.Fatalf("pod %s ended: %s %s", name, pod.Status.Reason, pod.Status.Message)
		default:
			continue
		}
		looked[name] = true
		c.seen++
		c.reached = time.Now()
		c.rig.hasNetworks(pod, c.links)
		c.rig.delete(name)
		if f := c.at[c.seen]; f != nil {
			f()
		}
	}
}

// hasNetworks checks a running pod: eth0 and, where it asked for networks, so many links more,
// each with an address. The kernel is asked, not Weft.
func (r *rig) hasNetworks(pod *corev1.Pod, more int) {
	r.t.Helper()
	want := []string{"eth0"}
	for n := 1; n <= more && pod.Annotations[networksAnnotation] != ""; n++ {
		want = append(want, fmt.Sprintf("net%d", n))
	}
	links := r.links(pod)
	if got := slices.Sorted(maps.Keys(links)); !slices.Equal(got, want) {
		r.t.Errorf("pod %s runs with %v, want %v", pod.Name, got, want)
	}
	for name, l := range links {
		if len(l.global()) == 0 {
			r.t.Errorf("%s of pod %s has no address", name, pod.Name)
		}
	}
}

// pods are those of the test, by name.
func (r *rig) pods() map[string]*corev1.Pod {
	r.t.Helper()
	list, err := r.kube.CoreV1().Pods(r.ns).List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]*corev1.Pod{}
	for i, p := range list.Items {
		all[p.Name] = &list.Items[i]
	}
	return all
}

// delete deletes a pod and does not wait.
func (r *rig) delete(name string) {
	r.t.Helper()
	if err := r.kube.CoreV1().Pods(r.ns).Delete(r.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// shell runs a script on the node.
func (r *rig) shell(script string) string {
	r.t.Helper()
	out, err := r.node.Exec(r.t.Context(), "sh", "-c", script)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// ready is the node's condition Ready, and why.
func (r *rig) ready(ctx context.Context) (bool, string, error) {
	node, err := r.kube.CoreV1().Nodes().Get(ctx, r.node.Name, metav1.GetOptions{})
	if err != nil {
		return false, "", err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message, nil
		}
	}
	return false, "", errors.New("no condition Ready")
}

// staysReady watches the node until the returned function is called, which fails the test if
// the node was not Ready at some time.
func (r *rig) staysReady() (end func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	seen := map[string]bool{}
	var watching sync.WaitGroup
	watching.Go(func() {
		for tick := time.NewTicker(interval); ; {
			if ready, message, err := r.ready(ctx); err == nil && !ready {
				seen[message] = true
			}
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		r.t.Helper()
		cancel()
		watching.Wait()
		if len(seen) > 0 {
			r.t.Errorf("the node was not Ready: %q", slices.Sorted(maps.Keys(seen)))
		}
	}
}

// rollout gives the agents another pod template and does not wait.
func (r *rig) rollout() {
	r.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"e2e":"%d"}}}}}`, time.Now().UnixNano())
	_, err := r.kube.AppsV1().DaemonSets(agentNamespace).Patch(r.t.Context(), agentName, "application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
}

// rolledOut says whether the agents are those of the newest template, and ready.
func (r *rig) rolledOut() error {
	ds, err := r.kube.AppsV1().DaemonSets(agentNamespace).Get(context.Background(), agentName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s := ds.Status
	if s.ObservedGeneration == ds.Generation && s.DesiredNumberScheduled > 0 && s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberAvailable == s.DesiredNumberScheduled {
		return nil
	}
	return fmt.Errorf("its status is %+v", s)
}

// bridgeNAD is a network of one bridge, on this node alone.
func (r *rig) bridgeNAD(name, bridge, subnet string) {
	r.t.Helper()
	r.nad(name, fmt.Sprintf(`{"cniVersion":"1.0.0","type":"bridge","bridge":%q,"ipam":{"type":"host-local","subnet":%q}}`, bridge, subnet))
}

// has fails the test where a text lacks something.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in %q", p, text)
		}
	}
}
