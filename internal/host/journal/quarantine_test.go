// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCorruptRecordGoesToQuarantine(t *testing.T) {
	s := newStore(t)
	in := testIntent("k")
	data := append(lineOf(t, in), "garbage\n"...)
	for name, get := range map[string]func() (*Record, error){
		"acquire": func() (*Record, error) { return s.Acquire(t.Context(), "k") },
		"try":     func() (*Record, error) { return s.TryAcquire("k") },
	} {
		must(t, os.WriteFile(s.Path("k"), data, 0o600))
		if _, err := s.Read("k"); err == nil || !strings.Contains(err.Error(), s.Path("k")) {
			t.Errorf("%s: reading: %v", name, err)
		}
		r, err := get()
		corrupt, ok := errors.AsType[*CorruptError](err)
		if !ok || r == nil {
			t.Fatalf("%s: got %v, %v", name, r, err)
		}
		if corrupt.Line != 2 || !cmp.Equal(corrupt.State, State{Intents: []Intent{in}}) {
			t.Errorf("%s: line %d, salvaged %+v", name, corrupt.Line, corrupt.State)
		}
		kept, err := os.ReadFile(corrupt.Path)
		must(t, err)
		if !bytes.Equal(kept, data) || filepath.Dir(corrupt.Path) != s.QuarantineDir() {
			t.Errorf("%s: %s holds %q", name, corrupt.Path, kept)
		}
		why, err := os.ReadFile(corrupt.Path + reasonSuffix)
		must(t, err)
		if string(why) != corrupt.Reason+"\n" {
			t.Errorf("%s: reason is %q", name, why)
		}
		// The record that came is whole: locked, empty, ready to begin.
		if !r.State().Empty {
			t.Errorf("%s: the record in its place says %+v", name, r.State())
		}
		if _, err := s.TryAcquire("k"); !errors.Is(err, ErrBusy) {
			t.Errorf("%s: its lock is free: %v", name, err)
		}
		must(t, r.Begin(in))
		wantState(t, s, "k", State{Intents: []Intent{in}})
		must(t, r.Forget())
		must(t, r.Close())
	}
	wantFiles(t, s.dir)
}

// What a store salvages takes the place of a corrupt record at once: there is no moment, and no fault, at
// which both are gone.
func TestSalvaging(t *testing.T) {
	s := newStore(t)
	in := testIntent("k")
	phases := []Phase{{Phase: Attempting, Item: 1, Time: in.Time}, {Phase: Undoing, Item: WholeCall, Time: in.Time}}
	want := State{Intents: []Intent{in}, Phases: phases}
	s.Salvaging(func(c *CorruptError) (Intent, []Phase, bool) {
		if len(c.State.Intents) == 0 {
			return Intent{}, nil, false
		}
		return c.State.Intents[0], slices.Clone(phases), true
	})
	data := append(lineOf(t, in), "garbage\n"...)
	must(t, os.WriteFile(s.Path("k"), data, 0o600))
	// It cannot go into quarantine: nothing is written.
	must(t, os.WriteFile(s.QuarantineDir(), nil, 0o600))
	r, err := s.TryAcquire("k")
	if bad, ok := errors.AsType[*CorruptError](err); !ok || r != nil || bad.Path != s.Path("k") {
		t.Fatalf("got %v, %v", r, err)
	}
	must(t, os.Mkdir(s.Path("folder"), 0o700))
	_, err = s.TryAcquire("folder")
	if bad, ok := errors.AsType[*CorruptError](err); !ok || bad.Path != s.Path("folder") {
		t.Fatalf("a folder: %v", err)
	}
	must(t, os.Remove(s.Path("folder")))
	left, err := os.ReadFile(s.Path("k"))
	must(t, err)
	if !bytes.Equal(left, data) {
		t.Errorf("left is %q", left)
	}
	must(t, os.Remove(s.QuarantineDir()))
	r, err = s.TryAcquire("k")
	corrupt, ok := errors.AsType[*CorruptError](err)
	if !ok || r == nil {
		t.Fatalf("got %v, %v", r, err)
	}
	kept, err := os.ReadFile(corrupt.Path)
	must(t, err)
	if !bytes.Equal(kept, data) {
		t.Errorf("in quarantine is %q", kept)
	}
	if d := cmp.Diff(want, r.State()); d != "" {
		t.Errorf("the record (-want +got):\n%s", d)
	}
	wantState(t, s, "k", want)
	more := Phase{Phase: Undone, Item: 1, Time: in.Time}
	must(t, r.Append(more))
	must(t, r.Close())
	want.Phases = append(want.Phases, more)
	wantState(t, s, "k", want)

	// Nothing to be known of it: a placeholder.
	must(t, os.WriteFile(s.Path("k"), []byte("garbage\n"), 0o600))
	r, err = s.TryAcquire("k")
	if _, ok := errors.AsType[*CorruptError](err); !ok || r == nil || !r.State().Empty {
		t.Fatalf("got %v, %v", r, err)
	}
	must(t, r.Close())
	wantFiles(t, s.dir)
}

func TestQuarantineByCaller(t *testing.T) {
	s := newStore(t)
	r := acquire(t, s, "k")
	must(t, r.Begin(testIntent("k")))
	must(t, r.Quarantine("its body is of no use"))
	if !r.State().Empty {
		t.Errorf("it says %+v", r.State())
	}
	if _, err := s.TryAcquire("k"); !errors.Is(err, ErrBusy) {
		t.Errorf("its lock is free: %v", err)
	}
	must(t, r.Close())
	wantFiles(t, s.dir)
	entries, err := os.ReadDir(s.QuarantineDir())
	must(t, err)
	if len(entries) != 2 {
		t.Errorf("quarantine holds %v", entries)
	}
}

func TestPruneQuarantine(t *testing.T) {
	s := newStore(t)
	must(t, s.PruneQuarantine(time.Now())) // no folder yet
	dir := s.QuarantineDir()
	must(t, os.Mkdir(dir, 0o700))
	now := time.Date(2026, 5, 10, 0, 0, 0, 0, time.UTC)
	put := func(at time.Time, key string) string {
		name := at.Format(quarantineTime) + "-" + key + recordSuffix
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		must(t, os.WriteFile(filepath.Join(dir, name+reasonSuffix), nil, 0o600))
		return name
	}
	put(now.Add(-quarantineAge-time.Second), "old")
	want := []string{}
	for i := range quarantineFiles + 3 {
		name := put(now.Add(time.Duration(i-500)*time.Second), strconv.Itoa(i))
		if i >= 3 {
			want = append(want, name, name+reasonSuffix)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "z-mine.jsonl"), nil, 0o600))
	must(t, s.PruneQuarantine(now))
	wantFiles(t, dir, append(want, "z-mine.jsonl")...)
	must(t, s.PruneQuarantine(now.Add(2*quarantineAge)))
	wantFiles(t, dir, "z-mine.jsonl")
}
