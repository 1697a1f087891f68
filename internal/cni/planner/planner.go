// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package planner answers the hands' plan requests out of a source of pods and
// NetworkAttachmentDefinitions: what the one-shot planners and the agent have in common.
//
// Invariants: it keeps nothing between two requests; it reads no file of the host,
// but asks the hands for those that the plan needs; every answer is a plan, a list
// of needs or an error with a CNI code; a fault of the pod's owner is told by one event.
//
// It does not know where the source has its objects from, and decides nothing
// about networks: that is plan.
//
// Implements: architecture 4.2 (verbs plan and handover).
package planner

import (
	"context"
	"errors"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
)

// Source is where pods and NADs come from. Errors are *fault.Fault: code 11 for
// what time may mend, also for a pod that is not known (yet).
type Source interface {
	Pod(ctx context.Context, namespace, name string) (*plan.Pod, error)
	// NAD has Found false, and no error, for one that does not exist.
	NAD(ctx context.Context, ref plan.NADRef) (plan.NAD, error)
	// Devices maps each resource to the pod's device IDs, sorted; never nil.
	Devices(ctx context.Context, pod *plan.Pod) (map[string][]string, error)
	// Warnings are about the source itself, such as a manifest that is broken.
	Warnings() []fault.Warning
}

// Answer answers one request; open gives the source that its conf names.
func Answer(ctx context.Context, req wire.PlanRequest, open func(*netconf.Conf) (Source, error)) wire.Response {
	return answerTo(ctx, req, open, false)
}

// answerTo is Answer, and with live it takes no copy of the pod.
func answerTo(ctx context.Context, req wire.PlanRequest, open Open, live bool) (res wire.Response) {
	conf, _, err := netconf.Parse(req.Conf) // the hands tell the conf's warnings themselves
	if err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	src, err := open(conf)
	if err != nil {
		return wire.Response{Error: wire.NewError(err)}
	}
	a := &answer{src: src, live: live, in: plan.Input{
		Conf: conf, Sandbox: req.Sandbox, Attached: req.Attached, LookUp: true, NADs: map[plan.NADRef]plan.NAD{}, Files: map[plan.Need]plan.File{},
	}}
	for _, f := range req.Files {
		a.in.Files[f.Need] = f
	}
	defer func() {
		if res.Written == nil { // also when it panics
			a.free()
		}
	}()
	p, need, err := a.plan(ctx)
	if p != nil {
		err = a.settle(ctx, p)
	}
	switch {
	case err != nil:
		answer := wire.NewError(err, a.hints()...)
		a.tellFault(answer)
		return wire.Response{Error: answer}
	case p != nil:
		a.tellWarnings(p.Warnings)
		p.Warnings = append(p.Warnings, src.Warnings()...)
		_, reports := src.(Reporter)
		return wire.Response{Plan: p, Report: reports && p.PodName != "", Handover: len(a.in.Reserved) > 0, Written: a.free}
	}
	return wire.Response{Need: need}
}

// Refresher is a Source that may have an older copy of a pod.
type Refresher interface {
	// Refresh is Pod without any copy.
	Refresh(ctx context.Context, namespace, name string) (*plan.Pod, error)
}

// answer is one request in work.
type answer struct {
	src     Source
	in      plan.Input
	live    bool
	missing bool // an object that the plan names is not there
	noNAD   bool // and it is a NAD
	bytes   int  // of the NADs
	held    int  // bytes of a Sharing source's room
}

// plan makes the plan, or says which files it needs.
func (a *answer) plan(ctx context.Context) (*plan.Plan, []plan.Need, error) {
	var err error
	if a.in.Pod, err = a.pod(ctx); err != nil {
		return nil, nil, err
	}
	if h, ok := a.src.(Handing); ok && a.in.Pod != nil {
		if a.in.Reserved, err = h.Prepared(a.in.Pod.UID); err != nil {
			return nil, nil, &fault.Fault{
				Code: fault.TryLater, Object: "pod " + a.in.Pod.Namespace + "/" + a.in.Pod.Name,
				Text: "its claimed devices: " + err.Error(), Err: err,
			}
		}
	}
	for {
		out, err := plan.Make(a.in)
		switch {
		case len(out.NeedNADs) > 0 || out.NeedDevices:
			if missed := a.resolve(ctx, out); missed != nil {
				return nil, nil, together(err, missed)
			}
		case len(out.NeedFiles) > 0:
			return nil, out.NeedFiles, nil
		case err != nil || out.Plan != nil:
			return out.Plan, nil, err
		default:
			return nil, nil, fault.New(fault.Internal, "plan", "", "is neither made nor lacks anything")
		}
	}
}

