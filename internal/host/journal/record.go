// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
)

// Record is one record under its lock. One goroutine at a time may use it.
type Record struct {
	store *Store
	key   Key
	path  string
	lock  *os.File // read-only, carries the flock
	write *os.File // appends, nil until needed
	state State
	size  int64 // of the whole lines
	dirty bool  // bytes that are no whole line follow them
	gone  bool  // the path is no longer ours
}

// Key is the record's key.
func (r *Record) Key() Key { return r.key }

// State is what the record says, with what was written through it.
func (r *Record) State() State {
	return State{
		Intents: slices.Clip(r.state.Intents),
		Phases:  slices.Clip(r.state.Phases),
		Empty:   r.state.Empty,
	}
}

// LockFile is the descriptor that carries the lock, for delegates to inherit. Begin and
// Quarantine change it.
func (r *Record) LockFile() *os.File { return r.lock }

// Begin makes the record a new one with this intent alone: what it said before is gone, so
// that must have been undone. The intent is on the disk when Begin returns; after an error
// there is no new record. Version, Kind and Key are set here; Boot, Owner and Time when
// they are zero.
func (r *Record) Begin(in Intent) error {
	in = r.complete(in)
	line, err := encodeLine(in)
	if err == nil {
		err = r.replace(line, durable{file: true, folder: true})
	}
	if err != nil {
		return fmt.Errorf("begin record %s: %w", r.key, err)
	}
	r.state = State{Intents: []Intent{in}}
	return nil
}

// Extend adds a further intent. It is on the disk when Extend returns; after an error it
// is not in the record.
func (r *Record) Extend(in Intent) error {
	in = r.complete(in)
	line, err := encodeLine(in)
	if err == nil {
		err = r.append(line, true)
	}
	if err != nil {
		return fmt.Errorf("extend record %s: %w", r.key, err)
	}
	r.state.Intents = append(r.state.Intents, in)
	return nil
}

// Append adds a phase by one write that nobody waits for. After an error the phase is not
// in the record, and further ones may be tried. Time is set when it is zero.
func (r *Record) Append(p Phase) error {
	if p.Time.IsZero() {
		p.Time = time.Now().UTC()
	}
	line, err := encodeLine(p)
	if err == nil {
		err = r.append(line, false)
	}
	if err != nil {
		return fmt.Errorf("append %s to record %s: %w", p.Phase, r.key, err)
	}
	r.state.Phases = append(r.state.Phases, p)
	return nil
}

// Forget removes the record. After it only Close is of use. The folder is not synced: a
// record that a power loss brings back is of another boot, and is undone once more.
func (r *Record) Forget() error {
	if err := r.remove(); err != nil {
		return fmt.Errorf("forget record %s: %w", r.key, err)
	}
	return nil
}

// Quarantine moves the record, as it is, out of the way, for a reason that is kept beside
// it. The lock is then that of an empty placeholder: Begin may follow.
func (r *Record) Quarantine(reason string) error {
	_, err := r.quarantine(reason, State{Empty: true})
	return err
}

// Close lets the lock go, for whoever inherited it as well. An empty placeholder is removed.
func (r *Record) Close() error {
	if r.lock == nil {
		return nil
	}
	var err error
	if r.state.Empty {
		err = r.remove()
	}
	err = errors.Join(err, r.closeFiles())
	if err != nil {
		return fmt.Errorf("close record %s: %w", r.key, err)
	}
	return nil
}

// closeFiles unlocks rather than just closes: a daemon that a delegate left behind on
// purpose has the descriptor too, and must not hold the record for ever.
func (r *Record) closeFiles() error {
	err := errors.Join(syscall.Flock(int(r.lock.Fd()), syscall.LOCK_UN), r.lock.Close())
	if r.write != nil {
		err = errors.Join(err, r.write.Close())
	}
	r.lock, r.write, r.gone = nil, nil, true
	return err
}

func (r *Record) complete(in Intent) Intent {
	in.Version, in.Kind, in.Key = Version, r.store.kind, r.key
	if in.Boot == "" {
		in.Boot = BootID()
	}
	if in.Owner == (Process{}) {
		in.Owner = Self()
	}
	if in.Time.IsZero() {
		in.Time = time.Now().UTC()
	}
	return in
}

// remove takes the path away while it is still this record's.
func (r *Record) remove() error {
	if r.gone {
		return nil
	}
	named, err := r.store.names(r.key, r.lock)
	if err == nil && named {
		err = os.Remove(r.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	r.gone = err == nil
	return err
}

var errGone = errors.New("it was forgotten or closed")

// durable says what is on the disk before one goes on.
type durable struct{ file, folder bool }

// replace puts a new file in the record's place. Its lock is taken before it has the name,
// so that at no moment the name leads to a file whose lock is free.
func (r *Record) replace(content []byte, sync durable) error {
	if r.gone {
		return errGone
	}
	if len(content) > MaxRecord {
		return fmt.Errorf("%d bytes are more than %d", len(content), MaxRecord)
	}
	temp := r.path + ".tmp"
	write, err := brief.OpenFile(temp, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	lock, err := prepare(temp, write, content, sync.file)
	if err == nil {
		err = os.Rename(temp, r.path)
	}
	if err != nil {
		err = errors.Join(err, write.Close(), os.Remove(temp))
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		return err
	}
	// Closing the old lock now does no harm: its file no longer has the name.
	_ = r.closeFiles()
	r.lock, r.write, r.gone = lock, write, false
	r.size, r.dirty = int64(len(content)), false
	if sync.folder {
		if err := r.store.open.Sync(); err != nil {
			return errors.Join(err, r.remove())
		}
	}
	return nil
}

// prepare fills the temporary file and gives a locked, read-only descriptor of it.
func prepare(temp string, write *os.File, content []byte, sync bool) (*os.File, error) {
	if _, err := write.Write(content); err != nil {
		return nil, err
	}
	if sync {
		if err := write.Sync(); err != nil {
			return nil, err
		}
	}
	lock, err := brief.OpenFile(temp, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := flock(lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// append writes one line at the end of the whole lines, or nothing.
func (r *Record) append(line []byte, sync bool) error {
	switch {
	case r.gone:
		return errGone
	case len(r.state.Intents) == 0:
		return errors.New("it has no intent yet")
	case r.size+int64(len(line)) > MaxRecord:
		return fmt.Errorf("it would be larger than %d bytes", MaxRecord)
	}
	if err := r.openWrite(); err != nil {
		return err
	}
	if r.dirty {
		if err := r.write.Truncate(r.size); err != nil {
			return err
		}
		r.dirty = false
	}
	_, err := r.write.Write(line)
	if err == nil && sync {
		err = r.write.Sync()
	}
	if err != nil {
		// What got through must not stay: the next line would continue it.
		r.dirty = r.write.Truncate(r.size) != nil
		return err
	}
	r.size += int64(len(line))
	return nil
}

func (r *Record) openWrite() error {
	if r.write != nil {
		return nil
	}
	w, err := brief.OpenFile(r.path, os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if named, err := r.store.names(r.key, w); err != nil || !named {
		return errors.Join(err, w.Close(), errors.New("another file has its name"))
	}
	if named, err := r.store.names(r.key, r.lock); err != nil || !named {
		return errors.Join(err, w.Close(), errors.New("another file has its name"))
	}
	r.write = w
	return nil
}
