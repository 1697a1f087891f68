// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
)

// Explanation is what explain shows.
type Explanation struct {
	// Node is the node whose agent planned, "" when none did.
	Node string    `json:"node,omitempty"`
	Pods []PodPlan `json:"pods"`
	// Problems are faults and warnings of the files as such: documents that could not be
	// read, and Weft's configuration.
	Problems []Finding `json:"problems"`
	// Unseen says what only the node knows, and what was taken for it.
	Unseen []string `json:"unseen"`
}

// PodPlan is the plan of one pod.
type PodPlan struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	Source      *Source      `json:"source,omitempty"`
	OK          bool         `json:"ok"` // nothing that can be seen here fails
	Decisions   []Decision   `json:"decisions"`
	Attachments []Attachment `json:"attachments"`
	// Faults are those with which the ADD would fail before any plugin runs, the first first.
	Faults   []Finding `json:"faults"`
	Warnings []Finding `json:"warnings"`
	// What the node has of the pod, when its agent was asked.
	Sandboxes     []debug.Sandbox      `json:"sandboxes,omitempty"`
	NetworkStatus *debug.NetworkStatus `json:"networkStatus,omitempty"`

	rows [][]string // the sandboxes as a table
}

// Attachment is one interface of a pod, as far as it could be planned.
type Attachment struct {
	Interface string   `json:"interface"`
	Network   string   `json:"network"`
	Default   bool     `json:"default"`
	Plugins   []string `json:"plugins"`
	// These four are filled in only when the pod has a plan.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig,omitempty"`
	Args          string                     `json:"args,omitempty"` // CNI_ARGS
	Gateways      []string                   `json:"gateways,omitempty"`
	Device        string                     `json:"device,omitempty"`
	Decisions     []Decision                 `json:"decisions"`

	ipam []string // types of IPAM plugins
}

// Decision is one thing that was decided, and why.
type Decision struct {
	Subject string  `json:"subject"`
	Value   string  `json:"value"`
	Reason  string  `json:"reason"`
	Source  *Source `json:"source,omitempty"` // absent when it stands in none of the files
}

// Faulty says whether anything would fail.
func (e *Explanation) Faulty() bool {
	return slices.ContainsFunc(e.Pods, func(p PodPlan) bool { return !p.OK }) ||
		slices.ContainsFunc(e.Problems, func(f Finding) bool { return f.Severity == SeverityFault })
}

// Explain plans the pods of the files; pod, "namespace/name", takes one of them ("" = all).
// binPath, colon-separated directories, is where plugins are looked for; "" = they are not.
// The error wraps ErrNoPod.
func (w *World) Explain(ctx context.Context, pod, binPath string) (*Explanation, error) {
	e := &Explanation{Pods: []PodPlan{}, Problems: slices.Clone(w.findings), Unseen: append([]string{}, w.unseen...)}
	for _, p := range w.problems {
		e.Problems = append(e.Problems, w.problem(p))
	}
	if e.Problems == nil {
		e.Problems = []Finding{}
	}
	for _, p := range w.Set.Pods {
		if pod != "" && p.Namespace+"/"+p.Name != pod {
			continue
		}
		planned, unseen := w.explainPod(ctx, p, binPath)
		if w.live != nil && w.live.err != nil {
			return nil, w.live.err
		}
		e.Pods = append(e.Pods, planned)
		for _, text := range unseen {
			if !slices.Contains(e.Unseen, text) {
				e.Unseen = append(e.Unseen, text)
			}
		}
	}
	if binPath == "" {
		e.Unseen = append(e.Unseen, "whether the node has the plugins, and what they will answer")
	} else {
		e.Unseen = append(e.Unseen, "what the plugins will answer")
	}
	if pod != "" && len(e.Pods) == 0 {
		return nil, fmt.Errorf("explain pod %s: %w", pod, ErrNoPod)
	}
	return e, nil
}

// placeholders stand for what the runtime gives a sandbox.
const (
	containerID = "CONTAINERID"
	ifName      = "eth0"
)

