// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// task runs delegates under one record's lock and one lane.
type task struct {
	*hands
	rec  *journal.Record
	lane *os.File
	// ofRuntime: the runtime said DEL of this very record.
	ofRuntime bool
}

// attachAll runs the ADD of every attachment in plan order and sets the default
// routes that were asked for. It returns the printed result.
func (t *task) attachAll(ctx context.Context, p *plan.Plan) ([]byte, error) {
	made := make([]*results.Result, len(p.Attachments))
	for i, a := range p.Attachments {
		if err := t.append(journal.Phase{Phase: journal.Attempting, Item: i}); err != nil {
			return nil, err
		}
		if err := devices.CopyInfo(t.conf, a); err != nil {
			return nil, fmt.Errorf("network %s, interface %s: %w", a.Network, a.IfName, err)
		}
		call := t.call(i, a, t.seed(a))
		if i == 0 {
			started := call.Started
			call.Started = func(plugin int, g chain.Group) {
				started(plugin, g)
				if plugin == 0 {
					t.prepareResult(a.Conf.CNIVersion)
				}
			}
		}
		var err error
		if made[i], err = t.runner.Add(ctx, call); err != nil {
			return nil, fmt.Errorf("network %s, interface %s: %w", a.Network, a.IfName, err)
		}
		if err := t.done(i, a, made[i]); err != nil {
			return nil, err
		}
	}
	if err := t.routes(p, made); err != nil {
		return nil, err
	}
	if err := t.handOver(ctx, p); err != nil {
		return nil, err
	}
	// What is reported is also checked when nobody wants the report.
	if err := t.report(ctx, p, made); err != nil {
		return nil, err
	}
	if err := t.append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall}); err != nil {
		return nil, err
	}
	return t.encode(&p.Attachments[0], made[0])
}

// done records the result of an attachment.
func (t *task) done(i int, a plan.Attachment, r *results.Result) error {
	raw, err := r.Bytes()
	if err != nil {
		return resultFault(&a, err)
	}
	return t.append(journal.Phase{Phase: journal.Done, Item: i, Result: raw})
}

func resultFault(a *plan.Attachment, err error) error {
	return &fault.Fault{Code: fault.Result, Object: "network " + a.Network, Text: err.Error(), Err: err}
}

// seed is what a chain starts from: an auxiliary chain's plugins expect a result
// before them, and there is none.
func (t *task) seed(a plan.Attachment) []byte {
	if !a.Auxiliary {
		return nil
	}
	return results.Empty(a.Conf.CNIVersion)
}

func (t *task) append(p journal.Phase) error {
	p.Waited, t.waited = t.waited.Milliseconds(), 0
	return stateFault(t.rec.Key(), t.rec.Append(p))
}

// call is the chain call of attachment i. What the record says of the sandbox is
// used rather than what this call's environment says: DEL may come with another
// CNI_PATH, or none of the namespace.
func (t *task) call(i int, a plan.Attachment, prev []byte) chain.Call {
	inherit := []*os.File{t.lane}
	if t.rec != nil {
		inherit = []*os.File{t.rec.LockFile(), t.lane}
	}
	return chain.Call{
		Network:       a.Conf,
		RuntimeConfig: a.RuntimeConfig,
		ContainerID:   t.req.sandbox.ContainerID,
		Netns:         t.req.sandbox.Netns,
		IfName:        a.IfName,
		Args:          a.Args,
		Path:          t.path(),
		PrevResult:    prev,
		Inherit:       inherit,
		Started: func(plugin int, g chain.Group) {
			// Without this line DEL still finds the group by its lock, so a write
			// that fails here is told by the next one.
			_ = t.rec.Append(journal.Phase{Phase: journal.Started, Item: i, Plugin: plugin, Group: g.ID, Start: g.Start})
		},
	}
}

