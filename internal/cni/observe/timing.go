// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// Verbs of a Timing.
const (
	VerbAdd = "ADD"
	VerbDel = "DEL"
)

// Timing is how long something took, by the times in a record.
type Timing struct {
	Verb string // ADD or DEL; undoing a failed ADD runs DEL of plugins, and is no DEL of its own
	// Plugin is a plugin's type, "" for the whole call: an ADD from its intent on (planning
	// and waiting for a lane come before that), a DEL of the runtime from its first line.
	Plugin   string
	Duration time.Duration
	// Failed: it did not succeed. Of a chain that did not get through DEL it is told of the
	// plugin that ran last, since records do not say which one it was.
	Failed bool
	// Waited is what a whole call had waited for its lane, to the millisecond.
	Waited time.Duration
}

// stopwatch follows the phases of one record. What runs is one plugin at a time.
type stopwatch struct {
	adding  bool // the ADD is not over
	deleted bool // a DEL of the runtime was begun, and is not over
	begun   time.Time
	verb    string // of the plugin that runs, "" = none does
	item    int
	plugin  int
	started bool // the plugin is known to have been started
	since   time.Time
	last    time.Time // of the last line
	waited  time.Duration
}

func newStopwatch(begun time.Time) *stopwatch {
	return &stopwatch{adding: true, begun: begun, last: begun}
}

// lap takes a phase in and gives what is over with it.
func (w *stopwatch) lap(s *Sandbox, p journal.Phase) []Timing {
	defer func() { w.last = p.Time }()
	if p.Item == journal.WholeCall {
		return w.lapCall(s, p)
	}
	w.waited += waited(p)
	var out []Timing
	switch p.Phase {
	case journal.Attempting:
		w.run(VerbAdd, p, 0)
	case journal.Undoing:
		out = w.stop(s, p.Time, true) // the one before had no Undone
		w.run(VerbDel, p, s.lastPlugin(p.Item))
	case journal.Started:
		if w.verb == "" || p.Item != w.item {
			return nil
		}
		if w.started && p.Plugin != w.plugin {
			verb := w.verb
			out = w.stop(s, p.Time, false)
			w.run(verb, p, p.Plugin)
		}
		w.plugin, w.started = p.Plugin, true
	case journal.Done, journal.Undone:
		out = w.stop(s, p.Time, false)
	case journal.Displacing: // the time that routes take is the attachment's
	}
	return out
}

// lapCall takes a phase of the whole call in.
func (w *stopwatch) lapCall(s *Sandbox, p journal.Phase) []Timing {
	switch {
	case p.Phase == journal.Done && w.adding:
		w.adding, w.verb = false, ""
		return []Timing{w.call(VerbAdd, p.Time, false)}
	case p.Phase != journal.Undoing:
		return nil
	}
	var out []Timing
	switch {
	case w.adding:
		out = append(w.stop(s, p.Time, true), w.call(VerbAdd, p.Time, true))
	case w.deleted:
		// A call ended without a line about it: what it wrote last is the best that is known.
		out = []Timing{w.call(VerbDel, w.last, true)}
	}
	w.adding, w.verb, w.waited = false, "", waited(p)
	w.deleted, w.begun = bytes.Equal(p.Result, record.UndoPhase(true).Result), p.Time
	return out
}

// gone says that the record was removed, which is how undoing it ends.
func (w *stopwatch) gone() []Timing {
	if !w.deleted || w.verb != "" {
		return nil
	}
	w.deleted = false
	return []Timing{w.call(VerbDel, w.last, false)}
}

// call is the time of a whole call that ended then.
func (w *stopwatch) call(verb string, at time.Time, failed bool) Timing {
	return Timing{Verb: verb, Duration: between(w.begun, at), Failed: failed, Waited: w.waited}
}

// between is no less than nothing: the clock that records are written by may be set back.
func between(begun, ended time.Time) time.Duration { return max(ended.Sub(begun), 0) }

func waited(p journal.Phase) time.Duration { return max(time.Duration(p.Waited)*time.Millisecond, 0) }

// run begins the time of a plugin that is about to run, or runs.
func (w *stopwatch) run(verb string, p journal.Phase, plugin int) {
	w.verb, w.item, w.plugin, w.since, w.started = verb, p.Item, plugin, p.Time, false
}

// stop ends the time of the plugin that runs. One of DEL that was never started (its
// binary is gone) took none.
func (w *stopwatch) stop(s *Sandbox, at time.Time, failed bool) []Timing {
	verb := w.verb
	w.verb = ""
	plugin := s.pluginType(w.item, w.plugin)
	if verb == "" || plugin == "" || verb == VerbDel && !w.started {
		return nil
	}
	return []Timing{{Verb: verb, Plugin: plugin, Duration: between(w.since, at), Failed: failed}}
}

// remaining reads the phases that were written after the first lines of a file that has lost
// its name. Only times are read from it, so a line's JSON is believed without its checksum.
func remaining(f *os.File, lines int) []journal.Phase {
	r := bufio.NewReader(io.NewSectionReader(f, 0, journal.MaxRecord))
	for range lines {
		if !skipLine(r) {
			return nil
		}
	}
	var phases []journal.Phase
	for {
		raw, err := r.ReadBytes('\n')
		if err != nil {
			return phases // the end, or a torn line
		}
		var line struct {
			Body json.RawMessage `json:"body"`
		}
		var p journal.Phase
		if json.Unmarshal(raw, &line) == nil && bytes.HasPrefix(line.Body, []byte(`{"phase":`)) && json.Unmarshal(line.Body, &p) == nil {
			phases = append(phases, p)
		}
	}
}

// skipLine reads over a line, which may be long, without keeping it.
func skipLine(r *bufio.Reader) bool {
	for {
		_, err := r.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err == nil
		}
	}
}
