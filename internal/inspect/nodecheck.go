// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/kube/rest"
)

// selecter lists by a field; *rest.Client is one.
type selecter interface {
	Select(ctx context.Context, res rest.Resource, namespace, selector string) ([]rest.Object, error)
}

// ExplainNode says how a node is: by its agent's answer (nil = none), and as far as the API
// server (nil = none) shows.
func ExplainNode(ctx context.Context, name string, agent *debug.NodeAnswer, api selecter) *Checkup {
	c := newCheckup()
	c.Node = name
	switch {
	case agent == nil:
		c.notSeen("what the agent of node %s knows (weft explain node, or weft doctor, on that node)", name)
	case agent.Node != name:
		c.notSeen("what the agent of node %s knows: the one here is of node %s", name, agent.Node)
	default:
		c.agentState(agent)
		a := agent.State.Counts
		c.info("agent counts", "%s, %s, %s, %d of them half-done, %d dead, %d quarantined", count(a.Pods, "pod"), count(a.Networks, "network"),
			count(a.Records, "record"), a.HalfDone, a.Dead, a.Quarantined)
	}
	if api == nil {
		c.notSeen("what the API server knows of it (no kubeconfig)")
		return c
	}
	c.nodeObject(ctx, name, api)
	c.nodePods(ctx, name, api)
	c.nodeConfig(ctx, name, api)
	c.notSeen("the node's files: configurations, plugins, records (weft doctor on that node)")
	return c
}

// condition is one of a node or a pod.
type condition struct {
	Type, Status, Reason, Message string
}

func (c condition) why() string {
	return strings.TrimSuffix(strings.TrimPrefix(c.Reason+": "+c.Message, ": "), ": ")
}

// nodeObject looks at the conditions of the node that are about the network.
func (c *Checkup) nodeObject(ctx context.Context, name string, api selecter) {
	nodes, err := api.Select(ctx, rest.Nodes(), "", "metadata.name="+name)
	if err != nil {
		c.notSeen("the node: %v", err)
		return
	}
	for _, o := range nodes {
		if o.Meta.Name != name {
			continue // a server that does not select
		}
		var node struct {
			Status struct{ Conditions []condition }
		}
		if err := json.Unmarshal(o.Raw, &node); err != nil {
			c.notSeen("the node's conditions: %v", err)
			return
		}
		ready := false
		for _, cond := range node.Status.Conditions {
			switch {
			case cond.Type == "Ready" && cond.Status == "True":
				ready = true
			case cond.Type == "Ready":
				c.add(ResultFault, "node", "is not ready: "+cond.why(), "when it is about the network: weft doctor on the node")
				return
			case cond.Type == "NetworkUnavailable" && cond.Status == "True":
				c.add(ResultFault, "node", "its network is unavailable: "+cond.why(), "see the cluster network's own agent")
				return
			}
		}
		if !ready {
			c.add(ResultWarn, "node", "its kubelet has said nothing yet", "")
			return
		}
		c.ok("node", "is ready")
		return
	}
	c.add(ResultFault, "node", "the API server has no node "+name, "kubectl get nodes lists them")
}

// podBody is what is read of a pod of a node.
type podBody struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct{ NodeName string }
	Status   struct {
		Phase             string
		Conditions        []condition
		ContainerStatuses []struct{ RestartCount int }
	}
}

// nodePods looks at the node's pods: the agent's own, and those whose status is not complete.
func (c *Checkup) nodePods(ctx context.Context, name string, api selecter) {
	pods, err := api.Select(ctx, rest.Pods(), "", "spec.nodeName="+name)
	if err != nil {
		c.notSeen("the node's pods: %v", err)
		return
	}
	agents, asked := 0, 0
	for _, o := range pods {
		var body podBody
		if json.Unmarshal(o.Raw, &body) != nil || body.Spec.NodeName != name || body.Status.Phase == "Succeeded" || body.Status.Phase == "Failed" {
			continue
		}
		if labels := body.Metadata.Labels; labels["app.kubernetes.io/name"] == "weft" && labels["app.kubernetes.io/component"] == "agent" {
			agents++
			c.agentPod(o.Meta, &body)
		}
		if o.Meta.Annotations[plan.NetworksAnnotation] == "" && o.Meta.Annotations[plan.DefaultNetworkAnnotation] == "" {
			continue
		}
		asked++
		if p := pod(o.Meta); !p.Complete {
			full := p.Namespace + "/" + p.Name
			c.add(ResultWarn, "pods", full+": "+p.Problem, "weft explain pod "+full)
		}
	}
	if agents == 0 {
		c.add(ResultFault, "agent pod", "there is none on the node", "apply deploy/, and see whether the DaemonSet's pod fits the node (unless the node runs without agent)")
	}
	c.info("pods", "%d of %s ask for networks", asked, count(len(pods), "pod"))
}

func (c *Checkup) agentPod(meta rest.Meta, body *podBody) {
	name := meta.Namespace + "/" + meta.Name
	restarts := 0
	for _, s := range body.Status.ContainerStatuses {
		restarts += s.RestartCount
	}
	for _, cond := range body.Status.Conditions {
		if cond.Type == "Ready" && cond.Status == "True" {
			c.ok("agent pod", "%s is ready, with %s", name, count(restarts, "restart"))
			return
		}
	}
	c.add(ResultFault, "agent pod", fmt.Sprintf("%s is not ready (%s), with %s", name, body.Status.Phase, count(restarts, "restart")),
		"kubectl logs -n "+meta.Namespace+" "+meta.Name)
}
