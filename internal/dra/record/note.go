// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"slices"

	"github.com/weftnet/weft/internal/host/journal"
)

// Note appends a phase to a record, unless the record says so already: what is tried again for days must
// not make it grow.
func Note(rec *journal.Record, p journal.Phase) error {
	for _, last := range slices.Backward(rec.State().Phases) {
		if last.Item != p.Item {
			continue
		}
		if says(last, p) {
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
