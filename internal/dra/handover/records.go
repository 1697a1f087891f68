// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// acquire gives the record of a sandbox. Of one that is broken what could be read is written anew; lost: there
// was nothing.
func (h *Handover) acquire(ctx context.Context, key journal.Key) (rec *journal.Record, lost bool, err error) {
	return h.mended(ctx, func() (*journal.Record, error) { return h.records.Acquire(ctx, key) })
}

func (h *Handover) mended(ctx context.Context, get func() (*journal.Record, error)) (rec *journal.Record, lost bool, err error) {
	rec, err = get()
	corrupt, broken := errors.AsType[*journal.CorruptError](err)
	if !broken || rec == nil { // nil: it is where it was
		return rec, false, err
	}
	h.cfg.Log.ErrorContext(ctx, "record of a hand-over is not what was written", "sandbox", rec.Key(), "kept_as", corrupt.Path, "error", corrupt)
	return rec, rec.State().Empty, nil
}

// salvaged is what takes the place of a broken record: all that could be read of it, so that it is undone
// like any other, and tried again.
func salvaged(corrupt *journal.CorruptError) (in journal.Intent, _ []journal.Phase, known bool) {
	body, err := bodyOf(corrupt.State)
	if err != nil || body == nil {
		return in, nil, false
	}
	body.Salvaged = true
	body.Links = without(body.Links, corrupt.State.Phases)
	in = corrupt.State.Intents[0]
	in.Body, err = json.Marshal(body)
	return in, nil, err == nil && len(body.Links) > 0
}

// without are the links that phases do not say to be home: such a one may be in another sandbox by now.
func without(links []record.Link, phases []journal.Phase) (left []record.Link) {
	home := map[int]bool{}
	for _, p := range phases {
		home[p.Item] = p.Phase == journal.Undone
	}
	for i, l := range links {
		if !home[i] {
			left = append(left, l)
		}
	}
	return left
}

// bodyOf is what a record says; nil when it says nothing.
func bodyOf(s journal.State) (*record.Handover, error) {
	if len(s.Intents) == 0 {
		return nil, nil //nolint:nilnil // nothing was recorded, which is no fault
	}
	var body record.Handover
	if err := json.Unmarshal(s.Intents[0].Body, &body); err != nil {
		return nil, fmt.Errorf("read a hand-over: %w", err)
	}
	return &body, nil
}

// outstanding are the links of a record that may be away, and whether the hand-over was finished.
// In another boot all of them are home, or are no more.
func outstanding(s journal.State, body *record.Handover) (away []int, finished bool) {
	links := len(body.Links)
	open := make([]bool, links)
	for i := range open {
		open[i] = body.Salvaged
	}
	for _, p := range s.Phases {
		if p.Item == journal.WholeCall {
			finished = p.Phase == journal.Done
			continue
		}
		if p.Item >= 0 && p.Item < links {
			open[p.Item] = p.Phase != journal.Undone
		}
	}
	if len(s.Intents) > 0 && s.Intents[0].Boot != journal.BootID() {
		return nil, false
	}
	for i, is := range open {
		if is {
			away = append(away, i)
		}
	}
	return away, finished
}

// each calls f with every record that can be read, and joins its errors. Records that cannot are
// told of, and stop nothing.
func (h *Handover) each(f func(journal.Key, journal.State, record.Handover) error) error {
	keys, err := h.records.Keys()
	if err != nil {
		return fmt.Errorf("list hand-overs: %w", err)
	}
	var faults []error
	for _, key := range keys {
		s, body, err := h.read(key)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			h.cfg.Log.Error("record of a hand-over cannot be read", "sandbox", key, "error", err)
		case body != nil:
			faults = append(faults, f(key, s, *body))
		}
	}
	return errors.Join(faults...)
}

// read gives what a record says, of a broken one what could be read: *journal.CorruptError when that is
// nothing. The body is nil when it says nothing.
func (h *Handover) read(key journal.Key) (journal.State, *record.Handover, error) {
	s, err := h.records.Read(key)
	if corrupt, ok := errors.AsType[*journal.CorruptError](err); ok && len(corrupt.State.Intents) > 0 {
		s, err = corrupt.State, nil
		s.Phases = nil // what is missing may say anything: all of it counts as attempted
	}
	if err != nil {
		return s, nil, err
	}
	body, err := bodyOf(s)
	return s, body, err
}
