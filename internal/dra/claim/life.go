// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"encoding/json"
	"fmt"

	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// phase is how far a claim's record has come. The zero value is that of no record.
type phase int

const (
	none      phase = iota
	begun           // half of it, or nothing, was set up
	ready           // all of it was set up
	releasing       // half of it, or nothing, was freed
)

// life is what a record says.
type life struct {
	phase    phase
	boot     bool // the record is of this boot
	body     record.Claim
	touched  map[int]bool            // items that Setup may have changed, and Free has not put back
	prepared map[int]record.Prepared // items that were set up
}

// lifeOf reads a record. What an earlier boot did is no more: nothing of a device that Setup
// changes outlives the kernel.
func lifeOf(s journal.State, boot string) (life, error) {
	l := life{touched: map[int]bool{}, prepared: map[int]record.Prepared{}}
	if len(s.Intents) == 0 {
		return l, nil
	}
	intent := s.Intents[len(s.Intents)-1]
	if err := json.Unmarshal(intent.Body, &l.body); err != nil {
		return l, fmt.Errorf("read the record of claim %s: %w", intent.Key, err)
	}
	l.phase, l.boot = begun, boot == "" || intent.Boot == "" || intent.Boot == boot
	for _, p := range s.Phases {
		if err := l.add(p); err != nil {
			return l, fmt.Errorf("read the record of claim %s: %w", intent.Key, err)
		}
	}
	if !l.boot {
		clear(l.touched)
	}
	return l, nil
}

func (l *life) add(p journal.Phase) error {
	if p.Item < journal.WholeCall || p.Item >= len(l.body.Devices) {
		return fmt.Errorf("it has no device %d", p.Item)
	}
	switch p.Phase {
	case journal.Attempting, journal.Started:
		l.touched[p.Item] = true
	case journal.Done:
		if p.Item == journal.WholeCall {
			l.phase = ready
			return nil
		}
		var prepared record.Prepared
		if err := json.Unmarshal(p.Result, &prepared); err != nil {
			return fmt.Errorf("device %d: %w", p.Item, err)
		}
		l.touched[p.Item], l.prepared[p.Item] = true, prepared
	case journal.Undoing:
		l.phase = releasing
	case journal.Displacing: // a phase of attachments
	case journal.Undone:
		l.phase = releasing
		delete(l.touched, p.Item)
	}
	return nil
}
