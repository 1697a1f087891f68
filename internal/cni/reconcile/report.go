// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/report"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/journal"
)

// Report answers a report: of a failed ADD by an event on the pod, of any other by having
// the pod's status written, for which it waits a while.
func (r *Reconciler) Report(ctx context.Context, req wire.ReportRequest) wire.Response {
	pod := planner.PodRef{Namespace: req.PodNamespace, Name: req.PodName, UID: req.PodUID}
	switch {
	case pod.Name == "" || pod.Namespace == "":
		return wire.Response{Error: wire.NewError(fault.New(fault.Internal, "report", "", "names no pod"))}
	case req.Error != nil:
		r.pods.Tell(pod, planner.Event{Reason: planner.ReasonFailed, Message: planner.Message(req.Error)})
		return wire.Response{Done: true}
	}
	// The watch may be behind: the record is read now.
	key := journal.Key(req.Sandbox.ContainerID + "-" + req.Sandbox.IfName)
	s, err := r.refresh(ctx, key)
	if err != nil || s == nil || s.PodUID != pod.UID || pod.UID == "" || !s.Answered() {
		return r.once(ctx, pod, req, err)
	}
	w := r.expect(s)
	defer r.unexpect(s.PodUID, w)
	r.queue.add(s.PodUID, true)
	timeout := time.NewTimer(r.opts.StatusTimeout)
	defer timeout.Stop()
	select {
	case <-w.done:
	case <-timeout.C:
		r.log.Debug("network-status is left to be written later", "pod", pod.Namespace+"/"+pod.Name)
	case <-ctx.Done():
	}
	return wire.Response{Done: true}
}

func (r *Reconciler) refresh(ctx context.Context, key journal.Key) (*observe.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return r.records.Refresh(ctx, key)
}

// once writes the status of an ADD whose record cannot be seen: it is of another state
// directory, or of another version. From then on nobody keeps it right, so a write that
// fails fails the ADD, as without an agent.
func (r *Reconciler) once(ctx context.Context, pod planner.PodRef, req wire.ReportRequest, why error) wire.Response {
	r.log.Warn("record of a report cannot be seen, its network-status is written this once",
		"pod", pod.Namespace+"/"+pod.Name, "container_id", req.Sandbox.ContainerID, "error", why)
	status, err := report.StatusOf(req.Attachments)
	if err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if known, _, ok := r.pods.Status(pod); ok {
		pod = known
	}
	if err := r.pods.Annotate(ctx, pod, plan.StatusAnnotation, status.Merge); err != nil {
		return wire.Response{Error: wire.NewError(fault.New(fault.TryLater, pod.String(), "", "network-status is not written: %w", err))}
	}
	return wire.Response{Done: true}
}
