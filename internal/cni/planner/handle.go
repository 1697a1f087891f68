// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/wire"
)

// Open gives the source that a conf names, the same one for every request of one ADD.
type Open = func(*netconf.Conf) (Source, error)

// Within is what a request may take. The hands' deadline is kept: a plan has half of what is
// left of it, since the delegates are still to run, a report nearly all. An answer that says
// what is wrong is worth more than none in time.
func Within(req *wire.Request) time.Duration {
	left := time.Duration(req.TimeoutMS) * time.Millisecond
	if left <= 0 {
		left = netconf.DefaultTimeout
	}
	switch req.Verb {
	case wire.VerbReport, wire.VerbHandover:
		return left - left/20
	}
	return left / 2
}

// Handle answers one request of any verb. Reports go to report, which is nil for a
// planner that has nowhere to write to. It has the time that Within says, and sets no timer
// where ctx ends earlier anyhow.
func Handle(ctx context.Context, req wire.Request, open Open, report func(context.Context, wire.ReportRequest, Open) wire.Response) wire.Response {
	ctx, cancel := context.WithTimeout(ctx, Within(&req))
	defer cancel()
	switch req.Verb {
	case wire.VerbReport:
		if report == nil {
			return wire.Response{Error: wire.NewError(fault.New(fault.Internal, "planner", "",
				"answers no verb %s: there is nowhere to write to", fault.Quote(req.Verb)))}
		}
		return report(ctx, *req.Report, open)
	case wire.VerbHandover:
		return handOver(ctx, *req.Handover, open)
	case wire.VerbApply:
		// A first list may come from a server that is behind: networks that the pod got since
		// would be taken from it.
		return answerTo(ctx, *req.Apply, open, true)
	}
	return Answer(ctx, *req.Plan, open)
}

// Handing is a Source of a node whose pods may have claimed devices. They are moved into the sandbox
// after the delegates.
type Handing interface {
	// Prepared names the interfaces that they take in the pod; nil when it has none. The error says
	// why it cannot be told yet: an ADD never succeeds without them.
	Prepared(podUID string) ([]string, error)
	// Handover moves all of them, or none. Errors are *fault.Fault.
	Handover(ctx context.Context, req wire.HandoverRequest) error
}

func handOver(ctx context.Context, req wire.HandoverRequest, open Open) wire.Response {
	conf, _, err := netconf.Parse(req.Conf)
	if err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	src, err := open(conf)
	if err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	h, ok := src.(Handing)
	if !ok {
		return wire.Response{Error: wire.NewError(fault.New(fault.Internal, "planner", "",
			"answers no verb %s: it has no devices", fault.Quote(wire.VerbHandover)))}
	}
	if err := h.Handover(ctx, req); err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	return wire.Response{Done: true}
}
