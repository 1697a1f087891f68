// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/brief"
)

// complaintTimeout is what telling the pod's owner of a failed ADD may add to it.
const complaintTimeout = 2 * time.Second

// report gives the results of the ADD to a planner that wants them. Its error fails the
// ADD: without an agent nobody would repair a status that was not written. An agent
// answers success, and repairs it; one that ended meanwhile does so from the record when
// it is back, so that replacing it undoes no pod.
func (t *task) report(ctx context.Context, p *plan.Plan, made []*results.Result) error {
	req := t.reportOf(p)
	for i, a := range p.Attachments {
		info, err := devices.ReadInfo(t.conf, a)
		if err != nil {
			return fmt.Errorf("network %s, interface %s: %w", a.Network, a.IfName, err)
		}
		raw, err := made[i].Bytes()
		if err != nil {
			return resultFault(&a, err)
		}
		req.Attachments[i].Result, req.Attachments[i].DeviceInfo = raw, info
	}
	if !t.reports() {
		return nil
	}
	err := t.client.Report(ctx, req)
	if errors.Is(err, wire.ErrGone) {
		t.log.warn("report: " + err.Error() + "; the next agent writes the status")
		return nil
	}
	return err
}

// handOver has the devices that the pod claimed moved into the sandbox, where it claimed any: an ADD
// never succeeds without them. What fails later is undone with the record, whose end the agent sees.
func (t *task) handOver(ctx context.Context, p *plan.Plan) error {
	if t.client == nil || !t.client.WantsHandover() {
		return nil
	}
	req := wire.HandoverRequest{
		Conf: t.req.stdin, Sandbox: t.req.sandbox,
		PodNamespace: p.PodNamespace, PodName: p.PodName, PodUID: p.PodUID,
	}
	for _, a := range p.Attachments {
		req.IfNames = append(req.IfNames, a.IfName)
	}
	return t.client.Handover(ctx, req)
}

// complain tells a planner that what it planned was not made, for an event on the pod:
// nothing of it is attached. What is wrong with the plan itself the planner tells.
func (h *hands) complain(ctx context.Context, p *plan.Plan, cause error) {
	if !h.reports() {
		return
	}
	ctx = brief.WithTimeout(context.WithoutCancel(ctx), complaintTimeout)
	req := h.reportOf(p)
	e := cniError("ADD", cause)
	req.Error = &wire.Error{Code: e.Code, Msg: e.Msg, Details: e.Details}
	if err := h.client.Report(ctx, req); err != nil {
		h.log.warn("report: " + err.Error())
	}
}

func (h *hands) reports() bool { return h.client != nil && h.client.WantsReport() }

func (h *hands) reportOf(p *plan.Plan) wire.ReportRequest {
	req := wire.ReportRequest{
		Conf: h.req.stdin, Sandbox: h.req.sandbox,
		PodNamespace: p.PodNamespace, PodName: p.PodName, PodUID: p.PodUID,
	}
	for _, a := range p.Attachments {
		req.Attachments = append(req.Attachments, wire.ReportAttachment{
			Network: a.Network, IfName: a.IfName, Default: a.Default, CNIVersion: a.Conf.CNIVersion,
		})
	}
	return req
}
