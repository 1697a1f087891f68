// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/agent/debug"
)

// agent is a node's agent; *debug.Client is one.
type agent interface {
	Node(ctx context.Context) (*debug.NodeAnswer, error)
	Pods(ctx context.Context, namespace, name string) (*debug.PodsAnswer, error)
	Networks(ctx context.Context, namespace string) (*debug.NetworksAnswer, error)
	Explain(ctx context.Context, namespace, name string) (*debug.PlanAnswer, error)
}

// NodeState is what get node shows: the agent's answer.
type NodeState struct {
	debug.NodeAnswer
}

// NodePods is what get pods shows on a node.
type NodePods struct {
	debug.PodsAnswer
	Unseen []string `json:"unseen"`
}

// NodeNetworks is what get networks shows on a node.
type NodeNetworks struct {
	debug.NetworksAnswer
	Unseen []string `json:"unseen"`
}

// AgentNode asks an agent for its state.
func AgentNode(ctx context.Context, a agent) (*NodeState, error) {
	answer, err := a.Node(ctx)
	if err != nil {
		return nil, err
	}
	return &NodeState{*answer}, nil
}

// AgentPods asks an agent for the pods of a namespace, "" = all.
func AgentPods(ctx context.Context, a agent, namespace string) (*NodePods, error) {
	answer, err := a.Pods(ctx, namespace, "")
	if err != nil {
		return nil, err
	}
	return &NodePods{*answer, leftOut(answer.LeftOut, "pod")}, nil
}

// AgentNetworks asks an agent for the networks of a namespace, "" = all.
func AgentNetworks(ctx context.Context, a agent, namespace string) (*NodeNetworks, error) {
	answer, err := a.Networks(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return &NodeNetworks{*answer, leftOut(answer.LeftOut, "network")}, nil
}

func leftOut(n int, what string) []string {
	if n == 0 {
		return []string{}
	}
	return []string{fmt.Sprintf("%s for which the agent's answer had no room (name a namespace with -n)", count(n, what))}
}

// WriteTable prints the state.
func (s *NodeState) WriteTable(w io.Writer) error {
	n, p := &s.State, page{w: w}
	ready := "ready"
	if !n.Ready {
		ready = "not ready"
	}
	p.line("node %s  %s", n.Name, ready)
	rows := [][]string{}
	for _, c := range n.Conditions {
		rows = append(rows, []string{"  " + c.Name, yes(c.OK), age(s.Now, c.Since), oneLine(c.Why)})
	}
	p.table(rows)
	published := "published"
	if !n.Conf.Published {
		published = "not published"
	}
	rows = [][]string{
		{"conf", strings.TrimSuffix(n.Conf.Path+", "+published+": "+oneLine(n.Conf.Fault), ": ")},
		{"primary", cmp.Or(n.Conf.Primary, "none")},
		{"cache", "complete: " + yes(n.Cache.Synced) + ", API server heard of: " + agoOrNever(s.Now, n.Cache.LastContact)},
		{"counts", fmt.Sprintf("%s, %s, %s (%d half-done, %d dead, %d quarantined, %d newer), %s to be written",
			count(n.Counts.Pods, "pod"), count(n.Counts.Networks, "network"), count(n.Counts.Records, "record"),
			n.Counts.HalfDone, n.Counts.Dead, n.Counts.Quarantined, n.Counts.Newer, statuses(n.Counts.PendingStatus))},
		{"versions", "agent " + cmp.Or(n.Versions.Agent, "unknown") + ", weft-cni " + cmp.Or(n.Versions.Plugin, "unknown")},
		{"started", agoOrNever(s.Now, n.Started)},
	}
	p.table(rows)
	return p.err
}

func statuses(n int) string {
	if n == 1 {
		return "1 status"
	}
	return strconv.Itoa(n) + " statuses"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// age is how long ago t was, in one unit, "-" when it is not known.
func age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := max(0, now.Sub(t))
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

func agoOrNever(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return age(now, t) + " ago"
}

// WriteTable prints the pods, a line an attachment.
func (l *NodePods) WriteTable(w io.Writer) error {
	rows := [][]string{{"NAMESPACE", "NAME", "INTERFACE", "NETWORK", "MAC", "ADDRESSES", "PHASE", "SINCE", "STATUS", "PROBLEM"}}
	for i := range l.Pods {
		pod := &l.Pods[i]
		status := cmp.Or(string(pod.NetworkStatus.State), "-")
		if len(pod.Sandboxes) == 0 {
			rows = append(rows, []string{pod.Namespace, pod.Name, "-", "-", "-", "-", "-", "-", status, podProblem(pod, nil, "no sandbox")})
		}
		for j := range pod.Sandboxes {
			for _, cells := range attachmentRows(l.Now, pod, &pod.Sandboxes[j]) {
				rows = append(rows, slices.Concat([]string{pod.Namespace, pod.Name}, cells[:6], []string{status}, cells[6:]))
			}
		}
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}

// attachmentRows are the attachments of a sandbox: interface, network, MAC, addresses,
// phase, since, problem.
func attachmentRows(now time.Time, pod *debug.Pod, s *debug.Sandbox) [][]string {
	if len(s.Attachments) == 0 {
		return [][]string{{s.Interface, "-", "-", "-", "-", age(now, s.Created), podProblem(pod, s, "")}}
	}
	var rows [][]string
	for _, a := range s.Attachments {
		rows = append(rows, []string{
			cmp.Or(a.Interface, "-"), cmp.Or(a.Network, "-"), cmp.Or(a.MAC, "-"), cmp.Or(strings.Join(a.Addresses, ","), "-"),
			string(a.Phase), age(now, a.Since), podProblem(pod, s, a.Fault),
		})
	}
	return rows
}

// podProblem is what is wrong with an attachment, its sandbox and its pod, "" for nothing.
func podProblem(pod *debug.Pod, s *debug.Sandbox, fault string) string {
	var all []string
	add := func(is bool, text string) {
		if is && text != "" {
			all = append(all, text)
		}
	}
	add(true, fault)
	if s != nil {
		add(true, s.Fault)
		add(s.Dead, "the sandbox is gone")
		add(s.Deletes > 0, "DEL was tried "+count(s.Deletes, "time"))
	}
	add(!pod.Known, "the API server has no such pod")
	add(pod.NetworkStatus.Fault != "", "status: "+pod.NetworkStatus.Fault)
	return oneLine(strings.Join(all, "; "))
}

// WriteTable prints the networks.
func (l *NodeNetworks) WriteTable(w io.Writer) error {
	rows := [][]string{{"NAMESPACE", "NAME", "TYPES", "RESOURCE", "PODS", "PROBLEM"}}
	for _, n := range l.Networks {
		problem := n.Problem
		if n.Gone {
			problem = strings.TrimSuffix("the API server has no such network; "+problem, "; ")
		}
		rows = append(rows, []string{
			n.Namespace, n.Name, cmp.Or(strings.Join(n.Types, ","), "-"), cmp.Or(n.Resource, "-"), strconv.Itoa(n.Pods), oneLine(problem),
		})
	}
	p := page{w: w}
	p.table(rows)
	return p.err
}
