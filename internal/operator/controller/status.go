// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/operator/assign"
	"github.com/weftnet/weft/internal/operator/own"
)

const (
	maxNodes   = 100     // that a status names
	maxMessage = 4 << 10 // of a condition, in bytes

	reasonValid   = "Valid"
	reasonInvalid = "Invalid"
)

// config writes what became of a cluster configuration, where it does not say so already.
func (w *leader) config(ctx context.Context, name string) error {
	summary, config := w.ledger.config(name)
	if config == nil {
		return nil
	}
	want := statusOf(summary, config)
	if equality.Semantic.DeepEqual(config.Status, want) {
		return nil
	}
	say := config.DeepCopy()
	say.Status = want
	err := client.IgnoreNotFound(w.wrote("status", w.client.Status().Update(ctx, say, client.FieldOwner(own.Manager))))
	if err != nil {
		return fmt.Errorf("status of %s %s: %w", v2alpha1.ClusterConfigKind, name, err)
	}
	w.tell(config, want)
	return nil
}

// statusOf is what the status should be.
func statusOf(s assign.Summary, c *clusterConfig) v2alpha1.CiliumNetworkDriverClusterConfigStatus {
	status := *c.Status.DeepCopy()
	status.ObservedGeneration = c.Generation
	status.NodeCount = int32(min(len(s.Nodes), 1<<31-1))
	status.Nodes = slices.Clone(s.Nodes[:min(len(s.Nodes), maxNodes)])
	accepted := metav1.Condition{
		Type: v2alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reasonValid, ObservedGeneration: c.Generation,
	}
	if s.Err != nil {
		accepted.Status, accepted.Reason = metav1.ConditionFalse, reasonInvalid
		accepted.Message = short(s.Err.Error(), maxMessage)
	}
	meta.SetStatusCondition(&status.Conditions, accepted)
	if s.State == assign.Conflicting {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v2alpha1.ConditionConflicting, Status: metav1.ConditionTrue, Reason: v2alpha1.ReasonConflict,
			Message: short(s.Message, maxMessage), ObservedGeneration: c.Generation,
		})
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v2alpha1.ConditionConflicting)
	}
	return status
}

// tell tells events of what the status says anew.
func (w *leader) tell(before *clusterConfig, now v2alpha1.CiliumNetworkDriverClusterConfigStatus) {
	is := func(in []metav1.Condition, typ string, status metav1.ConditionStatus) *metav1.Condition {
		if c := meta.FindStatusCondition(in, typ); c != nil && c.Status == status {
			return c
		}
		return nil
	}
	old, conflict := is(before.Status.Conditions, v2alpha1.ConditionConflicting, metav1.ConditionTrue), is(now.Conditions, v2alpha1.ConditionConflicting, metav1.ConditionTrue)
	switch {
	case conflict != nil && old == nil: // the nodes that it is about change often, and the condition names them
		w.event(before, corev1.EventTypeWarning, "Conflicting", "Assign", conflict.Message)
	case conflict == nil && old != nil:
		w.event(before, corev1.EventTypeNormal, "Resolved", "Assign", "no other configuration governs nodes that this one selects")
	}
	was, wrong := is(before.Status.Conditions, v2alpha1.ConditionAccepted, metav1.ConditionFalse), is(now.Conditions, v2alpha1.ConditionAccepted, metav1.ConditionFalse)
	switch {
	case wrong != nil && (was == nil || was.Message != wrong.Message):
		w.event(before, corev1.EventTypeWarning, "Invalid", "Validate", wrong.Message)
	case wrong == nil && was != nil:
		w.event(before, corev1.EventTypeNormal, "Accepted", "Validate", "the configuration is valid")
	}
}

// short cuts a text for people.
func short(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
