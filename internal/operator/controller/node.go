// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/operator/assign"
	"github.com/weftnet/weft/internal/operator/own"
)

// node does what is to be done about a node's configuration.
func (w *leader) node(ctx context.Context, name string) error {
	decision, governor, existing := w.ledger.node(name)
	var spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec
	if governor != nil {
		spec = governor.Spec.Spec
	}
	step, err := own.Plan(decision, spec, existing)
	if err != nil { // no trying mends it
		w.cfg.Log.WarnContext(ctx, "leave a node's configuration as it is", "node", name, "error", err)
		w.event(existing, corev1.EventTypeWarning, "AdoptedSpecInvalid", "Restore", err.Error())
		return nil
	}
	if step.Do == own.Delete || step.Do == own.Restore {
		wait, err := w.wait(ctx, decision)
		if err != nil {
			return err
		}
		if wait > 0 {
			w.queue.AddAfter(key{name: name}, wait)
			return nil
		}
	}
	switch step.Do {
	case own.Nothing:
		return nil
	case own.Apply:
		err = w.apply(ctx, step, existing)
	case own.Restore:
		err = w.restore(ctx, step.Want, existing)
	case own.Delete:
		at := client.Preconditions{UID: &existing.UID, ResourceVersion: &existing.ResourceVersion}
		err = w.wrote("delete", client.IgnoreNotFound(w.client.Delete(ctx, existing.DeepCopy(), at)))
	}
	if err != nil {
		return fmt.Errorf("%s of node %s: %w", v2alpha1.NodeConfigKind, name, err)
	}
	w.cfg.Log.InfoContext(ctx, "node's configuration", "node", name, "did", step.Do.String(), "why", step.Why)
	return nil
}

// looksOfCalm is for how many looks at what nodes are nobody may have come or gone before a node counts
// as gone that went as a CiliumNode alone: the looks would see by then that nodes are of another kind.
const looksOfCalm = 3

// wait says how long what a node has is left alone although the node went. CiliumNodes go all together
// when their definition is removed, and come one by one with Cilium: a node that is still there as a
// core Node is one of another kind soon, perhaps, and has its configuration all the time.
func (w *leader) wait(ctx context.Context, d assign.Decision) (time.Duration, error) {
	if w.kind != ciliumNode || d.Exists {
		return 0, nil
	}
	left := looksOfCalm*w.cfg.Look - w.calm()
	if left <= 0 {
		return 0, nil
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(coreNode.gvk())
	if err := w.client.List(ctx, nodes, client.MatchingFields{"metadata.name": d.Node}, client.Limit(1)); err != nil {
		return 0, fmt.Errorf("look for node %s: %w", d.Node, err)
	}
	if len(nodes.Items) == 0 {
		return 0, nil
	}
	return left, nil
}

// wrote counts a request that changes something.
func (w *leader) wrote(verb string, err error) error {
	w.cfg.Metrics.Wrote(verb, err)
	return err
}

// apply makes the object, or has an existing one say what it should and keep all else.
func (w *leader) apply(ctx context.Context, step own.Step, existing *nodeConfig) error {
	want := step.Want
	if existing == nil {
		// No apply: that would take over what somebody wrote by hand a moment ago.
		return w.wrote("create", w.client.Create(ctx, want.DeepCopy(), client.FieldOwner(own.Manager)))
	}
	at := want.DeepCopy()
	at.UID, at.ResourceVersion = existing.UID, existing.ResourceVersion
	if step.Adopts {
		stored, err := w.stored(ctx, existing)
		if err != nil {
			return err
		}
		kept, err := json.Marshal(specOf(stored))
		if err != nil {
			return fmt.Errorf("keep the spec that was written by hand: %w", err)
		}
		at.Annotations[own.Adopted] = string(kept)
	}
	body, err := json.Marshal(at)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	got := rawConfig()
	got.SetName(want.Name)
	err = w.wrote("apply", w.client.Patch(ctx, got, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(own.Manager), client.ForceOwnership))
	if err == nil {
		err = w.clear(ctx, got, &want.Spec)
	}
	if err == nil && step.Adopts {
		w.event(existing, corev1.EventTypeNormal, "Adopted", "Adopt",
			want.Annotations[own.Cluster]+" governs this node now; the spec that was written by hand is kept in the annotation "+own.Adopted)
	}
	return err //nolint:wrapcheck // the caller names the object
}

// clear takes away what others said in fields that the operator governs, which an apply leaves. What
// else they said, in fields that only newer versions know, stays.
func (w *leader) clear(ctx context.Context, got *unstructured.Unstructured, want *v2alpha1.CiliumNetworkDriverNodeConfigSpec) error {
	is, err := own.Typed(specOf(got))
	if err != nil || own.Same(is, want) {
		return err //nolint:wrapcheck // the caller names the object
	}
	raw, err := own.Raw(want)
	if err != nil {
		return err //nolint:wrapcheck // the caller names the object
	}
	if got.Object["spec"], err = own.Over(specOf(got), raw); err != nil {
		return err //nolint:wrapcheck // the caller names the object
	}
	return w.wrote("update", w.client.Update(ctx, got, client.FieldOwner(own.Manager)))
}

func rawConfig() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v2alpha1.GroupVersion().WithKind(v2alpha1.NodeConfigKind))
	return o
}

func specOf(o *unstructured.Unstructured) own.Spec {
	spec, _ := o.Object["spec"].(own.Spec)
	return spec
}

// stored is a configuration as the server has it, with fields that this version does not know; a
// conflict when it is no longer the one that was looked at.
func (w *leader) stored(ctx context.Context, existing *nodeConfig) (*unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v2alpha1.GroupVersion().WithKind(v2alpha1.NodeConfigKind + "List"))
	if err := w.client.List(ctx, list, client.MatchingFields{"metadata.name": existing.Name}, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("read it: %w", err)
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.GetUID() == existing.UID && o.GetResourceVersion() == existing.ResourceVersion {
			return o, nil
		}
	}
	return nil, apierrors.NewConflict(schema.GroupResource{Group: v2alpha1.Group, Resource: v2alpha1.NodeConfigResource}, existing.Name,
		errors.New("it is another one than a moment ago"))
}

// restore puts a spec back that was written by hand, and takes the marks away.
func (w *leader) restore(ctx context.Context, want, existing *nodeConfig) error {
	back, err := w.stored(ctx, existing)
	if err != nil {
		return err
	}
	kept, err := own.Kept(existing.Annotations[own.Adopted])
	if err != nil {
		return err //nolint:wrapcheck // names itself
	}
	if back.Object["spec"], err = own.Over(specOf(back), kept); err != nil {
		return err //nolint:wrapcheck // the caller names the object
	}
	back.SetLabels(want.Labels)
	back.SetAnnotations(want.Annotations)
	err = w.wrote("update", w.client.Update(ctx, back, client.FieldOwner(own.Manager)))
	switch {
	case apierrors.IsNotFound(err):
		return nil // its deletion is told soon
	case err == nil:
		w.event(existing, corev1.EventTypeNormal, "Restored", "Restore", "no cluster configuration governs this node: the spec is the one again that was written by hand")
	}
	return err //nolint:wrapcheck // the caller names the object
}
