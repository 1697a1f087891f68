// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/lanes"
)

// plug brings a running pod to what its annotation asks for (spec/cni.md rule 12). What did
// not change is not touched; without a plan nothing is.
func (h *hands) plug(ctx context.Context, rec *journal.Record, s *record.Sandbox) (apply.Answer, error) {
	sb := s.Body.Sandbox
	switch here := hostID(); {
	case here == "" || s.Body.Host != here || s.Boot != h.boot || s.Body.NetnsID == "":
		return apply.Answer{Outcome: apply.Unsure, Reason: "this is not known to be the host as the runtime sees it"}, nil
	case !s.Finished:
		return apply.Answer{Outcome: apply.Kept, Reason: "its ADD is not over, or it is being undone"}, nil
	case !netnsAt(sb.Netns).is(&s.Body):
		return apply.Answer{Outcome: apply.Kept, Reason: "its network namespace is gone"}, nil
	}
	p, err := h.planPlug(ctx, s)
	if err != nil {
		return apply.Answer{}, err
	}
	h.log.warnings(p.Warnings)
	d := apply.Difference(s, p)
	if d.Nothing() {
		return apply.Answer{Outcome: apply.Done, Changed: d.Changed}, nil
	}
	if err := h.checkHost(&plan.Plan{Attachments: d.Additions()}); err != nil {
		return apply.Answer{}, err
	}
	gate, err := h.enterGate(ctx)
	if err != nil {
		return apply.Answer{}, err
	}
	defer gate.Close() //nolint:errcheck // only its lock matters
	lane, err := h.lane(ctx, false)
	if err != nil {
		return apply.Answer{}, err
	}
	defer lanes.Release(lane)
	if s, err = h.beginPlug(rec, s, d); err != nil {
		return apply.Answer{}, err
	}
	c := change{task: &task{hands: h, rec: rec, lane: lane}, s: s, answer: apply.Answer{Outcome: apply.Done, Changed: d.Changed}}
	c.detach(ctx, d)
	c.attach(ctx, d)
	return c.answer, c.append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall})
}

// planPlug asks the agent what the pod is to have.
func (h *hands) planPlug(ctx context.Context, s *record.Sandbox) (*plan.Plan, error) {
	client, err := wire.Dial(ctx, h.conf.AgentSocket)
	if err != nil {
		return nil, &fault.Fault{Code: fault.TryLater, Object: "agentSocket " + h.conf.AgentSocket, Text: err.Error(), Err: err}
	}
	defer client.Close() //nolint:errcheck // the answer is there, or its error is
	req := wire.PlanRequest{Conf: h.req.stdin, Sandbox: s.Body.Sandbox, Attached: apply.Attached(s)}
	return client.Apply(ctx, req, h.files())
}

// beginPlug makes the record a new one, of what the pod has with its results and what it is to
// get. It replaces the old one at once, by rename, so that there is always one that undoes
// everything; what was undone before drops out, however often a pod changes.
func (h *hands) beginPlug(rec *journal.Record, s *record.Sandbox, d *apply.Diff) (*record.Sandbox, error) {
	body := s.Body
	body.Plugged, body.Taken, body.Displaced, body.Half, body.Plan.Attachments, body.Plan.Warnings = true, nil, nil, nil, nil, nil
	for i, a := range d.All {
		if a.Pending() && !a.Done {
			body.Half = append(body.Half, i)
		}
		body.Plan.Attachments = append(body.Plan.Attachments, a.Attachment)
		body.Taken = append(body.Taken, a.Result)
		body.Displaced = append(body.Displaced, a.Displaced)
	}
	for i := range s.Attachments {
		if a := &s.Attachments[i]; a.Undone {
			body.Former = append(body.Former, record.Former{Network: a.Network, IfName: a.IfName})
		}
	}
	slices.SortFunc(body.Former, func(a, b record.Former) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), strings.Compare(a.IfName, b.IfName))
	})
	body.Former = slices.Compact(body.Former)
	body.Former = body.Former[max(0, len(body.Former)-record.MaxFormer):]
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, stateFault(rec.Key(), err)
	}
	in := rec.State().Intents[0]
	in.Body, in.Owner, in.Boot = raw, journal.Self(), h.boot
	if err := rec.Begin(in); err != nil {
		return nil, stateFault(rec.Key(), err)
	}
	return decode(rec, h.boot)
}

// change is one plug at work.
type change struct {
	*task
	s      *record.Sandbox
	answer apply.Answer
}

