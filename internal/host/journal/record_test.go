// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newStore(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "state", "attachments"), testKind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func acquire(t testing.TB, s *Store, key Key) *Record {
	t.Helper()
	r, err := s.Acquire(t.Context(), key)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func wantState(t testing.TB, s *Store, key Key, want State) {
	t.Helper()
	got, err := s.Read(key)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record %s: %s", key, diff)
	}
}

func wantFiles(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s holds other files: %s", dir, diff)
	}
}

func TestLifeOfARecord(t *testing.T) {
	s := newStore(t)
	in := testIntent("c-eth0")
	r, err := s.Acquire(t.Context(), in.Key)
	must(t, err)
	if st := r.State(); !cmp.Equal(st, State{Empty: true}) {
		t.Errorf("a new record says %+v", st)
	}
	if err := r.Append(Phase{Phase: Done}); err == nil {
		t.Error("a placeholder took a phase")
	}
	wantFiles(t, s.dir, "c-eth0.jsonl")
	must(t, r.Begin(in))
	wantFiles(t, s.dir, "c-eth0.jsonl")

	want := State{Intents: []Intent{in}}
	add := func(r *Record, p Phase) {
		t.Helper()
		p.Time = in.Time
		must(t, r.Append(p))
		want.Phases = append(want.Phases, p)
	}
	add(r, Phase{Phase: Attempting, Item: 0})
	add(r, Phase{Phase: Started, Item: 0, Group: 12, Start: 34})
	add(r, Phase{Phase: Done, Item: 0, Result: json.RawMessage(`{"big":12345678901234567890}`)})
	wantState(t, s, in.Key, want)
	if diff := cmp.Diff(want, r.State()); diff != "" {
		t.Error(diff)
	}
	must(t, r.Close())
	must(t, r.Close())

	r = acquire(t, s, in.Key)
	if diff := cmp.Diff(want, r.State()); diff != "" {
		t.Error(diff)
	}
	more := in
	more.Body = json.RawMessage(`{"hot":"plug"}`)
	must(t, r.Extend(more))
	want.Intents = append(want.Intents, more)
	add(r, Phase{Phase: Undoing, Item: WholeCall, Error: "why"})
	wantState(t, s, in.Key, want)

	must(t, r.Begin(more))
	wantState(t, s, in.Key, State{Intents: []Intent{more}})
	must(t, r.Forget())
	wantFiles(t, s.dir)
	if err := r.Begin(in); err == nil {
		t.Error("a forgotten record began again, without a lock")
	}
	if err := r.Append(Phase{Phase: Done}); err == nil {
		t.Error("a forgotten record took a phase")
	}
	if _, err := s.Read(in.Key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading it: %v", err)
	}
}

func TestBeginFillsIn(t *testing.T) {
	s := newStore(t)
	r := acquire(t, s, "k")
	before := time.Now()
	must(t, r.Begin(Intent{Version: 7, Kind: "x", Key: "y", PodUID: "u"}))
	in := r.State().Intents[0]
	if in.Version != 1 || in.Kind != testKind || in.Key != "k" || in.PodUID != "u" || in.Boot != BootID() || in.Owner != Self() {
		t.Errorf("got %+v", in)
	}
	if in.Time.Before(before) || in.Time.After(time.Now()) {
		t.Errorf("time is %v", in.Time)
	}
	must(t, r.Append(Phase{Phase: Done}))
	if at := r.State().Phases[0].Time; at.Before(in.Time) || at.After(time.Now()) {
		t.Errorf("time is %v", at)
	}
}

