// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weftnet/weft/api/v2alpha1"
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
	switch step.Do {
	case own.Nothing:
		return nil
	case own.Apply:
		err = w.apply(ctx, step.Want, existing)
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

// wrote counts a request that changes something.
func (w *leader) wrote(verb string, err error) error {
	w.cfg.Metrics.Wrote(verb, err)
	return err
}

// apply makes the object, or has an existing one say what it should and keep all else.
func (w *leader) apply(ctx context.Context, want, existing *nodeConfig) error {
	if existing == nil {
		// No apply: that would take over what somebody wrote by hand a moment ago.
		return w.wrote("create", w.client.Create(ctx, want.DeepCopy(), client.FieldOwner(own.Manager)))
	}
	at := want.DeepCopy()
	at.UID, at.ResourceVersion = existing.UID, existing.ResourceVersion
	body, err := json.Marshal(at)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	got := &nodeConfig{}
	got.Name = want.Name
	err = w.wrote("apply", w.client.Patch(ctx, got, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(own.Manager), client.ForceOwnership))
	if err != nil {
		return err //nolint:wrapcheck // the caller names the object
	}
	if !as(got, want) { // an apply does not take away what is others'
		got.Spec = *want.Spec.DeepCopy()
		err = w.wrote("update", w.client.Update(ctx, got, client.FieldOwner(own.Manager)))
	}
	if err == nil && existing != nil && own.Owner(existing) == "" {
		w.event(existing, corev1.EventTypeNormal, "Adopted", "Adopt",
			want.Annotations[own.Cluster]+" governs this node now; the spec that was written by hand is kept in the annotation "+own.Adopted)
	}
	return err //nolint:wrapcheck // the caller names the object
}

// as says whether an object is what it should be.
func as(got, want *nodeConfig) bool {
	return own.Same(&got.Spec, &want.Spec)
}

// restore puts a spec back that was written by hand, and takes the marks away.
func (w *leader) restore(ctx context.Context, want, existing *nodeConfig) error {
	back := existing.DeepCopy()
	back.Spec = *want.Spec.DeepCopy()
	back.Labels, back.Annotations = maps.Clone(want.Labels), maps.Clone(want.Annotations)
	err := w.wrote("update", w.client.Update(ctx, back, client.FieldOwner(own.Manager)))
	switch {
	case apierrors.IsNotFound(err):
		return nil // its deletion is told soon
	case err == nil:
		w.event(existing, corev1.EventTypeNormal, "Restored", "Restore", "no cluster configuration governs this node: the spec is the one again that was written by hand")
	}
	return err //nolint:wrapcheck // the caller names the object
}
