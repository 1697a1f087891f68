// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func wantDue(t *testing.T, w *Sweep, now time.Time, limit int, want ...Key) {
	t.Helper()
	if diff := cmp.Diff(want, w.Due(now, limit)); diff != "" && len(want)+len(w.Due(now, limit)) > 0 {
		t.Error(diff)
	}
}

func TestSweep(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	w := OpenSweep(state)
	now := time.Now
	wantDue(t, w, now(), 9)
	must(t, w.Done("a"))
	must(t, w.Retry("a"))
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("looking for work made something: %v", err)
	}
	for i, key := range []Key{"c", "a", "b"} {
		must(t, w.Mark(key))
		at := now().Add(time.Duration(i-10) * time.Second)
		must(t, os.Chtimes(w.path(key), at, at))
	}
	must(t, w.Mark("c"))
	wantDue(t, w, now(), 9, "c", "a", "b")
	wantDue(t, w, now(), 2, "c", "a")
	wantDue(t, w, now(), 0)
	must(t, w.Done("a"))
	wantDue(t, w, now(), 9, "c", "b")

	// The rest doubles, and a mark does not shorten it.
	for _, rest := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600} {
		rest *= time.Second
		must(t, w.Retry("c"))
		must(t, w.Mark("c"))
		wantDue(t, w, now().Add(rest-2*time.Second), 9, "b")
		wantDue(t, w, now().Add(rest+time.Second), 9, "b", "c")
	}
	// A clock that was wrong does not hide work for ever.
	ahead := now().Add(300 * time.Hour)
	must(t, os.Chtimes(w.path("c"), ahead, ahead))
	wantDue(t, w, now(), 9, "b", "c")

	for _, bad := range []Key{"", "..", "a/b"} {
		if w.Mark(bad) == nil || w.Done(bad) == nil || w.Retry(bad) == nil {
			t.Errorf("key %q was taken", bad)
		}
	}
}

func TestNoteBoot(t *testing.T) {
	s := newStore(t)
	state := filepath.Dir(s.dir)
	w := OpenSweep(state)
	put := func(key Key, boot string) {
		in := testIntent(key)
		in.Boot = boot
		must(t, os.WriteFile(s.Path(key), lineOf(t, in), 0o600))
	}
	put("mine", "boot-2")
	put("earlier", "boot-1")
	must(t, os.WriteFile(s.Path("bad"), []byte("x\n"), 0o600))
	must(t, os.WriteFile(s.Path("empty"), nil, 0o600))
	must(t, w.NoteBoot(s, "boot-2"))
	wantFiles(t, filepath.Join(state, "sweep"), "bad", "earlier")

	wantFiles(t, s.dir, "bad.jsonl", "earlier.jsonl", "mine.jsonl") // what a kill left empty is gone

	// Once is enough for a boot.
	put("late", "boot-1")
	must(t, w.NoteBoot(s, "boot-2"))
	wantFiles(t, filepath.Join(state, "sweep"), "bad", "earlier")
	must(t, w.NoteBoot(s, "boot-3"))
	wantFiles(t, filepath.Join(state, "sweep"), "bad", "earlier", "late", "mine")
	wantFiles(t, state, "attachments", "boot", "sweep")
}

// What is no file of the boot's name is neither waited for nor followed.
func TestNoteBootInNoFile(t *testing.T) {
	s := newStore(t)
	state := filepath.Dir(s.dir)
	path := filepath.Join(state, "boot")
	must(t, syscall.Mkfifo(path, 0o600))
	if err := OpenSweep(state).NoteBoot(s, "boot-1"); err == nil {
		t.Error("a boot was noted in a FIFO")
	}
	must(t, os.Remove(path))
	elsewhere := filepath.Join(t.TempDir(), "file")
	must(t, os.Symlink(elsewhere, path))
	if err := OpenSweep(state).NoteBoot(s, "boot-1"); err == nil {
		t.Error("a boot was noted through a link")
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("a file was made outside the state directory")
	}
}