func (c *change) failed(i int, what string, err error) {
	a := &c.s.Attachments[i]
	c.answer.Failed = append(c.answer.Failed, fmt.Sprintf("network %s, interface %s: %s: %v", a.Network, a.IfName, what, err))
}

func (c *change) line(i int) string {
	return "network " + c.s.Attachments[i].Network + ", interface " + c.s.Attachments[i].IfName
}

// detach undoes what is not asked for any more, last first.
func (c *change) detach(ctx context.Context, d *apply.Diff) {
	for n, i := range slices.Backward(d.Detach) {
		// Half of the time is for what is to be attached.
		if err := c.undo(ctx, n+2, i); err != nil {
			c.failed(i, "is not detached", err)
			continue
		}
		c.answer.Detached = append(c.answer.Detached, c.line(i))
	}
}

// attach makes what is asked for and is not there. One that fails is undone, and stops no other.
func (c *change) attach(ctx context.Context, d *apply.Diff) {
	for _, i := range d.Attach {
		a := &c.s.Attachments[i]
		if slices.ContainsFunc(d.Detach, func(j int) bool { return c.s.Attachments[j].IfName == a.IfName && !c.s.Attachments[j].Undone }) {
			c.failed(i, "is not attached", errors.New("what has its interface is not detached"))
			continue
		}
		err := c.make(ctx, i)
		if err == nil {
			c.answer.Attached = append(c.answer.Attached, c.line(i))
			continue
		}
		c.failed(i, "is not attached", err)
		ctx := brief.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		if err := c.undo(ctx, 1, i); err != nil {
			c.failed(i, "is not undone", err)
		}
	}
}

// undo undoes attachment i of a pod that goes on: what its default routes took the place of comes
// first, so that there is a default route at every moment. Where that fails the attachment stays
// begun to be undone, and the next order goes on with it.
func (c *change) undo(ctx context.Context, left, i int) error {
	a := &c.s.Attachments[i]
	if a.Done = false; len(a.Gateways) > 0 || a.Displaced != nil {
		c.try(journal.Phase{Phase: journal.Undoing, Item: i})
		if err := c.giveBack(i); err != nil {
			return err
		}
	}
	return c.undoAttachment(ctx, left, i, c.s)
}

// make runs the ADD of one attachment and sets the default routes that it asks for.
func (c *change) make(ctx context.Context, i int) error {
	a := &c.s.Attachments[i]
	if err := c.append(journal.Phase{Phase: journal.Attempting, Item: i}); err != nil {
		return err
	}
	a.Attempted = true
	if err := devices.CopyInfo(c.conf, a.Attachment); err != nil {
		return err
	}
	r, err := c.runner.Add(ctx, c.call(i, a.Attachment, c.seed(a.Attachment)))
	if err != nil {
		return err
	}
	if len(a.Gateways) == 0 {
		return c.tellOne(i, r)
	}
	if a.Result, err = r.Bytes(); err != nil {
		return resultFault(&a.Attachment, err)
	}
	return c.reroute(i, r)
}

// reroute sets the default routes that attachment i asks for, and records results that say so. The
// attachment is made when they are: a kill before that has it undone, and what it displaced put back.
func (c *change) reroute(i int, own *results.Result) error {
	a := &c.s.Attachments[i]
	there := []result{{i, &a.Attachment, own}}
	for j := range c.s.Attachments {
		b := &c.s.Attachments[j]
		if j == i || !b.Present(true) {
			continue
		}
		r, err := results.Parse(b.Result, b.Conf.CNIVersion)
		if err != nil {
			return resultFault(&b.Attachment, err)
		}
		there = append(there, result{j, &b.Attachment, r})
	}
	ns, err := kernel.OpenNetns(c.req.sandbox.Netns)
	if err != nil {
		return routeFault(&a.Attachment, "default-route", err)
	}
	defer ns.Close() //nolint:errcheck // sockets of a process about to end
	if a.Displaced, err = c.setDefaults(ns, i, &a.Attachment, a.Result, there); err != nil {
		return err
	}
	// What others ask for is as it is: this one alone is edited for, and told last.
	made, p := make([]*results.Result, 0, len(there)), plan.Plan{Attachments: make([]plan.Attachment, len(there))}
	for _, x := range there {
		made = append(made, x.r)
	}
	p.Attachments[0].Gateways = a.Gateways
	results.EditDefaultRoutes(made, p)
	for _, x := range slices.Backward(there) {
		if err := c.tellOne(x.item, x.r); err != nil {
			return err
		}
	}
	return nil
}
