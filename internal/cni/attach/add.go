// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/lanes"
)

// readinessPoll is how often ADD looks for the readiness file.
const readinessPoll = 250 * time.Millisecond

// add makes every attachment of a sandbox, or none.
func (h *hands) add(ctx context.Context) ([]byte, error) {
	if err := h.configure(); err != nil {
		return nil, err
	}
	ctx = brief.WithTimeout(ctx, h.conf.Timeout)
	if err := h.open(); err != nil {
		return nil, err
	}
	rec, corrupt, err := h.acquire(ctx, h.key())
	if err != nil {
		return nil, err
	}
	defer rec.Close() //nolint:errcheck // what matters was synced before
	out, err := h.addLocked(ctx, rec, corrupt)
	h.sweepSome(ctx)
	return out, err
}

func (h *hands) addLocked(ctx context.Context, rec *journal.Record, corrupt bool) (out []byte, err error) {
	if corrupt {
		h.undoOwnDelegates(ctx, rec)
	}
	if out, done, err := h.resume(ctx, rec); done || err != nil {
		return out, err
	}
	begun := false
	defer func() {
		// An earlier ADD's record, all undone, stays under the lock until a new one takes
		// its place. When none does, it goes.
		if !begun && len(rec.State().Intents) > 0 {
			err = errors.Join(err, stateFault(rec.Key(), rec.Forget()))
		}
	}()
	if err := h.awaitReadiness(ctx); err != nil {
		return nil, err
	}
	p, err := h.plan(ctx)
	if err != nil {
		return nil, deadlineFault(ctx, err)
	}
	h.log.warnings(p.Warnings)
	if out, err = h.carryOut(ctx, rec, p, &begun); err != nil {
		h.complain(ctx, p, err)
	}
	return out, err
}

// carryOut makes what was planned. From where begun is set that is on record.
func (h *hands) carryOut(ctx context.Context, rec *journal.Record, p *plan.Plan, begun *bool) ([]byte, error) {
	if err := h.checkHost(p); err != nil {
		return nil, err
	}
	gate, err := h.enterGate(ctx)
	if err != nil {
		return nil, err
	}
	defer gate.Close() //nolint:errcheck // only its lock matters
	lane, err := h.lane(ctx, false)
	if err != nil {
		return nil, err
	}
	defer lanes.Release(lane)
	if err := h.begin(rec, p); err != nil {
		return nil, err
	}
	*begun = true
	t := &task{hands: h, rec: rec, lane: lane}
	out, err := t.attachAll(ctx, p)
	if err == nil {
		return out, nil
	}
	err = deadlineFault(ctx, err)
	t.undoAfter(ctx)
	return nil, err
}

// deadlineFault makes running out of time a fault that time may mend.
func deadlineFault(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if f, ok := errors.AsType[*fault.Fault](err); ok && f.Code != fault.Internal {
		return err
	}
	// A delegate that was killed at the deadline has no code of its own to keep.
	if d, ok := errors.AsType[*chain.Error](err); ok && d.Code != uint(fault.Delegate) {
		return err
	}
	return &fault.Fault{Code: fault.TryLater, Object: "timeout", Text: "ADD ran out of time: " + err.Error()}
}

// resume answers a repeated ADD from a finished record whose sandbox still lives,
// and undoes what any other earlier ADD left.
func (h *hands) resume(ctx context.Context, rec *journal.Record) (out []byte, done bool, err error) {
	if len(rec.State().Intents) == 0 {
		return nil, false, nil
	}
	s, err := decode(rec, h.boot)
	if err != nil {
		return nil, false, err
	}
	if s.Finished && h.living(s) {
		a := &s.Attachments[0]
		r, err := results.Parse(a.Result, a.Conf.CNIVersion)
		if err != nil {
			return nil, true, resultFault(&a.Attachment, err)
		}
		out, err = h.encode(&a.Attachment, r)
		return out, true, err
	}
	lane, err := h.lane(ctx, true)
	if err != nil {
		return nil, false, err
	}
	defer lanes.Release(lane)
	t := &task{hands: h, rec: rec, lane: lane}
	if err := t.undoEach(ctx, s); err != nil {
		return nil, false, fmt.Errorf("undo an earlier ADD: %w", err)
	}
	return nil, false, nil
}

// living reports whether a record's sandbox is the one that is asked for now.
func (h *hands) living(s *record.Sandbox) bool {
	return s.Boot == h.boot &&
		s.Body.Sandbox.Netns == h.req.sandbox.Netns &&
		netnsAt(h.req.sandbox.Netns).is(&s.Body)
}

// encode is the printed result: attachment 0's, in the version that was asked for.
func (h *hands) encode(a *plan.Attachment, r *results.Result) ([]byte, error) {
	b, err := r.Encode(h.conf.CNIVersion)
	if err != nil {
		return nil, resultFault(a, err)
	}
	// A repeated ADD answers the same bytes, however the plugin spaced its answer.
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, resultFault(a, err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// awaitReadiness waits for the readiness file until the ADD's deadline.
func (h *hands) awaitReadiness(ctx context.Context) error {
	if h.conf.ReadinessIndicatorFile == "" {
		return nil
	}
	for {
		_, err := os.Stat(h.conf.ReadinessIndicatorFile)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return readinessFault(h.conf.ReadinessIndicatorFile, err.Error())
		}
		if brief.Sleep(ctx, readinessPoll) != nil {
			return readinessFault(h.conf.ReadinessIndicatorFile, "the file did not appear: the default network is not ready")
		}
	}
}

func readinessFault(file, text string) error {
	return fault.New(fault.TryLater, "readinessindicatorfile", "", "%s: %s", fault.Quote(file), text)
}

// begin makes the intent durable.
func (h *hands) begin(rec *journal.Record, p *plan.Plan) error {
	sandbox := h.req.sandbox
	sandbox.Path = h.path()
	ns := netnsAt(sandbox.Netns)
	body, err := json.Marshal(record.Body{
		Sandbox:     sandbox,
		NetnsID:     ns.id,
		NetnsUnique: ns.unique,
		Host:        hostID(),
		ConfName:    h.conf.Name,
		CNIVersion:  h.conf.CNIVersion,
		Plan:        *p,
	})
	if err != nil {
		return stateFault(h.key(), err)
	}
	return h.beginBody(rec, p.PodUID, body)
}

func (h *hands) beginBody(rec *journal.Record, podUID string, body []byte) error {
	return stateFault(h.key(), rec.Begin(journal.Intent{
		Version: record.Version,
		Kind:    record.Kind,
		Key:     h.key(),
		PodUID:  podUID,
		Boot:    h.boot,
		Owner:   journal.Self(),
		Time:    time.Now().UTC(),
		Body:    body,
	}))
}
