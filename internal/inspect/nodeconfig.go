// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/kube/rest"
	"github.com/weftnet/weft/internal/operator/assign"
	"github.com/weftnet/weft/internal/operator/own"
)

// nodeConfig says which cluster configuration the node has of the network driver, why, and what is
// in conflict, by the very rules of the operator. A cluster without such configurations has nothing
// to say.
func (c *Checkup) nodeConfig(ctx context.Context, name string, api selecter) {
	configs, err := api.Select(ctx, rest.ClusterConfigs(), "", "")
	if rest.NotFound(err) {
		return
	}
	var nodes, own []rest.Object
	if err == nil {
		nodes, err = driverNodes(ctx, api)
	}
	if err == nil {
		own, err = api.Select(ctx, rest.NodeConfigs(), "", "")
	}
	if err != nil {
		c.notSeen("the network driver's configurations: %v", err)
		return
	}
	table := assign.New()
	for _, o := range nodes {
		table.SetNode(o.Meta.Name, labelsOf(o))
	}
	for _, o := range configs {
		var cluster v2alpha1.CiliumNetworkDriverClusterConfig
		if err := json.Unmarshal(o.Raw, &cluster); err != nil {
			c.notSeen("%s %s: %v", v2alpha1.ClusterConfigKind, o.Meta.Name, err)
			continue
		}
		table.SetConfig(assign.Config{
			Name: cluster.Name, Created: cluster.CreationTimestamp.Time, Selector: cluster.Spec.NodeSelector, Invalid: cluster.Spec.Validate(),
		})
	}
	there, owner := false, ""
	for _, o := range own {
		by := ownerOf(o)
		table.SetOwner(o.Meta.Name, by)
		if o.Meta.Name == name {
			there, owner = true, by
		}
	}
	if len(configs) > 0 || there {
		c.decision(table, table.Node(name), there, owner)
	}
}

// driverNodes are what the operator takes for nodes.
func driverNodes(ctx context.Context, api selecter) ([]rest.Object, error) {
	nodes, err := api.Select(ctx, rest.CiliumNodes(), "", "")
	if err == nil && len(nodes) > 0 {
		return nodes, nil
	}
	if err != nil && !rest.NotFound(err) {
		return nil, err
	}
	return api.Select(ctx, rest.Nodes(), "", "")
}

// labelsOf are an object's labels, none when they cannot be read.
func labelsOf(o rest.Object) map[string]string {
	var head struct{ Metadata metav1.ObjectMeta }
	if json.Unmarshal(o.Raw, &head) != nil {
		return nil
	}
	return head.Metadata.Labels
}

// ownerOf is the cluster configuration that a node's configuration was made by, "" when none was.
func ownerOf(o rest.Object) string {
	return own.Owner(&metav1.ObjectMeta{Labels: labelsOf(o), Annotations: o.Meta.Annotations})
}

// decision tells one, and each configuration that selects the node.
func (c *Checkup) decision(table *assign.Table, d assign.Decision, there bool, owner string) {
	const what, own = "cluster configuration", "node configuration"
	for _, v := range d.Selecting {
		s, _ := table.Config(v.Config)
		switch {
		case v.State == assign.Conflicting:
			c.add(ResultWarn, what, v.Config+" selects the node and is in conflict: "+s.Message, "change its selector, or delete one of the two")
		case v.Err != nil:
			c.add(ResultFault, what, v.Config+" selects the node and is invalid: "+v.Err.Error(), "mend it: until then the node keeps what it has")
		case v.Config == d.Config:
			c.ok(what, "%s governs the node: it is the first of %s that select it", v.Config, count(len(d.Selecting), "configuration"))
		}
	}
	if len(d.Selecting) == 0 {
		c.info(what, "none selects the node")
	}
	switch {
	case d.State == assign.Frozen && there:
		c.info(own, "stays as %s made it, until that is mended or another one takes the node", owner)
	case d.State == assign.Governed && owner != d.Config:
		c.add(ResultWarn, own, "is not yet the one of "+d.Config, "does weft-operator run? kubectl -n kube-system logs deployment/weft-operator")
	case d.State == assign.Governed:
		c.ok(own, "was made by %s", owner)
	case owner != "":
		c.add(ResultWarn, own, "was made by "+owner+", which does not govern the node any more", "does weft-operator run? kubectl -n kube-system logs deployment/weft-operator")
	case there:
		c.ok(own, "was written by hand, and stays")
	case slices.ContainsFunc(d.Selecting, func(v assign.Verdict) bool { return v.State == assign.Conflicting }):
		c.info(own, "there is none: what selects the node is in conflict")
	default:
		c.info(own, "there is none")
	}
}
