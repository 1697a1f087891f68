// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

func TestViewOfARecord(t *testing.T) {
	r := observe(t)
	w := r.acquire(r.store(), "a")
	r.awaitCounts(Counts{Records: 1, Placeholders: 1})
	begun := w.at
	w.begin("a", []byte(`{"type":"pa"}`), []string{"pa"}, []string{"pb", "pc"})
	r.awaitCounts(Counts{Records: 1, HalfDone: 1})
	w.made(0).after(time.Millisecond, attempting(1), started(1, 0), started(1, 1))
	r.await("the last plugin is seen", func() bool {
		s, ok := r.Sandbox("a-eth0")
		return ok && s.Steps[1].Plugin == "pc"
	})
	s, _ := r.Sandbox("a-eth0")
	if d := cmp.Diff([]Step{
		{Op: journal.Done, Since: begun.Add(3 * time.Millisecond)},
		{Op: journal.Attempting, Since: begun.Add(4 * time.Millisecond), Plugin: "pc"},
	}, s.Steps); d != "" || s.Answered() {
		t.Error(d, s.Answered())
	}
	w.after(time.Millisecond, done(1))
	// Nothing waits for the watch here.
	s, err := r.Refresh(t.Context(), "a-eth0")
	if err != nil || !s.Answered() || s.Finished {
		t.Fatalf("refreshed %+v, %v", s, err)
	}
	w.after(time.Millisecond, done(journal.WholeCall))
	r.awaitCounts(Counts{Records: 1, Finished: 1})
	s, _ = r.Sandbox("a-eth0")
	if !s.Begun.Equal(begun) || !s.Changed.Equal(w.at) || s.PodUID != "uid-a" || s.PodName != "a" || s.PodNamespace != "default" || s.Dead {
		t.Errorf("view %+v", s)
	}
	a := s.Attachments[1]
	if a.Network != "net1" || a.IfName != "eth1" || string(a.Result) != address || string(a.RuntimeConfig["CNIDeviceInfoFile"]) != `"/d/cni/x"` {
		t.Errorf("attachment %+v", a)
	}
	if a.Conf.Plugins[0].Conf != nil || a.Conf.Plugins[0].Type != "pb" || a.Args != "" || len(a.RuntimeConfig) != 1 || s.Body.Plan.Attachments != nil {
		t.Errorf("what is large was kept: %+v", a)
	}
	if got := r.ByPod("uid-a"); len(got) != 1 || got[0] != s {
		t.Errorf("by pod %v", got)
	}
	w.after(time.Millisecond, record.UndoPhase(true))
	r.awaitCounts(Counts{Records: 1, Undoing: 1})
	w.forget()
	r.awaitCounts(Counts{})
	if len(r.ByPod("uid-a")) != 0 || len(r.Sandboxes()) != 0 {
		t.Error("the pod is still listed")
	}
	if told := r.tells(); len(told) < 4 || slices.ContainsFunc(told, func(uid string) bool { return uid != "uid-a" }) {
		t.Errorf("told of %v", told)
	}
}

// TestClockSetBack: of a pod's sandboxes the one that is being deleted is the older one, whatever
// the clock was.
func TestClockSetBack(t *testing.T) {
	r := observe(t)
	store := r.store()
	first, second := r.acquire(store, "a"), r.acquire(store, "b")
	first.at = first.at.Add(time.Hour)
	first.begin("p", []byte(`{"type":"pa"}`), []string{"pa"})
	second.begin("p", []byte(`{"type":"pa"}`), []string{"pa"})
	order := func(want ...journal.Key) {
		t.Helper()
		r.await(fmt.Sprint("order ", want), func() bool {
			var keys []journal.Key
			for _, s := range r.ByPod("uid-p") {
				keys = append(keys, s.Key)
			}
			return slices.Equal(keys, want)
		})
	}
	order("b-eth0", "a-eth0")
	first.after(time.Millisecond, record.UndoPhase(true))
	order("a-eth0", "b-eth0")
}

// TestNothingIsMade: looking makes no folder, whatever is there or not.
func TestNothingIsMade(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, filepath.Join(dir, "a", "b", "state")).start()
	if _, err := r.Refresh(t.Context(), "a-eth0"); err != nil {
		t.Error(err)
	}
	if _, err := r.Refresh(t.Context(), "../x"); err == nil {
		t.Error("a key that is none was read")
	}
	r.stop()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("made %v, %v", left, err)
	}
	if _, err := r.Refresh(t.Context(), "a-eth0"); err == nil {
		t.Error("an observer that has ended answered")
	}
}

