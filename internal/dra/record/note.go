// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"

	"github.com/weftnet/weft/internal/host/journal"
)

// Note appends a phase to a record, unless the record says so already: what is tried again for days must
// not make it grow.
func Note(rec *journal.Record, p journal.Phase) error {
	phases := rec.State().Phases
	for i := len(phases) - 1; i >= 0; i-- {
		if phases[i].Item != p.Item {
			continue
		}
		if says(phases[i], p) {
			return nil
		}
		break
	}
	return rec.Append(p)
}

// says says whether the last phase of an item makes a further one say nothing: what was done once was
// attempted.
func says(last, p journal.Phase) bool {
	if p.Phase == journal.Attempting {
		return last.Phase == journal.Attempting || last.Phase == journal.Done
	}
	return last.Phase == p.Phase && bytes.Equal(last.Result, p.Result)
}