// run makes the plan of a pod as a node would, and tells what could not be seen. Without
// a pod it is that of the configuration alone.
func (w *World) run(ctx context.Context, pod *manifests.Pod) (plan.Output, []string, error) {
	n := &node{w: w}
	in := plan.Input{Conf: w.conf, Sandbox: plan.Sandbox{ContainerID: containerID, IfName: ifName}, LookUp: true}
	if pod != nil {
		n.pod = *pod
		n.pod.Annotations = maps.Clone(pod.Annotations)
		in.Pod = &n.pod.Pod
	}
	out, err := planner.Explain(ctx, in, n, n.read)
	return out, n.unseen, err
}

func (w *World) explainPod(ctx context.Context, pod manifests.Pod, binPath string) (PodPlan, []string) {
	out, notSeen, err := w.run(ctx, &pod)
	p := PodPlan{
		Namespace: pod.Namespace, Name: pod.Name,
		Decisions: []Decision{}, Attachments: []Attachment{}, Faults: []Finding{}, Warnings: []Finding{},
	}
	if w.live == nil {
		p.Source = &Source{File: pod.Place.File, Line: pod.Place.Line}
	}
	for _, d := range out.Decisions {
		p.decide(d, w.source(d.Object, d.Field, "", -1))
	}
	p.Faults = append(p.Faults, w.faults(err)...)
	if out.Plan != nil {
		for i := range out.Plan.Attachments {
			p.Attachments[i].fill(&out.Plan.Attachments[i])
		}
	}
	for _, v := range out.Warnings {
		p.Warnings = append(p.Warnings, w.warning(v))
	}
	if binPath != "" {
		p.findPlugins(binPath)
	}
	p.OK = len(p.Faults) == 0
	return p, notSeen
}

// decide files a decision under its attachment.
func (p *PodPlan) decide(d plan.Decision, source *Source) {
	decision := Decision{Subject: string(d.Subject), Value: d.Value, Reason: d.Reason, Source: source}
	if d.Attachment < 0 {
		p.Decisions = append(p.Decisions, decision)
		return
	}
	for len(p.Attachments) <= d.Attachment {
		p.Attachments = append(p.Attachments, Attachment{Default: len(p.Attachments) == 0, Plugins: []string{}, Decisions: []Decision{}})
	}
	a := &p.Attachments[d.Attachment]
	a.Decisions = append(a.Decisions, decision)
	switch d.Subject { //nolint:exhaustive // the others are details
	case plan.SubjectInterface:
		a.Interface = d.Value
	case plan.SubjectNetwork:
		a.Network = d.Value
	case plan.SubjectConfiguration:
		a.Plugins = strings.Split(d.Value, ", ")
	}
}

// fill adds what only a whole plan has.
func (a *Attachment) fill(planned *plan.Attachment) {
	a.RuntimeConfig, a.Args, a.Device = planned.RuntimeConfig, planned.Args, planned.DeviceID
	for _, g := range planned.Gateways {
		a.Gateways = append(a.Gateways, g.String())
	}
	a.Plugins = []string{}
	for _, plugin := range planned.Conf.Plugins {
		a.Plugins = append(a.Plugins, plugin.Type)
		if plugin.IPAM != "" {
			a.ipam = append(a.ipam, plugin.IPAM)
		}
	}
}

// findPlugins looks for every plugin's binary, as weft-cni does with a finished plan.
func (p *PodPlan) findPlugins(path string) {
	for i := range p.Attachments {
		for _, plugin := range slices.Concat(p.Attachments[i].Plugins, p.Attachments[i].ipam) {
			if plugin == unseen || plugin == "" {
				continue
			}
			if _, err := chain.Find(plugin, path); err != nil {
				p.Faults = append(p.Faults, Finding{
					Severity: SeverityFault, Object: "network " + p.Attachments[i].Network, Text: err.Error(), Code: uint(fault.Config),
				})
			}
		}
	}
}
