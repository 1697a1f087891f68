// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"encoding/json"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/cni/wire"
)

// PodRef names one pod, and not a later one of the same name.
type PodRef struct{ Namespace, Name, UID string }

func (p PodRef) String() string { return "pod " + p.Namespace + "/" + p.Name }

// Event is what a pod's owner is told.
type Event struct {
	Reason  string // one of the Reason constants
	Message string // one line, bounded
}

// Reasons of events; all of them are warnings. NoNetworkFound is what users of Multus
// know, the last is the counterpart of its AddedInterface.
const (
	ReasonNoNetwork  = "NoNetworkFound"     // a NAD that the pod names does not exist
	ReasonInvalid    = "InvalidNetworks"    // nothing was attached: annotation, NAD, isolation, devices
	ReasonFailed     = "FailedAddInterface" // attaching failed, and was undone
	ReasonQuestioned = "QuestionableNetworks"
)

// maxMessage bounds an event's message, in bytes: the API server takes no more.
const maxMessage = 1 << 10

// Reporter is a Source that can tell users how an ADD went. A Source that is none is
// asked for plans only.
type Reporter interface {
	Source
	// Annotate sets an annotation of the pod to what value makes of its present one
	// ("" = absent), and of no newer one: value is called again when another writer was
	// quicker. The error is a *fault.Fault: 11 also for a pod that is gone.
	Annotate(ctx context.Context, pod PodRef, annotation string, value func(old string) string) error
	// Tell tells an event, soon and if it can; nothing waits for it.
	Tell(pod PodRef, e Event)
}

// Report answers a report: it writes network-status when the ADD succeeded, and tells
// the failure by an event when it did not.
func Report(ctx context.Context, req wire.ReportRequest, open func(*netconf.Conf) (Source, error)) wire.Response {
	if err := report(ctx, req, open); err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	return wire.Response{Done: true}
}

func report(ctx context.Context, req wire.ReportRequest, open func(*netconf.Conf) (Source, error)) error {
	conf, _, err := netconf.Parse(req.Conf)
	if err != nil {
		return err
	}
	src, err := open(conf)
	if err != nil {
		return err
	}
	r, ok := src.(Reporter)
	pod := PodRef{req.PodNamespace, req.PodName, req.PodUID}
	switch {
	case !ok:
		return fault.New(fault.Internal, "configuration "+conf.Name, "", "names a source that takes no reports")
	case pod.Name == "" || pod.Namespace == "":
		return fault.New(fault.Internal, "report", "", "names no pod")
	case req.Error != nil:
		r.Tell(pod, Event{ReasonFailed, message(req.Error)})
		return nil
	}
	own, err := entries(req.Attachments)
	if err != nil {
		return err
	}
	return r.Annotate(ctx, pod, plan.StatusAnnotation, func(old string) string {
		return mergeStatus(old, req.Attachments, own)
	})
}

// message is a CNI error as the text of an event.
func message(e *wire.Error) string {
	text := e.Msg
	if e.Details != "" {
		text += "; " + e.Details
	}
	return fault.Bound(text, maxMessage)
}

// entries makes the network-status of the attachments that were made.
func entries(made []wire.ReportAttachment) ([]netstatus.Entry, error) {
	var p plan.Plan
	rs := make([]*results.Result, len(made))
	infos := make([]json.RawMessage, len(made))
	for i, a := range made {
		p.Attachments = append(p.Attachments, plan.Attachment{Network: a.Network, IfName: a.IfName, Default: a.Default})
		infos[i] = a.DeviceInfo
		if len(a.Result) == 0 {
			continue
		}
		var err error
		if rs[i], err = results.Parse(a.Result, a.CNIVersion); err != nil {
			return nil, &fault.Fault{Code: fault.Result, Object: "network " + a.Network, Text: err.Error(), Err: err}
		}
	}
	return netstatus.Build(p, rs, infos), nil
}
