// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"os"
	"path/filepath"
	"strings"
)

// Counts says how many records there are, by what has become of them.
type Counts struct {
	Records      int // files of records: the sum of all below but Torn and Quarantined
	Finished     int // attached, and living
	HalfDone     int // an ADD that runs, or that nobody finished
	Undoing      int // undoing was begun, and is not over
	Dead         int // of an earlier boot
	Newer        int // written by a later version
	Corrupt      int // unreadable for any other reason
	Placeholders int // empty: a call is about to use it, or was killed
	Torn         int // readable records whose last line is not whole
	Quarantined  int // corrupt ones that were moved out of the way
}

// Counts counts the records, and looks into the quarantine.
func (o *Observer) Counts() Counts {
	c := Counts{Quarantined: o.quarantined()}
	o.mu.RLock()
	defer o.mu.RUnlock()
	c.Records = len(o.shown)
	for _, s := range o.shown {
		switch {
		case s.empty:
			c.Placeholders++
		case s.fault != nil && s.fault.Newer:
			c.Newer++
		case s.fault != nil:
			c.Corrupt++
		case s.sandbox.Dead:
			c.Dead++
		case s.sandbox.Undoing:
			c.Undoing++
		case s.sandbox.Finished:
			c.Finished++
		default:
			c.HalfDone++
		}
		if s.sandbox != nil && s.sandbox.Torn {
			c.Torn++
		}
	}
	return c
}

// quarantined counts the records in quarantine, of which the journal keeps about a hundred.
func (o *Observer) quarantined() int {
	entries, err := os.ReadDir(filepath.Join(o.stateDir, "quarantine"))
	if err != nil {
		return 0 // nothing was ever quarantined, or it is not ours to see
	}
	n := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".jsonl") {
			n++
		}
	}
	return n
}
