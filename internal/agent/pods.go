// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/reconcile"
	"github.com/weftnet/weft/internal/kube/informers"
	"github.com/weftnet/weft/internal/kube/rest"
)

// pods are the cluster's pods as the reconciler asks for them.
type pods struct{ cluster *informers.Cluster }

// Status implements reconcile.Pods.
func (p pods) Status(pod planner.PodRef) (known planner.PodRef, annotation string, ok bool) {
	row, ok := p.cluster.Pod(pod.Namespace, pod.Name)
	if !ok || row.Terminal || !asPlanned(row).Is(pod.UID) {
		return planner.PodRef{}, "", false
	}
	known = planner.PodRef{Namespace: row.Namespace, Name: row.Name, UID: row.UID}
	return known, row.Annotations[plan.StatusAnnotation], true
}

// Deleting implements reconcile.Pods.
func (p pods) Deleting(pod planner.PodRef) bool {
	row, ok := p.cluster.Pod(pod.Namespace, pod.Name)
	return ok && row.Deleting
}

// Annotate implements reconcile.Pods.
func (p pods) Annotate(ctx context.Context, pod planner.PodRef, annotation string, value func(old string) string) error {
	err := p.cluster.Annotate(ctx, informers.Ref(pod), annotation, value)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, informers.ErrNotFound), errors.Is(err, informers.ErrReplaced):
		return fmt.Errorf("%w: %w", reconcile.ErrGone, err)
	case rest.Code(err) == http.StatusForbidden:
		return fmt.Errorf("%w: %w", reconcile.ErrForbidden, err)
	}
	if e, ok := errors.AsType[*rest.Error](err); ok && e.Status != nil && e.Status.RetryAfter > 0 {
		return &later{err, e.Status.RetryAfter}
	}
	return err
}

// Tell implements reconcile.Pods.
func (p pods) Tell(pod planner.PodRef, e planner.Event) {
	p.cluster.Event(informers.Ref(pod), "Warning", e.Reason, e.Message)
}

// asPlanned is a pod of the cache as plan knows it.
func asPlanned(p *informers.Pod) *plan.Pod {
	return &plan.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Annotations: p.Annotations}
}

// later is an error of a server that said when to come again.
type later struct {
	error
	after time.Duration
}

func (l *later) Unwrap() error { return l.error }

// RetryAfter is what the server asked for.
func (l *later) RetryAfter() time.Duration { return l.after }
