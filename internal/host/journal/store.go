// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
)

const (
	recordSuffix = ".jsonl"
	tempSuffix   = ".jsonl.tmp"
)

// How long a waiter sleeps between two tries for a lock; it doubles from first to last.
const (
	firstWait = time.Millisecond
	lastWait  = 50 * time.Millisecond
)

// Store is one folder of records. Its methods may be called from several goroutines.
type Store struct {
	dir  string
	kind string
	open *os.File // the folder, for its fsync

	salvage Salvage
}

// Salvage says what takes the place of a corrupt record, of what could be read of it: an intent and the
// phases after it; known is false when there is nothing to be written.
type Salvage func(*CorruptError) (in Intent, phases []Phase, known bool)

// Salvaging has corrupt records written anew in the step that puts them into quarantine, so that a kill
// leaves the one or the other. It is called before the store is used.
func (s *Store) Salvaging(f Salvage) { s.salvage = f }

// Open gives the store of dir, a folder of a state directory, whose records are of the
// given kind. It makes what is missing, see PrivateDir.
func Open(dir, kind string) (*Store, error) {
	f, err := PrivateDir(dir)
	if err != nil {
		return nil, err
	}
	return &Store{dir: dir, kind: kind, open: f}, nil
}

// Close lets the folder go. Records stay usable, except for Begin.
func (s *Store) Close() error { return s.open.Close() }

// Path is the file of a record.
func (s *Store) Path(key Key) string { return filepath.Join(s.dir, string(key)+recordSuffix) }

// Keys lists the records, placeholders among them, in the order of their names.
func (s *Store) Keys() ([]Key, error) { return List(s.dir) }

// List is Keys of a folder that is only looked at: it need not be there (fs.ErrNotExist).
func List(dir string) ([]Key, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var keys []Key
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			// A power loss may keep a temporary file alone; who acquires its key clears it.
			name, ok = strings.CutSuffix(e.Name(), tempSuffix)
		}
		if key := Key(name); ok && key.Validate() == nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// PodUID reads the frozen field podUID of a record of any kind and version in a folder that
