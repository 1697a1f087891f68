// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/scratch"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/lanes"
)

// givesUpAt is the DEL call from which on success is answered although something is
// left, unless retryDeleteOnError: a pod must not hang for ever on a broken plugin.
// The record stays, and the sweep goes on.
const givesUpAt = 3

// del undoes what the record says. Without one it takes over what Multus left,
// and without that it tries the conf's own delegates and succeeds.
func (h *hands) del(ctx context.Context) ([]byte, error) {
	confErr := h.configure()
	if confErr != nil {
		h.conf = salvage(h.req.stdin)
		if _, err := os.Stat(h.conf.StateDir); err != nil {
			return nil, confErr // nothing is recorded there, and nothing is made for a broken conf
		}
	}
	ctx = brief.WithTimeout(ctx, delTimeout)
	if err := h.open(); err != nil {
		return nil, cmp.Or(confErr, err)
	}
	if err := h.key().Validate(); err != nil {
		h.undoUnrecorded(ctx, confErr, err)
		return nil, confErr
	}
	rec, corrupt, err := h.acquire(ctx, h.key())
	if err != nil {
		return nil, err
	}
	defer rec.Close() //nolint:errcheck // an empty record is removed, another one is left
	if len(rec.State().Intents) == 0 && confErr != nil {
		return nil, confErr
	}
	if !corrupt {
		if err := h.takeOver(ctx, rec); err != nil {
			return nil, err
		}
	}
	if len(rec.State().Intents) == 0 {
		h.undoOwnDelegates(ctx, rec)
	} else if err := h.delRecord(ctx, rec); err != nil {
		return nil, err
	}
	h.sweepSome(ctx)
	return nil, nil
}

// undoUnrecorded is DEL of what no ADD could record. It is unknown, as others are.
func (h *hands) undoUnrecorded(ctx context.Context, confErr, keyErr error) {
	h.log.warn("this sandbox was never attached by Weft: " + keyErr.Error())
	if confErr == nil {
		h.undoOwnDelegates(ctx, nil)
		h.sweepSome(ctx)
	}
}

// delRecord undoes a record for a DEL of the runtime.
func (h *hands) delRecord(ctx context.Context, rec *journal.Record) error {
	deletes, err := h.undo(ctx, rec, true)
	if err == nil || h.conf.RetryDeleteOnError || deletes < givesUpAt {
		return err
	}
	h.log.warn(fmt.Sprintf("DEL call %d answers success, the rest is retried in the background: %v", deletes, err))
	h.markForSweep(rec.Key())
	return nil
}

// undo undoes and forgets a record in an urgent lane. It counts the DELs of the runtime
// that were tried on it, this one (ofRuntime) included.
func (h *hands) undo(ctx context.Context, rec *journal.Record, ofRuntime bool) (deletes int, err error) {
	s, err := decode(rec, h.boot)
	if err != nil {
		return 0, err
	}
	lane, err := h.lane(ctx, true)
	if err != nil {
		return 0, err
	}
	defer lanes.Release(lane)
	t := &task{hands: h, rec: rec, lane: lane, ofRuntime: ofRuntime}
	return s.Deletes + 1, t.undoAll(ctx, s)
}

// takeOver makes a record of a Multus scratch file, for a pod that Multus attached.
// The file goes when the record has been undone. Of a torn one, or one that is lost, the pod
// network may be what is not known: then the conf's own delegates are tried, too.
func (h *hands) takeOver(ctx context.Context, rec *journal.Record) error {
	if len(rec.State().Intents) > 0 {
		return nil
	}
	sb := h.req.sandbox
	found, err := scratch.Load(h.conf.CNIDir, sb.ContainerID, sb.IfName)
	if err != nil {
		h.log.warn("Multus scratch file: " + err.Error()) // what could be read of it is undone
	}
	if len(found) == 0 {
		return nil
	}
	if !slices.ContainsFunc(found, func(a scratch.Attachment) bool { return a.Default }) {
		h.undoOwnDelegates(ctx, rec)
	}
	ns := netnsAt(sb.Netns)
	body := record.Body{
		Sandbox: sb, NetnsID: ns.id, NetnsUnique: ns.unique, ConfName: h.conf.Name,
		CNIVersion: h.conf.CNIVersion, Scratch: h.conf.CNIDir,
	}
	body.Sandbox.Path = h.path()
	for _, a := range found {
		if a.Args == "" {
			a.Args = sb.Args
		}
		body.Plan.Attachments = append(body.Plan.Attachments, a.Attachment)
		body.Taken = append(body.Taken, a.Result)
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return stateFault(h.key(), err)
	}
	return h.beginBody(rec, sb.ArgPairs()["K8S_POD_UID"], raw)
}

// removeScratch removes the Multus files that an undone record was taken over from.
func (h *hands) removeScratch(s *record.Sandbox) {
	if s.Body.Scratch == "" {
		return
	}
	if err := scratch.Remove(s.Body.Scratch, s.Body.Sandbox.ContainerID); err != nil {
		h.log.warn("Multus scratch file: " + err.Error())
	}
}

// undoOwnDelegates runs the DEL of the delegates that the conf itself names, for a
// sandbox of which nothing is known; rec is nil where there can be none. Errors are told, never answered.
func (h *hands) undoOwnDelegates(ctx context.Context, rec *journal.Record) {
	p, err := h.planLocally(plan.Input{Sandbox: h.req.sandbox})
	if err != nil {
		h.log.debug("no record, and no delegates to try: " + err.Error())
		return
	}
	lane, err := h.lane(ctx, true)
	if err != nil {
		h.log.warn(err.Error())
		return
	}
	defer lanes.Release(lane)
	t := &task{hands: h, rec: rec, lane: lane}
	for i, a := range slices.Backward(p.Attachments) {
		call := t.call(i, a, nil)
		call.Started = nil
		if err := h.undoOne(ctx, i+1, call); err != nil {
			h.log.warn(fmt.Sprintf("no record; DEL of network %s: %v", a.Network, err))
		}
	}
}

// salvage is what DEL needs of a conf that does not parse: where the records are.
func salvage(b []byte) *netconf.Conf {
	conf := netconf.Defaults()
	var keys map[string]json.RawMessage
	if json.Unmarshal(b, &keys) != nil {
		return conf
	}
	for key, into := range map[string]*string{
		"stateDir": &conf.StateDir, "binDir": &conf.BinDir, "cniDir": &conf.CNIDir,
		"deviceInfoDir": &conf.DeviceInfoDir, "name": &conf.Name, "cniVersion": &conf.CNIVersion,
	} {
		var s string
		if json.Unmarshal(keys[key], &s) == nil && s != "" {
			*into = s
		}
	}
	return conf
}