// TestFolderComesAndGoes: what is made after the start, at any depth, removed, renamed and made anew is followed.
func TestFolderComesAndGoes(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, filepath.Join(dir, "a", "b", "state")).start()
	for round, remove := range []func() error{
		func() error { return os.RemoveAll(filepath.Join(r.state, "attachments")) },
		func() error { return os.RemoveAll(r.state) },
		func() error { return os.Rename(r.state, filepath.Join(dir, "away")) },
		func() error { return os.Rename(filepath.Join(r.state, "attachments"), filepath.Join(r.state, "old")) },
		func() error { return os.RemoveAll(filepath.Join(dir, "a")) },
		func() error { return nil },
	} {
		w := r.acquire(r.store(), fmt.Sprint("r", round)).begin("p", nil, []string{"pa"})
		r.awaitCounts(Counts{Records: 1, HalfDone: 1})
		w.made(0).after(time.Millisecond, done(journal.WholeCall))
		r.awaitCounts(Counts{Records: 1, Finished: 1})
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if round < 5 {
			r.awaitCounts(Counts{})
		}
	}
}

// TestFault: what keeps the folder from being read is told, until it does no longer.
func TestFault(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := New(state, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{Observer: o, watched: map[string]bool{}, records: map[journal.Key]*entry{}}
	defer l.close()
	l.scan()
	if err := o.Fault(); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), state) {
		t.Errorf("a file in place of the state directory: %v", err)
	}
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	l.scan()
	if err := o.Fault(); err != nil {
		t.Errorf("no state directory is no fault: %v", err)
	}
}