// is only looked at. A placeholder has none, and is no error.
func PodUID(dir string, key Key) (string, error) {
	s := &Store{dir: dir}
	f, err := s.openRecord(key, 0)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	b, err := readAll(f, key)
	if err != nil || len(b) == 0 {
		return "", err
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	body, reason := unframe(line)
	var in Intent
	if reason == "" && readFrozen(body, &in) != nil {
		reason = "it is no intent"
	}
	if reason != "" {
		return "", &CorruptError{Key: key, Line: 1, Reason: reason, Path: f.Name()}
	}
	return in.PodUID, nil
}

// Read gives a record's state without its lock: a moment of it, whose last phase may be
// on its way. The errors are fs.ErrNotExist, ErrNewer (with the frozen fields in the
// state) and *CorruptError, which moves nothing.
func (s *Store) Read(key Key) (State, error) {
	f, st, err := s.Peek(key)
	if f != nil {
		err = errors.Join(err, f.Close())
	}
	return st, err
}

// Peek is Read that keeps the file open, without lock, for Holders: it is there also with
// ErrNewer and *CorruptError, if it is a file. The caller closes it.
func (s *Store) Peek(key Key) (*os.File, State, error) {
	f, err := s.openRecord(key, 0)
	if err != nil {
		return nil, State{}, err
	}
	st, _, _, err := s.load(f, key)
	if _, corrupt := errors.AsType[*CorruptError](err); corrupt {
		// Perhaps a torn line was cut off while it was read. The second look decides.
		st, _, _, err = s.load(f, key)
	}
	return f, st, err
}

// Acquire gives the record of a key under its lock, and waits for that until ctx ends; the
// error is ErrBusy then. A record that is not there is made, as an empty placeholder.
//
// With a *CorruptError comes a record, unless the bad one cannot be put into quarantine: the one that took
// its place, which is empty or what Salvaging's function gave. All other errors come without.
func (s *Store) Acquire(ctx context.Context, key Key) (*Record, error) {
	for pause := firstWait; ; pause = min(2*pause, lastWait) {
		r, err := s.try(key, os.O_CREATE)
		if !errors.Is(err, ErrBusy) {
			return r, err
		}
		if end := brief.Sleep(ctx, pause); end != nil {
			return nil, fmt.Errorf("%w: %w", err, end)
		}
	}
}

// TryAcquire is Acquire that does not wait, and does not make a record: the error is
// ErrBusy or fs.ErrNotExist then.
func (s *Store) TryAcquire(key Key) (*Record, error) { return s.try(key, 0) }

// try opens the file, locks it, and makes sure that it is still the one with that name.
// Nothing stays open when the lock is another's: a waiter is not to look like a holder.
func (s *Store) try(key Key, create int) (*Record, error) {
	var displaced *CorruptError
	// Only a path that is replaced between open and lock, each time, ends this early.
	for range 100 {
		f, err := s.openRecord(key, create)
		if bad, ok := errors.AsType[*CorruptError](err); ok { // no file
			if bad, err = s.displace(key, bad.Path); err != nil {
				return nil, err
			}
			displaced, create = cmp.Or(bad, displaced), os.O_CREATE
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			return nil, errors.Join(fmt.Errorf("lock record %s: %w", key, err), f.Close())
		}
		named, err := s.names(key, f)
		if err == nil && named {
			r, err := s.take(key, f)
			if err == nil && displaced != nil && r.state.Empty {
				return r, displaced
			}
			return r, err
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("lock record %s: %w", key, err)
		}
	}
	return nil, fmt.Errorf("lock record %s: it is replaced over and over: %w", key, ErrBusy)
}

// take makes a Record of a file that is locked and has its name.
func (s *Store) take(key Key, f *os.File) (*Record, error) {
	r := &Record{store: s, key: key, path: s.Path(key), lock: f}
	err := os.Remove(r.path + ".tmp")
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if errors.Is(err, syscall.ENOTEMPTY) { // a folder with something in it
		_, err = s.displace(key, r.path+".tmp")
	}
	var torn bool
	if err == nil {
		r.state, r.size, torn, err = s.load(f, key)
		r.dirty = torn
	}
	if err == nil {
		return r, nil
	}
	corrupt, is := errors.AsType[*CorruptError](err)
	if !is {
		return nil, errors.Join(err, f.Close())
	}
	kept, err := r.quarantine(corrupt.Reason, r.anew(corrupt))
	if err != nil {
		return nil, errors.Join(corrupt, err, r.Close())
	}
	corrupt.Path = kept
	return r, corrupt
}

// openRecord opens for reading only. A FIFO does not hold it up, a link is not followed:
// what is no file is a *CorruptError.
func (s *Store) openRecord(key Key, create int) (*os.File, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	f, err := brief.OpenFile(s.Path(key), os.O_RDONLY|create|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		if bad := notAFile(key, s.Path(key)); bad != nil {
			return nil, bad
		}
		return nil, fmt.Errorf("open record: %w", err)
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		_ = f.Close() // nothing was done with it
		return nil, &CorruptError{Key: key, Path: f.Name(), Reason: kindOf(info) + ", no file"}
	}
	return f, nil
}

// load reads the whole file and gives its state, the length of its whole lines, and
// whether a torn line follows them.
func (s *Store) load(f *os.File, key Key) (st State, whole int64, torn bool, err error) {
	b, err := readAll(f, key)
	if err != nil {
		return st, 0, false, err
	}
	st, good, err := parse(b, s.kind, key)
	if corrupt, ok := errors.AsType[*CorruptError](err); ok {
		corrupt.Path = f.Name()
	}
	return st, int64(good), good < len(b), err
}

func readAll(f *os.File, key Key) ([]byte, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read record: %w", err)
	case info.Size() > MaxRecord:
		return nil, &CorruptError{Key: key, Path: f.Name(), Reason: "it is larger than any record"}
	}
	b := make([]byte, info.Size())
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return b[:n], nil
}

// names says whether the key's path leads to f.
func (s *Store) names(key Key, f *os.File) (bool, error) {
	at, err := os.Lstat(s.Path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	is, err := f.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(at, is), nil
}

// flock takes the exclusive lock, or says ErrBusy. It goes with the open file: a process
// that inherits the descriptor shares it, a second open of the same file does not.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrBusy
		default:
			return err
		}
	}
}
