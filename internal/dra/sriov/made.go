// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// lockWait bounds the wait for the record of a PF, which only a second agent could hold.
const lockWait = 5 * time.Second

// Records is the Provisioned that is kept in <stateDir>/pfs, a record for each PF.
type Records struct {
	store *journal.Store
	boot  string // VFs do not outlive it
}

// OpenRecords opens the records below a state directory.
func OpenRecords(stateDir string) (*Records, error) {
	store, err := journal.Open(filepath.Join(stateDir, record.PFs), record.PFs)
	if err != nil {
		return nil, fmt.Errorf("open the records of PFs: %w", err)
	}
	return &Records{store: store, boot: journal.BootID()}, nil
}

// Close lets the folder go.
func (r *Records) Close() error { return r.store.Close() }

// Made reads a PF's record. One that cannot be read counts as none: its VFs are left alone then.
func (r *Records) Made(pf kernel.PCIAddr) (int, error) {
	state, err := r.store.Read(journal.Key(pf))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(state.Intents) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the record of PF %s: %w", pf, err)
	}
	last := state.Intents[len(state.Intents)-1]
	if last.Boot != r.boot {
		return 0, nil
	}
	var body record.PF
	if err := json.Unmarshal(last.Body, &body); err != nil {
		return 0, fmt.Errorf("read the record of PF %s: %w", pf, err)
	}
	return body.VFs, nil
}

// SetMade writes a PF's record, and removes it for 0.
func (r *Records) SetMade(pf kernel.PCIAddr, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	rec, err := r.store.Acquire(ctx, journal.Key(pf))
	if _, ok := errors.AsType[*journal.CorruptError](err); ok && rec != nil {
		err = nil // it is in quarantine, and written anew
	}
	if err != nil {
		return fmt.Errorf("write the record of PF %s: %w", pf, err)
	}
	if n == 0 {
		err = rec.Forget()
	} else {
		var body []byte
		if body, err = json.Marshal(record.PF{VFs: n}); err == nil {
			err = rec.Begin(journal.Intent{Body: body})
		}
	}
	if err = errors.Join(err, rec.Close()); err != nil {
		return fmt.Errorf("write the record of PF %s: %w", pf, err)
	}
	return nil
}