// TestBadRecords: each is shown and counted, and the good ones are seen.
func TestBadRecords(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "state"))
	store := r.store()
	file := func(name string) string { return filepath.Join(r.state, "attachments", name) }
	line := func(from, old, new string) []byte {
		b, err := os.ReadFile(file(from))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Replace(b, []byte(old), []byte(new), 1)
	}
	write := func(name string, b []byte) {
		if err := os.WriteFile(file(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.acquire(store, "good").begin("good", nil, []string{"pa"}).made(0).after(time.Millisecond, done(journal.WholeCall))
	dead := r.acquire(store, "dead")
	dead.intent("another-boot", "dead", nil, []string{"pa"})
	r.acquire(store, "empty")
	r.acquire(store, "torn").begin("torn", nil, []string{"pa"}).after(time.Millisecond, attempting(0))
	b := line("torn-eth0.jsonl", "", "")
	write("torn-eth0.jsonl", append(b, b[:20]...))
	write("bad-eth0.jsonl", line("good-eth0.jsonl", "eth0", "eth9"))
	write("nonsense-eth0.jsonl", []byte("nonsense\n"))
	// The frozen fields of a newer version's record can be read whatever else changed.
	write("newer-eth0.jsonl", newer(t, "newer-eth0"))
	if err := os.Symlink(file("good-eth0.jsonl"), file("link-eth0.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file("fifo-eth0.jsonl"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file("dir-eth0.jsonl"), 0o700); err != nil {
		t.Fatal(err)
	}
	write("large-eth0.jsonl", nil)
	if err := os.Truncate(file("large-eth0.jsonl"), maxRecord+1); err != nil {
		t.Fatal(err)
	}
	write("not a key.jsonl", nil)
	write("other.txt", nil)
	quarantine := filepath.Join(r.state, "quarantine")
	if err := os.Mkdir(quarantine, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x.jsonl", "x.jsonl.reason"} {
		if err := os.WriteFile(filepath.Join(quarantine, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	if d := cmp.Diff(Counts{
		Records: 11, Finished: 1, HalfDone: 1, Dead: 1, Newer: 1, Corrupt: 6, Placeholders: 1, Torn: 1, Quarantined: 1,
	}, r.Counts()); d != "" {
		t.Error(d)
	}
	got := map[journal.Key]string{}
	for _, u := range r.Unreadable() {
		if u.Newer != errors.Is(u.Err, journal.ErrNewer) || u.Err == nil || errors.Is(u.Err, errLarge) != (u.Key == "large-eth0") {
			t.Errorf("%+v", u)
		}
		got[u.Key] = u.PodUID
	}
	if d := cmp.Diff(map[journal.Key]string{
		"bad-eth0": "", "nonsense-eth0": "", "newer-eth0": "uid-n", "link-eth0": "", "fifo-eth0": "", "dir-eth0": "",
		"large-eth0": "",
	}, got); d != "" {
		t.Error(d)
	}
	if s, _ := r.Sandbox("dead-eth0"); s == nil || !s.Dead {
		t.Errorf("of the other boot: %+v", s)
	}
	if _, err := r.Refresh(t.Context(), "newer-eth0"); !errors.Is(err, journal.ErrNewer) {
		t.Error(err)
	}
	// One that was mended is seen, and so is one that breaks.
	good, err := os.ReadFile(file("good-eth0.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	write("good-eth0.jsonl", bytes.Replace(good, []byte(`"done"`), []byte(`"gone"`), 1))
	r.await("it is broken", func() bool { _, ok := r.Sandbox("good-eth0"); return !ok })
	write("good-eth0.jsonl", good)
	r.await("it is whole again", func() bool { s, ok := r.Sandbox("good-eth0"); return ok && s.Finished })
}

// newer is a record of a later version, framed as every version frames it.
func newer(t *testing.T, key string) []byte {
	t.Helper()
	body := fmt.Sprintf(`{"version":9,"kind":"attachment","key":%q,"podUID":"uid-n","boot":["new"]}`, key)
	return frame(body)
}

// TestOverflow: events that the kernel dropped cost nothing but a scan.
func TestOverflow(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "state"))
	release := make(chan struct{})
	r.Notify(func(string) { <-release })
	store := r.store()
	r.start()
	r.acquire(store, "a").begin("a", nil, []string{"pa"})
	r.await("the observer is held up", func() bool { return len(r.tells()) > 0 })
	var files []*os.File
	for _, name := range []string{"x", "y"} {
		f, err := os.Create(filepath.Join(r.state, "attachments", name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for i := range 60_000 { // the queue holds 16384 by default, and equal neighbours are one
		if _, err := files[i%2].WriteAt([]byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	r.acquire(store, "b").begin("b", nil, []string{"pa"})
	close(release)
	r.awaitCounts(Counts{Records: 2, HalfDone: 2})
}

// TestReadsAreFew: a burst of ADDs, ten lines each, costs a few reads a record.
func TestReadsAreFew(t *testing.T) {
	r := observe(t)
	store := r.store()
	const n = 50
	var all []*writer
	for i := range n {
		all = append(all, r.acquire(store, fmt.Sprint("p", i)).begin("p", nil, []string{"pa"}, []string{"pb"}, []string{"pc"}))
	}
	for range 3 {
		for _, w := range all {
			w.made(0, 1, 2)
		}
	}
	for _, w := range all {
		w.after(time.Millisecond, done(journal.WholeCall))
	}
	r.awaitCounts(Counts{Records: n, Finished: n})
	// Placeholder, intent, and what 75 ms of the 28 lines each add; the bound leaves room
	// for a slow machine, on which the burst takes several of them.
	if reads := r.reads.Load(); reads > 10*n {
		t.Errorf("%d records of 29 lines were read %d times", n, reads)
	}
}

// TestMemory: a view costs little, however large the configurations are.
func TestMemory(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "state"))
	store := r.store()
	const n = 250
	conf := append(append([]byte(`{"type":"pa","x":"`), bytes.Repeat([]byte("x"), 32<<10)...), `"}`...)
	for i := range n {
		w := r.acquire(store, fmt.Sprint("p", i)).begin(fmt.Sprint("p", i), conf, []string{"pa"}, []string{"pb"})
		w.made(0, 1).after(time.Millisecond, done(journal.WholeCall)).close()
	}
	before := heap()
	r.start()
	if c := r.Counts(); c.Finished != n {
		t.Fatalf("counts %+v", c)
	}
	each := (int64(heap()) - int64(before)) / n
	t.Logf("%d bytes of heap a record", each)
	if each > 8<<10 {
		t.Errorf("a view of two networks takes %d bytes", each)
	}
	runtime.KeepAlive(r)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestRelativeStateDir(t *testing.T) {
	if _, err := New("state", nil); err == nil {
		t.Error("a relative path was taken")
	}
}
