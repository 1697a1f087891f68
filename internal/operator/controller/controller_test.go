// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/operator/assign"
	"github.com/weftnet/weft/internal/operator/own"
)

func nodeObject(name string, labels map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func cluster(name, role string, generation int64) *clusterConfig {
	return &clusterConfig{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation},
		Spec: v2alpha1.CiliumNetworkDriverClusterConfigSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}}, Spec: &v2alpha1.CiliumNetworkDriverNodeConfigSpec{},
		},
	}
}

// drain empties a queue.
func drain(q queue) []string {
	var all []string
	for q.Len() > 0 {
		k, _ := q.Get()
		q.Done(k)
		all = append(all, k.kind()+" "+k.name)
	}
	return all
}

// TestLedger: a change has looked at what it affects and nothing else; a heartbeat nothing.
func TestLedger(t *testing.T) {
	l := newLedger(slog.New(slog.DiscardHandler))
	nodes, clusters, configs := l.nodes(), l.clusterConfigs(), l.nodeConfigs()
	nodes.OnAdd(nodeObject("n1", map[string]string{"role": "x"}), true)
	nodes.OnAdd(nodeObject("n2", map[string]string{"role": "z"}), true)
	clusters.OnAdd(cluster("c", "x", 1), true)
	q := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](time.Second, time.Second))
	defer q.ShutDown()
	l.begin(q)
	if d := cmp.Diff(2, len(drain(q))); d != "" {
		t.Errorf("to begin with, nodes (-want +got): %s", d)
	}
	for _, c := range []struct {
		what string
		do   func()
		want []string
	}{
		{"a heartbeat", func() { nodes.OnUpdate(nil, nodeObject("n1", map[string]string{"role": "x"})) }, nil},
		{"a label that nobody selects by", func() { nodes.OnUpdate(nil, nodeObject("n2", map[string]string{"role": "z", "a": "b"})) }, []string{"node n2"}},
		{"a label that counts", func() { nodes.OnUpdate(nil, nodeObject("n2", map[string]string{"role": "x"})) }, []string{"node n2"}},
		{"a status", func() { clusters.OnUpdate(nil, cluster("c", "x", 1)) }, nil},
		{"a spec", func() { clusters.OnUpdate(nil, cluster("c", "x", 2)) }, []string{"node n1", "node n2"}},
		{"a node's configuration", func() { configs.OnAdd(&nodeConfig{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, false) }, []string{"node n1"}},
		{"one that goes", func() { configs.OnDelete(&nodeConfig{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}) }, []string{"node n1"}},
		{"a node that goes", func() { nodes.OnDelete(nodeObject("n1", nil)) }, []string{"node n1"}},
	} {
		c.do()
		if d := cmp.Diff(c.want, drain(q)); d != "" {
			t.Errorf("%s has looked at (-want +got):\n%s", c.what, d)
		}
	}
}

// TestStatus: what a cluster configuration's status says, and that saying it again changes nothing.
func TestStatus(t *testing.T) {
	var names []string
	for i := range 2 * maxNodes {
		names = append(names, strings.Repeat("n", i+1))
	}
	c := cluster("c", "x", 7)
	c.Status.Conditions = []metav1.Condition{{Type: "Others", Status: metav1.ConditionTrue}, {Type: v2alpha1.ConditionConflicting, Status: metav1.ConditionTrue}}
	for _, tc := range []struct {
		name  string
		in    assign.Summary
		nodes int
		want  []string
	}{
		{"governing", assign.Summary{Verdict: assign.Verdict{State: assign.Governed}, Nodes: names}, maxNodes, []string{"Others True", "Accepted True Valid"}},
		{"conflicting", assign.Summary{Verdict: assign.Verdict{State: assign.Conflicting}, Message: "why"}, 0, []string{
			"Others True", v2alpha1.ConditionConflicting + " True configurationConflict why", "Accepted True Valid",
		}},
		{"wrong", assign.Summary{Verdict: assign.Verdict{State: assign.Wrong, Err: errors.New("bad")}}, 0, []string{"Others True", "Accepted False Invalid bad"}},
		{"both", assign.Summary{Verdict: assign.Verdict{State: assign.Conflicting, Err: errors.New(strings.Repeat("é", maxMessage))}, Message: "why"}, 0, []string{
			"Others True", v2alpha1.ConditionConflicting + " True configurationConflict why", "Accepted False Invalid " + strings.Repeat("é", maxMessage/2),
		}},
	} {
		s := statusOf(tc.in, c)
		var got []string
		for _, cond := range s.Conditions {
			got = append(got, strings.TrimSpace(strings.Join([]string{cond.Type, string(cond.Status), cond.Reason, cond.Message}, " ")))
		}
		if d := cmp.Diff(tc.want, got); d != "" || len(s.Nodes) != tc.nodes || int(s.NodeCount) != len(tc.in.Nodes) || s.ObservedGeneration != 7 {
			t.Errorf("%s: %d of %d nodes, conditions (-want +got):\n%s", tc.name, len(s.Nodes), s.NodeCount, d)
		}
		again := c.DeepCopy()
		again.Status = s
		if d := cmp.Diff(s, statusOf(tc.in, again)); d != "" {
			t.Errorf("%s: said again (-before +now):\n%s", tc.name, d)
		}
	}
}

// TestTrim: of a node there stay its name and labels.
func TestTrim(t *testing.T) {
	in := nodeObject("n1", map[string]string{"a": "b"})
	in.UID, in.ResourceVersion, in.Annotations = "u", "7", map[string]string{"large": "one"}
	in.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	got, err := trim(in)
	want := nodeObject("n1", map[string]string{"a": "b"})
	want.UID, want.ResourceVersion = "u", "7"
	if d := cmp.Diff(any(want), got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	config := &nodeConfig{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{own.Adopted: "{}"}, ManagedFields: in.ManagedFields}}
	kept, err := trim(config)
	if err != nil || kept.(*nodeConfig).ManagedFields != nil || kept.(*nodeConfig).Annotations[own.Adopted] != "{}" {
		t.Errorf("%v, %v", kept, err)
	}
}