func TestPlaceholderIsRemoved(t *testing.T) {
	s := newStore(t)
	r := acquire(t, s, "k")
	must(t, r.Close())
	wantFiles(t, s.dir)
	if _, err := s.TryAcquire("k"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// What a kill leaves: a placeholder, and a half-written temporary file beside it.
func TestLeftoversAreCleared(t *testing.T) {
	s := newStore(t)
	must(t, os.WriteFile(s.Path("a"), nil, 0o600))
	must(t, os.WriteFile(s.Path("a")+".tmp", []byte(`{"sum`), 0o600))
	must(t, os.WriteFile(s.Path("b")+".tmp", nil, 0o600))
	must(t, os.WriteFile(filepath.Join(s.dir, "notes.txt"), nil, 0o600))
	keys, err := s.Keys()
	must(t, err)
	if diff := cmp.Diff([]Key{"a", "b"}, keys); diff != "" {
		t.Error(diff)
	}
	for _, key := range keys {
		r := acquire(t, s, key)
		if !r.State().Empty {
			t.Errorf("record %s is not empty", key)
		}
		must(t, r.Begin(testIntent(key)))
		must(t, r.Forget())
	}
	wantFiles(t, s.dir, "notes.txt")
}

func TestTornLineIsCutOff(t *testing.T) {
	s := newStore(t)
	in := testIntent("k")
	p := Phase{Phase: Attempting, Time: in.Time}
	must(t, os.WriteFile(s.Path("k"), append(lineOf(t, in), `{"sum":"12`...), 0o600))
	wantState(t, s, "k", State{Intents: []Intent{in}})
	r := acquire(t, s, "k")
	must(t, r.Append(p))
	wantState(t, s, "k", State{Intents: []Intent{in}, Phases: []Phase{p}})
	got, err := os.ReadFile(s.Path("k"))
	must(t, err)
	if want := append(lineOf(t, in), lineOf(t, p)...); !bytes.Equal(got, want) {
		t.Errorf("got %s", got)
	}
}

func TestNewerRecordIsLeftAlone(t *testing.T) {
	s := newStore(t)
	data := append(framed(`{"version":2,"kind":"attachment","key":"k","podUID":"u","x":[]}`), "anything\n"...)
	must(t, os.WriteFile(s.Path("k"), data, 0o600))
	if r, err := s.Acquire(t.Context(), "k"); !errors.Is(err, ErrNewer) || r != nil {
		t.Errorf("got %v, %v", r, err)
	}
	if r, err := s.TryAcquire("k"); !errors.Is(err, ErrNewer) || r != nil {
		t.Errorf("got %v, %v", r, err)
	}
	st, err := s.Read("k")
	if !errors.Is(err, ErrNewer) || len(st.Intents) != 1 || st.Intents[0].PodUID != "u" {
		t.Errorf("got %+v, %v", st, err)
	}
	uid, err := PodUID(s.dir, "k")
	if err != nil || uid != "u" {
		t.Errorf("pod UID %q, %v", uid, err)
	}
	got, err := os.ReadFile(s.Path("k"))
	must(t, err)
	if !bytes.Equal(got, data) {
		t.Errorf("it holds %q now", got)
	}
	wantFiles(t, s.QuarantineDir())
	w := OpenSweep(filepath.Dir(s.dir))
	must(t, w.NoteBoot(s, "boot-2"))
	if due := w.Due(time.Now(), 9); len(due) > 0 {
		t.Errorf("it is due to be swept: %v", due)
	}
}

func TestModes(t *testing.T) {
	s := newStore(t)
	r := acquire(t, s, "k")
	must(t, r.Begin(testIntent("k")))
	must(t, r.Quarantine("to make the folder"))
	must(t, r.Begin(testIntent("k")))
	must(t, OpenSweep(filepath.Dir(s.dir)).Mark("k"))
	state := filepath.Dir(s.dir)
	err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %04o", path, info.Mode().Perm())
		}
		return nil
	})
	must(t, err)
}

func TestOpenRefuses(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	must(t, os.Mkdir(state, 0o700))
	must(t, os.Mkdir(filepath.Join(state, "real"), 0o700))
	must(t, os.Symlink("real", filepath.Join(state, "link")))
	must(t, os.WriteFile(filepath.Join(state, "file"), nil, 0o600))
	for name, mode := range map[string]fs.FileMode{"group": 0o770, "other": 0o702} {
		must(t, os.Mkdir(filepath.Join(state, name), 0o700))
		must(t, os.Chmod(filepath.Join(state, name), mode))
	}
	for _, name := range []string{"link", "file", "group", "other"} {
		if _, err := Open(filepath.Join(state, name), testKind); err == nil {
			t.Errorf("%s was opened", name)
		}
	}
	s, err := Open(filepath.Join(state, "real"), testKind)
	must(t, err)
	must(t, s.Close())
	must(t, os.Chmod(state, 0o777)) //nolint:gosec // that is what is to be refused
	if _, err := Open(filepath.Join(state, "real"), testKind); err == nil {
		t.Error("a folder was opened that others may replace")
	}
}

func TestOpenRefusesForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder away")
	}
	dir := filepath.Join(t.TempDir(), "state", "attachments")
	must(t, os.MkdirAll(dir, 0o700))
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Skipf("giving a folder away: %v", err)
	}
	if _, err := Open(dir, testKind); err == nil || !strings.Contains(err.Error(), "12345") {
		t.Errorf("got %v", err)
	}
}

