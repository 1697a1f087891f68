// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report writes down where users look how an ADD went: network-status when it
// succeeded, an event on the pod when it did not. What network-status is to say (Status)
// is the same for who writes it once, here, and who keeps it right (internal/cni/reconcile).
//
// Invariants: network-status keeps what other writers put there; it is made of the
// results alone; one that says what it should is left as it is written. It is apart from planner because reading results links every CNI
// version's types, which a planner that takes no reports would pay for at every start.
//
// It does not know how an annotation gets to an API server: that is the source's.
//
// Implements: architecture 4.2 (verb report), 4.4 (network-status); spec/cni.md 1.14.
package report

import (
	"context"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
)

// Answer answers a report: it writes network-status when the ADD succeeded, and tells
// the failure by an event when it did not.
func Answer(ctx context.Context, req wire.ReportRequest, open func(*netconf.Conf) (planner.Source, error)) wire.Response {
	if err := report(ctx, req, open); err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	return wire.Response{Done: true}
}

func report(ctx context.Context, req wire.ReportRequest, open func(*netconf.Conf) (planner.Source, error)) error {
	conf, _, err := netconf.Parse(req.Conf)
	if err != nil {
		return err
	}
	src, err := open(conf)
	if err != nil {
		return err
	}
	r, ok := src.(planner.Reporter)
	pod := planner.PodRef{Namespace: req.PodNamespace, Name: req.PodName, UID: req.PodUID}
	switch {
	case !ok:
		return fault.New(fault.Internal, "configuration "+conf.Name, "", "names a source that takes no reports")
	case pod.Name == "" || pod.Namespace == "":
		return fault.New(fault.Internal, "report", "", "names no pod")
	case req.Error != nil:
		r.Tell(pod, planner.Event{Reason: planner.ReasonFailed, Message: planner.Message(req.Error)})
		return nil
	}
	status, err := StatusOf(req.Attachments)
	if err != nil {
		return err
	}
	return r.Annotate(ctx, pod, plan.StatusAnnotation, status.Merge)
}
