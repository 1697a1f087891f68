// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"time"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
)

// A call sweeps a few dead records after its own work, within a bound: the runtime
// waits for it.
const (
	sweepRecords = 4
	sweepTimeout = 2 * time.Second
)

// sweepSome undoes records of an earlier boot and those that a DEL had to leave.
// One that fails is tried again later, with growing pauses.
func (h *hands) sweepSome(ctx context.Context) {
	ctx = brief.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
	if err := h.sweep.NoteBoot(h.store, h.boot); err != nil {
		h.log.warn("sweep: " + err.Error())
		return
	}
	for _, key := range h.sweep.Due(time.Now(), sweepRecords) {
		if ctx.Err() != nil {
			return
		}
		if key == h.key() && h.req.command != "GC" {
			continue // this call holds it
		}
		h.note(h.sweep.Retry(key)) // first: a crash in the work must not make it due at once
		if err := h.sweepOne(ctx, key); err != nil {
			h.log.debug("sweep: " + err.Error())
			continue
		}
		h.note(h.sweep.Done(key))
	}
}

// sweepOne undoes one record. A record that lives again (same key, this boot,
// finished) is no business of the sweep.
func (h *hands) sweepOne(ctx context.Context, key journal.Key) error {
	rec, err := h.takeIdle(ctx, key, idleProbe)
	if err != nil || rec == nil {
		return err
	}
	defer rec.Close() //nolint:errcheck // an empty record is removed, another one is left
	if len(rec.State().Intents) == 0 {
		return nil
	}
	s, err := decode(rec, h.boot)
	if err != nil {
		return err
	}
	if s.Finished && s.Boot == h.boot {
		return nil
	}
	return h.undoRecord(ctx, rec)
}

func (h *hands) markForSweep(key journal.Key) { h.note(h.sweep.Mark(key)) }

// note tells a fault of the sweep's own files, which never fails a call.
func (h *hands) note(err error) {
	if err != nil {
		h.log.warn("sweep: " + err.Error())
	}
}

// decode reads the record of a lock that this call holds.
func decode(rec *journal.Record, boot string) (*record.Sandbox, error) {
	s, err := record.Decode(rec.State(), boot)
	return s, stateFault(rec.Key(), err)
}
