// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/kube/rest"
)

// reader reads single objects of an API server; *rest.Client is one.
type reader interface {
	Pod(ctx context.Context, namespace, name string) (*rest.Object, error)
	NAD(ctx context.Context, namespace, name string) (*rest.Object, error)
}

// live is an API server as the source of NADs. The first error is kept: what this
// account may not read is no fault of a pod.
type live struct {
	api reader
	err error
}

// Live is a World of the pods of an API server, at first without any: Fetch adds one. The
// NADs that its plan needs are read when it is explained; nothing of this machine is taken
// for the node's. conf and the errors are as in Load.
func Live(api reader, conf string) (*World, error) {
	w := newWorld()
	if err := w.readConf(conf); err != nil {
		return nil, err
	}
	w.index()
	w.configure()
	w.live = &live{api: api}
	return w, nil
}

// Fetch adds a pod of the API server.
func (w *World) Fetch(ctx context.Context, namespace, name string) error {
	pod, err := w.live.api.Pod(ctx, namespace, name)
	if err != nil {
		return err
	}
	w.Set.Add("answer.json", pod.Raw)
	w.problems = nil // an object that the server took has none that matter
	if _, err := w.Set.Pod(namespace, name); err != nil {
		return fmt.Errorf("read pod %s/%s: the API server's answer is no pod", namespace, name)
	}
	return nil
}

// nad gives a NAD, read once.
func (w *World) nad(ctx context.Context, ref plan.NADRef) (plan.NAD, error) {
	known := w.Set.NAD(ref)
	if w.live == nil || known.Found {
		return known, nil
	}
	o, err := w.live.api.NAD(ctx, ref.Namespace, ref.Name)
	switch {
	case rest.NotFound(err):
		return known, nil
	case err != nil:
		w.live.err = errors.Join(w.live.err, err)
		return known, fault.New(fault.TryLater, nadObject(ref), "", "%w", err)
	}
	w.Set.Add("answer.json", o.Raw)
	w.problems = nil
	return w.Set.NAD(ref), nil
}

// ExplainByAgent has the agent of the pod's node plan the pod, and adds what the node has of
// it. binPath is as in World.Explain; "" = the agent's binDir. The error wraps
// debug.ErrNoPod when the pod is of another node.
func ExplainByAgent(ctx context.Context, a agent, namespace, name, binPath string) (*Explanation, error) {
	answer, err := a.Explain(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	pods, err := a.Pods(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if binPath == "" {
		node, err := a.Node(ctx)
		if err != nil {
			return nil, err
		}
		binPath = node.State.Paths.BinDir
	}
	p := planned(namespace, name, &answer.Plan)
	for i := range pods.Pods {
		p.attached(pods, &pods.Pods[i])
	}
	e := &Explanation{Node: answer.Node, Problems: []Finding{}, Unseen: []string{"what the plugins will answer"}}
	if binPath != "" {
		p.findPlugins(binPath)
	} else {
		e.Unseen = append(e.Unseen, "whether the node has the plugins")
	}
	p.OK = len(p.Faults) == 0
	e.Pods = []PodPlan{p}
	return e, nil
}

// planned is an agent's plan in the form of explain.
func planned(namespace, name string, answer *debug.Plan) PodPlan {
	p := PodPlan{
		Namespace: namespace, Name: name,
		Decisions: []Decision{}, Attachments: []Attachment{}, Faults: []Finding{}, Warnings: []Finding{},
	}
	for _, d := range answer.Decisions {
		if d.Attachment <= plan.MaxNetworks { // the default network and those that a pod may have
			p.decide(plan.Decision{Attachment: d.Attachment, Subject: plan.Subject(d.Subject), Value: d.Value, Reason: d.Reason}, nil)
		}
	}
	for i, a := range answer.Attachments {
		if i == len(p.Attachments) {
			p.Attachments = append(p.Attachments, Attachment{Default: i == 0, Decisions: []Decision{}})
		}
		to := &p.Attachments[i]
		to.Network, to.Interface, to.Plugins = a.Network, a.Interface, append([]string{}, a.Plugins...)
		to.RuntimeConfig, to.Args, to.Gateways, to.Device = a.RuntimeConfig, a.Args, a.Gateways, a.Device
		to.ipam = a.IPAM
	}
	for _, f := range answer.Faults {
		p.Faults = append(p.Faults, Finding{Severity: SeverityFault, Object: f.Object, Field: f.Field, Text: f.Text, Code: f.Code})
	}
	for _, v := range answer.Warnings {
		p.Warnings = append(p.Warnings, Finding{Severity: SeverityWarning, Object: v.Object, Field: v.Field, Text: v.Text})
	}
	return p
}

// attached adds what the node has of the pod: its sandboxes, and what went wrong with them.
func (p *PodPlan) attached(answer *debug.PodsAnswer, pod *debug.Pod) {
	p.Sandboxes, p.NetworkStatus = pod.Sandboxes, &pod.NetworkStatus
	for i := range pod.Sandboxes {
		s := &pod.Sandboxes[i]
		for _, cells := range attachmentRows(answer.Now, pod, s) {
			p.rows = append(p.rows, append([]string{"  has"}, cells[:6]...))
		}
		warn := func(object, text string) {
			if text != "" {
				p.Warnings = append(p.Warnings, Finding{Severity: SeverityWarning, Object: object, Text: oneLine(text)})
			}
		}
		warn("sandbox "+s.ContainerID, s.Fault)
		if s.Dead {
			warn("sandbox "+s.ContainerID, "is gone; its record is to be undone")
		}
		for _, a := range s.Attachments {
			warn("network "+a.Network, a.Fault)
		}
	}
	if f := pod.NetworkStatus.Fault; f != "" {
		p.Warnings = append(p.Warnings, Finding{Severity: SeverityWarning, Object: podObject(pod.Namespace, pod.Name), Text: "network-status was not written: " + f})
	}
}
