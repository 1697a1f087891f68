// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
)

// How long a key rests between two tries: it doubles from first to last.
const (
	firstRest = 10 * time.Second
	lastRest  = time.Hour
)

// Sweep is the work that a call left for later ones: keys of records that are to be undone.
// A key is an empty file in <stateDir>/sweep; it is due at its mtime, and its atime is when
// that was set, so that the difference is the rest to double. No file, no cost: Due without
// work opens and reads one empty folder.
//
// It is a hint about records, which are the truth: a mark may outlast its record (who finds
// none says Done), and marks that a power loss took come back by NoteBoot.
type Sweep struct{ stateDir string }

// OpenSweep makes nothing on the disk.
func OpenSweep(stateDir string) *Sweep { return &Sweep{stateDir: stateDir} }

func (w *Sweep) path(key Key) string { return filepath.Join(w.stateDir, "sweep", string(key)) }

// Mark makes a key due now. One that is marked already keeps its rest.
func (w *Sweep) Mark(key Key) error {
	if err := key.Validate(); err != nil {
		return err
	}
	f, err := brief.OpenFile(w.path(key), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		var dir *os.File
		if dir, err = PrivateDir(filepath.Dir(w.path(key))); err != nil {
			return fmt.Errorf("mark %s: %w", key, err)
		}
		_ = dir.Close()
		f, err = brief.OpenFile(w.path(key), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("mark %s: %w", key, err)
	}
	return nil
}

// Due gives at most limit keys whose rest is over, those that are due longest first. Call
// Retry for one before working on it: others look for work at the same time, and a crash in
// the work must not make it due at once.
func (w *Sweep) Due(now time.Time, limit int) []Key {
	entries, err := os.ReadDir(filepath.Join(w.stateDir, "sweep"))
	if err != nil || len(entries) == 0 {
		return nil
	}
	type mark struct {
		key Key
		at  time.Time
	}
	var due []mark
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || Key(e.Name()).Validate() != nil {
			continue
		}
		// A time far ahead is that of a clock that was wrong.
		if at := info.ModTime(); !at.After(now) || at.Sub(now) > 2*lastRest {
			due = append(due, mark{Key(e.Name()), at})
		}
	}
	slices.SortFunc(due, func(a, b mark) int { return a.at.Compare(b.at) })
	keys := make([]Key, 0, min(len(due), max(limit, 0)))
	for _, m := range due[:cap(keys)] {
		keys = append(keys, m.key)
	}
	return keys
}

// Done takes the mark away. None is fine.
func (w *Sweep) Done(key Key) error {
	if err := key.Validate(); err != nil {
		return err
	}
	if err := os.Remove(w.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear mark %s: %w", key, err)
	}
	return nil
}

// Retry lets a key rest, twice as long as the last time. None is fine.
func (w *Sweep) Retry(key Key) error {
	if err := key.Validate(); err != nil {
		return err
	}
	info, err := os.Lstat(w.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("postpone %s: %w", key, err)
	}
	rest := min(max(2*info.ModTime().Sub(accessTime(info)), firstRest), lastRest)
	now := time.Now()
	if err := os.Chtimes(w.path(key), now, now.Add(rest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("postpone %s: %w", key, err)
	}
	return nil
}

// NoteBoot marks every record of another boot, also those that cannot be read, once per
// boot: <stateDir>/boot says for which boot that was done. Records of a newer version are
// left alone. It prunes the quarantine on that occasion.
func (w *Sweep) NoteBoot(s *Store, boot string) error {
	path := filepath.Join(w.stateDir, "boot")
	if readBoot(path) == boot+"\n" {
		return nil
	}
	keys, err := s.Keys()
	if err != nil {
		return fmt.Errorf("note boot: %w", err)
	}
	var errs []error
	for _, key := range keys {
		st, err := s.Read(key)
		switch {
		case errors.Is(err, ErrNewer), errors.Is(err, fs.ErrNotExist):
		case err == nil && st.Empty:
			errs = append(errs, s.dropPlaceholder(key))
		case err != nil || len(st.Intents) == 0 || st.Intents[0].Boot != boot:
			errs = append(errs, w.Mark(key))
		}
	}
	errs = append(errs, s.PruneQuarantine(time.Now()))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("note boot: %w", err)
	}
	return w.writeBoot(path, boot)
}

// dropPlaceholder removes a placeholder that nobody holds: its maker was killed.
func (s *Store) dropPlaceholder(key Key) error {
	r, err := s.TryAcquire(key)
	switch {
	case errors.Is(err, ErrBusy), errors.Is(err, fs.ErrNotExist):
		return nil
	case r == nil:
		return err
	}
	return r.Close()
}

// readBoot gives the beginning of the file, "" when it cannot be read. What is no file of
// ours is not waited for, and not followed.
func readBoot(path string) string {
	f, err := brief.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	var b [64]byte
	n, _ := io.ReadFull(f, b[:]) // a boot's name is shorter
	return string(b[:n])
}

// writeBoot writes in place. A kill in the middle leaves another text than the boot's name,
// so that the boot is noted again, which does no harm; a temporary file would be left to
// nobody. Two at once write the same.
func (w *Sweep) writeBoot(path, boot string) error {
	f, err := brief.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = f.WriteString(boot + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("note boot: %w", err)
	}
	return nil
}

func accessTime(info fs.FileInfo) time.Time {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime()
	}
	return time.Unix(st.Atim.Unix())
}