func TestKeyLeadsNowhereElse(t *testing.T) {
	if _, err := newStore(t).Acquire(t.Context(), "../x"); err == nil {
		t.Error("a key led out of the folder")
	}
}

func TestAcquireGivesUp(t *testing.T) {
	s := newStore(t)
	acquire(t, s, "k")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Acquire(ctx, "k")
	if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := s.TryAcquire("k"); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	acquire(t, s, "other")
}

// Whatever a holder does with the path, those that wait get the lock of what is there then.
func TestPathChangesUnderWaiters(t *testing.T) {
	s := newStore(t)
	in := testIntent("k")
	for name, end := range map[string]struct {
		do    func(*Record) error
		empty bool
	}{
		"begun":       {func(r *Record) error { return r.Begin(in) }, false},
		"forgotten":   {func(r *Record) error { return errors.Join(r.Begin(in), r.Forget()) }, true},
		"nothing":     {func(*Record) error { return nil }, true},
		"quarantined": {func(r *Record) error { return errors.Join(r.Begin(in), r.Quarantine("test")) }, true},
		"unlinked":    {func(r *Record) error { return errors.Join(r.Begin(in), os.Remove(s.Path("k"))) }, true},
		"replaced by hand": {func(r *Record) error {
			return errors.Join(r.Begin(in), os.Remove(s.Path("k")), os.WriteFile(s.Path("k"), nil, 0o600))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := acquire(t, s, "k")
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					r, err := s.Acquire(t.Context(), "k")
					if err != nil {
						t.Error(err)
						return
					}
					if r.State().Empty != end.empty {
						t.Errorf("empty: %t", r.State().Empty)
					}
					if named, err := s.names("k", r.LockFile()); err != nil || !named {
						t.Errorf("the lock is on another file: %v", err)
					}
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			if err := end.do(r); err != nil {
				t.Error(err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
			if !end.empty {
				must(t, os.Remove(s.Path("k")))
			}
			wantFiles(t, s.dir)
		})
	}
}

// Calls on one key never overlap, whatever they do to the file.
func TestOneAtATime(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	var held atomic.Bool
	for i := range 8 {
		wg.Go(func() {
			for round := range 15 {
				r, err := s.Acquire(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				if held.Swap(true) {
					t.Error("two hold the lock")
				}
				switch (i + round) % 4 {
				case 0:
					err = r.Begin(Intent{PodUID: fmt.Sprint(i)})
				case 1:
					if !r.State().Empty {
						err = r.Append(Phase{Phase: Attempting})
					}
				}
				held.Store(false) // before Forget, which lets another have the key before it returns
				if (i+round)%4 == 2 {
					err = r.Forget()
				}
				if err := errors.Join(err, r.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestRecordTooLarge(t *testing.T) {
	s := newStore(t)
	must(t, os.WriteFile(s.Path("k"), nil, 0o600))
	must(t, os.Truncate(s.Path("k"), MaxRecord+1)) // a hole: it takes no space
	r, err := s.TryAcquire("k")
	if corrupt, ok := errors.AsType[*CorruptError](err); !ok || corrupt.Line != 0 {
		t.Fatalf("got %v", err)
	}
	must(t, r.Begin(testIntent("k")))
	r.size = MaxRecord - 10
	if err := r.Append(Phase{Phase: Done}); err == nil {
		t.Error("a phase went beyond the limit")
	}
	must(t, r.Close())
}

func TestKeysOfNothing(t *testing.T) {
	if _, err := List(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	s := newStore(t)
	if keys, err := s.Keys(); err != nil || keys != nil {
		t.Errorf("got %v, %v", keys, err)
	}
}

func TestPodUID(t *testing.T) {
	s := newStore(t)
	for key, tt := range map[Key]struct {
		data string
		want string
		ok   bool
	}{
		"empty":   {"", "", true},
		"device":  {string(framed(`{"version":1,"kind":"device","key":"x","podUID":"u-1"}`)), "u-1", true},
		"shared":  {string(framed(`{"version":1,"kind":"device","key":"x"}`)), "", true},
		"torn":    {string(framed(`{"version":1,"podUID":"u-2"}`)) + `{"sum`, "u-2", true},
		"corrupt": {"x\n", "", false},
		"typed":   {string(framed(`{"podUID":1}`)), "", false},
	} {
		must(t, os.WriteFile(s.Path(key), []byte(tt.data), 0o600))
		if got, err := PodUID(s.dir, key); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
	if _, err := PodUID(s.dir, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
