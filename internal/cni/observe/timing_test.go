// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// frame frames a line as the journal does, from the format's description.
func frame(body string) []byte {
	sum := crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli))
	return fmt.Appendf(nil, "{\"sum\":\"%08x\",\"body\":%s}\n", sum, body)
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// TestTimings: what a record's times tell, of lives that are over before anybody reads
// the record a second time.
func TestTimings(t *testing.T) {
	add := func(w *writer) *writer {
		return w.begin("p", nil, []string{"pa"}, []string{"pb", "pc"}).after(ms(1), attempting(0)).after(ms(2), started(0, 0)).
			after(ms(10), done(0)).after(ms(1), attempting(1)).after(ms(2), started(1, 0)).after(ms(20), started(1, 1)).after(ms(30), done(1)).
			after(ms(1), done(0), done(1)). // with their routes edited
			after(ms(5), done(journal.WholeCall))
	}
	added := []Timing{
		{Verb: "ADD", Plugin: "pa", Duration: ms(12)},
		{Verb: "ADD", Plugin: "pb", Duration: ms(22)},
		{Verb: "ADD", Plugin: "pc", Duration: ms(30)},
		{Verb: "ADD", Duration: ms(73)},
	}
	del := func(w *writer) *writer {
		return w.after(ms(1000), record.UndoPhase(true)).after(ms(1), undoing(1)).after(ms(1), started(1, 1)).after(ms(3), started(1, 0)).
			after(ms(4), undone(1)).after(ms(1), undoing(0)).after(ms(1), started(0, 0)).after(ms(5), undone(0))
	}
	deleted := []Timing{
		{Verb: "DEL", Plugin: "pc", Duration: ms(4)},
		{Verb: "DEL", Plugin: "pb", Duration: ms(4)},
		{Verb: "DEL", Plugin: "pa", Duration: ms(6)},
		{Verb: "DEL", Duration: ms(16)},
	}
	waits := func(p journal.Phase, ms int64) journal.Phase { p.Waited = ms; return p }
	join := func(all ...[]Timing) (out []Timing) {
		for _, part := range all {
			out = append(out, part...)
		}
		return out
	}
	for name, c := range map[string]struct {
		live func(*writer)
		want []Timing
	}{
		"ADD and DEL": {func(w *writer) { del(add(w)).forget() }, join(added, deleted)},
		"a repeated ADD": {func(w *writer) {
			add(w).after(ms(1000), record.UndoPhase(false), undoing(1), started(1, 0), undone(1))
			del(add(w)).forget()
		}, join(added, []Timing{{Verb: "DEL", Plugin: "pb", Duration: ms(2000)}}, added, deleted)},
		"a DEL that failed, and one that did not": {func(w *writer) {
			add(w).after(ms(100), record.UndoPhase(true)).after(ms(1), undoing(1)).after(ms(1), started(1, 1)).after(ms(3), undoing(0)).
				after(ms(1), started(0, 0)).after(ms(5), undone(0))
			w.after(ms(5000), record.UndoPhase(true)).after(ms(1), undoing(1)).after(ms(1), started(1, 1)).after(ms(7), started(1, 0)).after(ms(1), undone(1)).forget()
		}, join(added, []Timing{
			{Verb: "DEL", Plugin: "pc", Duration: ms(4), Failed: true},
			{Verb: "DEL", Plugin: "pa", Duration: ms(6)},
			{Verb: "DEL", Duration: ms(11), Failed: true},
			{Verb: "DEL", Plugin: "pc", Duration: ms(8)},
			{Verb: "DEL", Plugin: "pb", Duration: ms(1)},
			{Verb: "DEL", Duration: ms(10)},
		})},
		"an ADD that failed and was undone": {func(w *writer) {
			w.begin("p", nil, []string{"pa"}).after(ms(1), attempting(0), started(0, 0)).after(ms(8), record.UndoPhase(false)).
				after(ms(1), undoing(0), started(0, 0), undone(0)).forget()
		}, []Timing{
			{Verb: "ADD", Plugin: "pa", Duration: ms(9), Failed: true},
			{Verb: "ADD", Duration: ms(10), Failed: true},
			{Verb: "DEL", Plugin: "pa", Duration: ms(2)},
		}},
		"a DEL that nobody finished, swept": {func(w *writer) {
			add(w).after(ms(1), record.UndoPhase(true), undoing(0), started(0, 0)).forget()
		}, added},
		"calls that waited for a lane": {func(w *writer) {
			w.begin("p", nil, []string{"pa"}).after(ms(1), waits(attempting(0), 40), started(0, 0), done(0), done(journal.WholeCall)).
				after(ms(100), waits(record.UndoPhase(true), 7)).after(ms(1), undoing(0)).after(ms(100), waits(record.UndoPhase(true), 9)).
				after(ms(1), undoing(0), started(0, 0), undone(0)).forget()
		}, []Timing{
			{Verb: "ADD", Plugin: "pa", Duration: ms(2)},
			{Verb: "ADD", Duration: ms(4), Waited: ms(40)},
			{Verb: "DEL", Duration: ms(1), Waited: ms(7), Failed: true},
			{Verb: "DEL", Plugin: "pa", Duration: ms(2)},
			{Verb: "DEL", Duration: ms(3), Waited: ms(9)},
		}},
		"a clock that is set back": {func(w *writer) {
			w.begin("p", nil, []string{"pa"}).after(ms(1), attempting(0), started(0, 0)).after(-time.Hour, waits(done(0), -5)).after(ms(1), done(journal.WholeCall)).
				after(ms(1), record.UndoPhase(true), undoing(0), started(0, 0)).after(-time.Hour, undone(0)).forget()
		}, []Timing{{Verb: "ADD", Plugin: "pa"}, {Verb: "ADD"}, {Verb: "DEL", Plugin: "pa"}, {Verb: "DEL"}}},
		"phases of nothing": {func(w *writer) {
			w.begin("p", nil, []string{"pa"}).after(ms(1), started(0, 0), done(7), undone(-3), started(9, 9), attempting(5), started(5, 0), done(5)).forget()
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := observe(t)
			w := r.acquire(r.store(), "a")
			// A file that is seen is open from then on. All that follows is written at once.
			w.begun = func() {
				r.await("the intent is seen", func() bool {
					s, ok := r.Sandbox("a-eth0")
					return ok && s.Begun.Equal(w.at)
				})
			}
			c.live(w)
			r.await("the record is gone", func() bool { return r.Counts() == Counts{} })
			if d := cmp.Diff(c.want, r.timed()); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestTimingsOfThePast: what an earlier agent told is not told again, what comes after it is.
func TestTimingsOfThePast(t *testing.T) {
	r := newRig(t, t.TempDir()+"/state")
	w := r.acquire(r.store(), "a").begin("p", nil, []string{"pa"}).made(0)
	r.start()
	if got := r.timed(); len(got) > 0 {
		t.Errorf("told %+v", got)
	}
	w.after(ms(1), done(journal.WholeCall)).after(ms(1), record.UndoPhase(true), undoing(0), started(0, 0), undone(0)).forget()
	r.await("the record is gone", func() bool { return r.Counts() == Counts{} })
	if d := cmp.Diff([]Timing{{Verb: "ADD", Duration: ms(4)}, {Verb: "DEL", Plugin: "pa", Duration: ms(2)}, {Verb: "DEL", Duration: ms(3)}}, r.timed()); d != "" {
		t.Error(d)
	}
}

// FuzzView: whatever a record says that its checksums let through, there is a view or an error.
func FuzzView(f *testing.F) {
	f.Add([]byte(`{"plan":{"attachments":[{"network":"n","ifName":"eth0","conf":{"plugins":[{"type":"pa"}]}}]}}`), "attempting", 0, 0, []byte(`{}`))
	f.Add([]byte(`{}`), "done", -1, 9, []byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte, op string, item, plugin int, result []byte) {
		p := journal.Phase{Phase: journal.Op(op), Item: item, Plugin: plugin, Result: json.RawMessage(result)}
		st := journal.State{Intents: []journal.Intent{{Key: "k", Body: body}}, Phases: []journal.Phase{p, {Phase: journal.Started, Item: item, Plugin: plugin}, p}}
		s, err := view(st, "")
		if err != nil {
			return
		}
		w := newStopwatch(s.Begun)
		for _, p := range st.Phases {
			w.lap(s, p)
		}
		w.gone()
		s.Answered()
	})
}

// FuzzRemaining: whatever a file that lost its name holds, its phases are read or passed over.
func FuzzRemaining(f *testing.F) {
	f.Add(append(frame(`{"version":1}`), frame(`{"phase":"done","item":0,"plugin":0,"time":"2026-01-01T00:00:00Z"}`)...), 1)
	f.Add([]byte("\n\n{\"body\":{\"phase\":7}}\n{"), 0)
	f.Fuzz(func(t *testing.T, b []byte, lines int) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if got, most := remaining(file, lines%100), bytes.Count(b, []byte("\n")); len(got) > most {
			t.Errorf("%d phases in %d lines", len(got), most)
		}
	})
}