// together gives the faults that were seen before something could not be had, and that one
// too where somebody has to mend it: time mends none of the others.
func together(seen, missed error) error {
	f, ok := errors.AsType[*fault.Fault](missed)
	switch {
	case seen == nil:
		return missed
	case ok && f.Code == fault.Config:
		return errors.Join(seen, missed)
	}
	return seen
}

// pod finds the sandbox's pod; nil when the sandbox is not one of Kubernetes.
func (a *answer) pod(ctx context.Context) (*plan.Pod, error) {
	args := a.in.Sandbox.ArgPairs()
	namespace, name := args["K8S_POD_NAMESPACE"], args["K8S_POD_NAME"]
	switch {
	case namespace == "" && name == "":
		return nil, nil
	case namespace == "":
		return nil, fault.New(fault.Environment, "CNI_ARGS", "K8S_POD_NAMESPACE", "is missing beside K8S_POD_NAME")
	case name == "":
		return nil, fault.New(fault.Environment, "CNI_ARGS", "K8S_POD_NAME", "is missing beside K8S_POD_NAMESPACE")
	}
	r, refreshes := a.src.(Refresher)
	pod, err := (*plan.Pod)(nil), error(nil)
	if refreshes && a.live {
		pod, err = r.Refresh(ctx, namespace, name)
	} else if pod, err = a.src.Pod(ctx, namespace, name); refreshes && err == nil && !pod.Is(args["K8S_POD_UID"]) {
		// The pod was made anew under its name; who is behind, source or runtime, is to be seen.
		pod, err = r.Refresh(ctx, namespace, name)
	}
	if err != nil {
		a.missing = true
		return nil, err
	}
	if pod.UID == "" { // a manifest is written before its pod has one
		pod.UID = args["K8S_POD_UID"]
	}
	return pod, nil
}

// resolve gets the objects that out lacks.
func (a *answer) resolve(ctx context.Context, out plan.Output) error {
	if err := a.expect(ctx, out.NeedNADs); err != nil {
		return err
	}
	for _, ref := range out.NeedNADs {
		if _, have := a.in.NADs[ref]; have {
			return fault.New(fault.Internal, "plan", "", "asks for NetworkAttachmentDefinition %s/%s again", ref.Namespace, ref.Name)
		}
		nad, err := a.src.NAD(ctx, ref)
		if err != nil {
			return err
		}
		a.in.NADs[ref] = nad
		a.bytes += len(nad.Config)
		if err := a.room(ctx, a.bytes); err != nil {
			return err
		}
		a.noNAD = a.noNAD || !nad.Found
		a.missing = a.missing || a.noNAD
	}
	if !out.NeedDevices {
		return nil
	}
	if a.in.Devices != nil {
		return fault.New(fault.Internal, "plan", "", "asks for the pod's devices again")
	}
	devices, err := a.src.Devices(ctx, a.in.Pod)
	if err != nil {
		return err
	}
	a.in.Devices = devices
	return nil
}

// tellFault tells the pod's owner why there is no plan. Not what time may mend: that may
// be about another pod of the name, or the API server, which would not take the event.
func (a *answer) tellFault(e *wire.Error) {
	r, ok := a.src.(Reporter)
	if !ok || a.in.Pod == nil || e.Code == uint(fault.TryLater) {
		return
	}
	reason := ReasonInvalid
	if a.noNAD {
		reason = ReasonNoNetwork
	}
	r.Tell(a.ref(), Event{reason, Message(e)})
}

// tellWarnings tells the pod's owner what is odd about what the pod asks for.
func (a *answer) tellWarnings(all []fault.Warning) {
	r, ok := a.src.(Reporter)
	if !ok || a.in.Pod == nil {
		return
	}
	var texts []string
	for _, w := range all {
		if w.Object == a.ref().String() {
			texts = append(texts, (&fault.Fault{Field: w.Field, Text: w.Text}).Error())
		}
	}
	if len(texts) > 0 {
		r.Tell(a.ref(), Event{ReasonQuestioned, fault.Bound(strings.Join(texts, "; "), maxMessage)})
	}
}

func (a *answer) ref() PodRef { return PodRef{a.in.Pod.Namespace, a.in.Pod.Name, a.in.Pod.UID} }

// hints are the source's warnings; they may explain an error when an object was
// missed, because what is broken is skipped. (What files miss, plan says itself.)
func (a *answer) hints() []string {
	if !a.missing {
		return nil
	}
	var hints []string
	for _, w := range a.src.Warnings() {
		hints = append(hints, (&fault.Fault{Object: w.Object, Field: w.Field, Text: w.Text}).Error())
	}
	return hints
}
