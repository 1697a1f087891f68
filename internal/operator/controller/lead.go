// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
)

// What fails is tried again after these times.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Minute
	// tellAfter: what fails is told to people when it failed so often.
	tellAfter = 3
)

// leader does what is to be done.
type leader struct {
	*Controller
	*ledger
	queue queue
	kind  nodeKind // what nodes are
}

// lead works until ctx ends, and then until what has begun is finished.
func (c *Controller) lead(ctx context.Context, l *ledger, kind nodeKind) error {
	q := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, lastRetry),
		workqueue.TypedRateLimitingQueueConfig[key]{Name: "weft-operator"})
	c.cfg.Log.InfoContext(ctx, "lead", "workers", c.cfg.Workers)
	w := &leader{Controller: c, ledger: l, queue: q, kind: kind}
	l.begin(q)
	var g errgroup.Group
	g.Go(func() error {
		for sleep(ctx, c.cfg.Refresh) == nil {
			l.all()
		}
		q.ShutDown()
		return nil
	})
	for range c.cfg.Workers {
		g.Go(func() error {
			for w.next(ctx) {
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
	return context.Cause(ctx)
}

// next takes one key; false when there will be none.
func (w *leader) next(ctx context.Context) bool {
	k, over := w.queue.Get()
	if over {
		return false
	}
	defer w.queue.Done(k)
	if ctx.Err() != nil {
		return true // what waits is the next leader's
	}
	var err error
	if k.config {
		err = w.config(ctx, k.name)
	} else {
		err = w.node(ctx, k.name)
	}
	w.cfg.Metrics.Reconciled(k.kind(), w.took(k), err)
	if err == nil {
		w.queue.Forget(k)
		return true
	}
	if ctx.Err() == nil {
		w.failed(ctx, k, err)
		w.queue.AddRateLimited(k)
	}
	return true
}

// failed tells what did not work, and more loudly what still does not.
func (w *leader) failed(ctx context.Context, k key, err error) {
	log := w.cfg.Log.With("kind", k.kind(), "name", k.name, "error", err)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		log.DebugContext(ctx, "somebody else was quicker: try again")
		return
	}
	if w.queue.NumRequeues(k) != tellAfter {
		log.InfoContext(ctx, "try again")
		return
	}
	log.WarnContext(ctx, "cannot do what is to be done; it is tried again")
	if _, governor, _ := w.ledger.node(k.name); !k.config && governor != nil {
		w.event(governor, corev1.EventTypeWarning, "NodeConfigFailed", "Write", "node "+k.name+": "+err.Error())
	}
}

// maxNote is the limit of an event's text.
const maxNote = 1024

func (c *Controller) event(about runtime.Object, typ, reason, action, text string) {
	c.cfg.Events.Eventf(about, nil, typ, reason, action, "%s", short(text, maxNote))
}
