// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Version is the version of the records that this package writes.
const Version = 1

// Limits of one record.
const (
	// MaxKey is the longest key in bytes: a file name holds it, a suffix and a time.
	MaxKey = 200
	// MaxRecord is the largest record in bytes, the same for reading and writing.
	MaxRecord = 256 << 20
)

var (
	// ErrBusy says that another process, or a delegate that outlived one, holds the lock.
	ErrBusy = errors.New("record is in use")
	// ErrNewer says that a later version of Weft wrote the record. It is left alone.
	ErrNewer = errors.New("record was written by a newer version")
)

// CorruptError says that a record's bytes are not what was written.
type CorruptError struct {
	Key    Key
	Line   int // 1 is the first; 0 is the file as a whole
	Reason string
	// Path is where the bytes are now: in quarantine after Acquire and TryAcquire.
	Path string
	// State is what the lines before the bad one say. Their checksums were right.
	State State
}

func (e *CorruptError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("read record %s: %s (kept as %s)", e.Key, e.Reason, e.Path)
	}
	return fmt.Sprintf("read record %s: line %d: %s (kept as %s)", e.Key, e.Line, e.Reason, e.Path)
}

// Key names a record; it is the stem of its file name.
type Key string

// Validate says why a key cannot be a file name and JSON text at once.
func (k Key) Validate() error {
	switch s := string(k); {
	case s == "":
		return errors.New("check key: it is empty")
	case len(s) > MaxKey:
		return fmt.Errorf("check key: %d bytes are more than %d", len(s), MaxKey)
	case s[0] == '.':
		return fmt.Errorf("check key %q: it starts with a dot", s)
	case !utf8.ValidString(s):
		return fmt.Errorf("check key %q: it is not UTF-8", s)
	case strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || unicode.IsSpace(r) || unicode.IsControl(r)
	}):
		return fmt.Errorf("check key %q: it holds a slash, a blank or a control character", s)
	}
	return nil
}

// Process is one process on this machine, for as long as it is up.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot: /proc/<pid>/stat field 22
}

// Intent is what a record's first line says: everything that is needed to undo.
// Version, Kind, Key and PodUID are frozen: every later version can read them.
type Intent struct {
	Version int             `json:"version"`
	Kind    string          `json:"kind"`
	Key     Key             `json:"key"`
	PodUID  string          `json:"podUID"`
	Boot    string          `json:"boot"`
	Owner   Process         `json:"owner"`
	Time    time.Time       `json:"time"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// Op is what a phase says happened. The zero value is invalid.
type Op string

// The phases of an item. Attempting is written before a delegate is started, so an
// item without it was never touched (in this boot).
const (
	Attempting Op = "attempting"
	Started    Op = "started" // a delegate runs: Group and Start say which process group
	Done       Op = "done"
	Undoing    Op = "undoing"
	Undone     Op = "undone"
	// Displacing is written before an item takes the place of what was there: Result says what
	// that was, to be put back.
	Displacing Op = "displacing"
)

// WholeCall is the Item of a phase that is about the call and not about one item.
const WholeCall = -1

// Phase is one further line of a record.
type Phase struct {
	Phase  Op              `json:"phase"`
	Item   int             `json:"item"` // index into what the intents list, or WholeCall
	Plugin int             `json:"plugin"`
	Group  int             `json:"group,omitempty"`  // process group of a started delegate
	Start  uint64          `json:"start,omitempty"`  // start time of its leader, as in Process
	Waited int64           `json:"waited,omitempty"` // milliseconds that this call had waited for the right to act
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
	Time   time.Time       `json:"time"`
}

// State is what a record says.
type State struct {
	Intents []Intent // the first, then those that extended it
	Phases  []Phase  // in the order in which they were written
	Empty   bool     // a placeholder: no bytes at all
}

// LastStarted gives the last phase that names a process group: the delegate that may
// still hold the lock of a record whose owner is dead.
func (s State) LastStarted() (Phase, bool) {
	for _, p := range slices.Backward(s.Phases) {
		if p.Phase == Started {
			return p, true
		}
	}
	return Phase{}, false
}
