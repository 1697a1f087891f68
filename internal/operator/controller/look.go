// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weftnet/weft/api/v2alpha1"
)

// nodeKind is what a node is. The zero value is invalid.
type nodeKind int

const (
	coreNode nodeKind = iota + 1
	ciliumNode
)

func (k nodeKind) String() string { return k.gvk().GroupKind().String() }

func (k nodeKind) gvk() schema.GroupVersionKind {
	if k == ciliumNode {
		return schema.GroupVersionKind{Group: v2alpha1.Group, Version: "v2", Kind: "CiliumNode"}
	}
	return schema.GroupVersionKind{Version: "v1", Kind: "Node"}
}

// object is one of the kind, of which no more than the metadata is asked for.
func (k nodeKind) object() client.Object {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(k.gvk())
	return o
}

// mapper knows the resources that are asked for, all of which stand in no namespace.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, k := range []schema.GroupVersionKind{
		coreNode.gvk(), ciliumNode.gvk(),
		v2alpha1.GroupVersion().WithKind(v2alpha1.NodeConfigKind), v2alpha1.GroupVersion().WithKind(v2alpha1.ClusterConfigKind),
	} {
		m.Add(k, meta.RESTScopeRoot)
	}
	return m
}

// look waits until the configurations are served, and says what nodes are; false: ctx ended.
func (c *Controller) look(ctx context.Context) (nodeKind, bool) {
	for {
		kind, err := c.now(ctx)
		if err == nil {
			return kind, true
		}
		c.say(err)
		c.cfg.Log.WarnContext(ctx, "wait for the API server", "error", err)
		if sleep(ctx, min(c.cfg.Look, 5*time.Second)) != nil {
			return 0, false
		}
	}
}

// now says what nodes are at the moment.
func (c *Controller) now(ctx context.Context) (nodeKind, error) {
	for _, list := range []client.ObjectList{&v2alpha1.CiliumNetworkDriverNodeConfigList{}, &v2alpha1.CiliumNetworkDriverClusterConfigList{}} {
		if err := c.client.List(ctx, list, client.Limit(1)); err != nil {
			return 0, fmt.Errorf("look for the configurations: %w", err)
		}
	}
	// As long as there is none, Cilium is about to come or to go: nodes are what they were before.
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(ciliumNode.gvk())
	err := c.client.List(ctx, nodes, client.Limit(1))
	switch {
	case err == nil && len(nodes.Items) > 0:
		return ciliumNode, nil
	case err == nil, apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return coreNode, nil
	}
	return 0, fmt.Errorf("look for nodes of Cilium: %w", err)
}

// watchKind ends when nodes are of another kind: that is what the server said twice.
func (c *Controller) watchKind(ctx context.Context, is nodeKind) error {
	for other := 0; ; {
		if err := sleep(ctx, c.cfg.Look); err != nil {
			return err
		}
		kind, err := c.now(ctx)
		switch {
		case err != nil: // it says nothing about nodes
		case kind == is:
			other = 0
		default:
			if other++; other == 2 {
				return errOther
			}
		}
	}
}

// sleep ends with an error when ctx does.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), ctx.Err())
	}
}

// trim keeps what is used of an object.
func trim(in any) (any, error) {
	o, ok := in.(client.Object)
	if !ok {
		return in, nil
	}
	o.SetManagedFields(nil)
	if node, ok := in.(*metav1.PartialObjectMetadata); ok {
		return &metav1.PartialObjectMetadata{TypeMeta: node.TypeMeta, ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels,
		}}, nil
	}
	return o, nil
}