// routes sets and verifies the default routes that were asked for, and records
// results that say so.
func (t *task) routes(p *plan.Plan, made []*results.Result) error {
	asked := false
	for _, a := range p.Attachments {
		asked = asked || len(a.Gateways) > 0
	}
	if !asked {
		return nil
	}
	ns, err := kernel.OpenNetns(t.req.sandbox.Netns)
	if err != nil {
		return &fault.Fault{Code: fault.Routes, Object: "namespace " + t.req.sandbox.Netns, Text: err.Error(), Err: err}
	}
	defer ns.Close() //nolint:errcheck // sockets of a process about to end
	there := make([]result, 0, len(made))
	for i, r := range made {
		there = append(there, result{i, &p.Attachments[i], r})
	}
	for i := range p.Attachments {
		if a := &p.Attachments[i]; len(a.Gateways) > 0 {
			if _, err := t.setDefaults(ns, i, a, nil, there); err != nil {
				return err
			}
		}
	}
	results.EditDefaultRoutes(made, *p)
	for i, r := range made {
		if err := t.done(i, p.Attachments[i], r); err != nil {
			return err
		}
	}
	return nil
}

// undoAfter undoes a failed ADD with time of its own. What could not be undone stays in
// the record, for the runtime's DEL and the sweep.
func (t *task) undoAfter(ctx context.Context) {
	ctx = brief.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	s, err := decode(t.rec, t.boot)
	if err == nil {
		err = t.undoAll(ctx, s)
	}
	if err != nil {
		t.log.warn("undo: " + err.Error())
		t.markForSweep(t.rec.Key())
	}
}

// undoAll undoes a record and forgets it when everything succeeded.
func (t *task) undoAll(ctx context.Context, s *record.Sandbox) error {
	if err := t.undoEach(ctx, s); err != nil {
		return err
	}
	if err := t.rec.Forget(); err != nil {
		return stateFault(t.rec.Key(), err)
	}
	t.removeScratch(s)
	return nil
}

// undoEach runs the DEL of every attachment that may exist, last first. One that fails
// does not stop the others, nor does one that hangs. A full disk must not keep a pod from
// being deleted: then undoing goes on unrecorded, and is repeated if it is interrupted.
func (t *task) undoEach(ctx context.Context, s *record.Sandbox) error {
	t.try(record.UndoPhase(t.ofRuntime))
	left := 0
	for i := range s.Attachments {
		if s.Attachments[i].Pending() {
			left++
		}
	}
	var failed []error
	for i := len(s.Attachments) - 1; i >= 0; i-- {
		a := &s.Attachments[i]
		if !a.Pending() {
			continue
		}
		failed = append(failed, t.undoAttachment(ctx, left, i, s))
		left--
	}
	return errors.Join(failed...)
}

// undoAttachment undoes attachment i, the first of so many that are left.
func (t *task) undoAttachment(ctx context.Context, left, i int, s *record.Sandbox) error {
	a := &s.Attachments[i]
	t.try(journal.Phase{Phase: journal.Undoing, Item: i})
	if err := t.undoOne(ctx, left, t.undoCall(i, s, a)); err != nil {
		return fmt.Errorf("network %s, interface %s: %w", a.Network, a.IfName, err)
	}
	// A file that stays harms nobody and is replaced by the next ADD: no reason to keep a pod.
	if err := devices.RemoveInfo(t.conf, a.Attachment); err != nil {
		t.log.warn(err.Error())
	}
	a.Undone = true
	t.try(journal.Phase{Phase: journal.Undone, Item: i})
	return nil
}

// undoOne runs the DEL of the first of so many attachments with its share of the time.
func (h *hands) undoOne(ctx context.Context, left int, call chain.Call) error {
	return h.runner.Del(chain.Share(ctx, left, undoShare), call)
}

// try appends a phase whose loss does no more than repeat work.
func (t *task) try(p journal.Phase) {
	if err := t.append(p); err != nil {
		t.log.warn(err.Error())
	}
}

// undoCall is the DEL of a recorded attachment, from the record alone. A namespace
// that is gone, or is another one by now, is given as none.
func (t *task) undoCall(i int, s *record.Sandbox, a *record.Attachment) chain.Call {
	call := t.call(i, a.Attachment, a.Result)
	if a.Result == nil {
		call.PrevResult = t.seed(a.Attachment)
	}
	call.ContainerID = s.Body.Sandbox.ContainerID
	call.Netns = s.Body.Sandbox.Netns
	if ns := netnsAt(call.Netns); ns.id == "" || (s.Body.NetnsID != "" && !ns.is(&s.Body)) {
		call.Netns = ""
	}
	call.Path = searchPath(s.Body.Sandbox.Path, t.path())
	return call
}
