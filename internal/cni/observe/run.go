// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

const (
	// coalesce is how long after the first of several writes a record is read.
	coalesce = 75 * time.Millisecond
	// scanEvery is how often the whole folder is looked through, whatever the watch says.
	scanEvery = 3 * time.Minute
	// blindScanEvery is the same while there is no watch, or no folder that can be read.
	blindScanEvery = 2 * time.Second
)

// loop is one run of an Observer: the only goroutine that reads records.
type loop struct {
	*Observer
	store   *journal.Store
	watcher *fsnotify.Watcher
	watched map[string]bool // the directories that are watched
	records map[journal.Key]*entry
	due     map[journal.Key]time.Time // records that were written to, and when to read them
	loaded  bool                      // the first scan is over
	said    string                    // the last complaint about the folder
}

// entry is what is kept of one file.
type entry struct {
	file   *os.File // open while there is a view of it
	stamp  stamp
	lines  int // whole lines that were taken in
	phases int // and how many of them are phases
	watch  *stopwatch
	view   *Sandbox
}

// stamp tells whether a file changed since it was read.
type stamp struct {
	ino  uint64
	size int64
	mod  time.Time
}

// Run observes until ctx ends.
func (o *Observer) Run(ctx context.Context) error {
	l := &loop{
		Observer: o, watched: map[string]bool{},
		records: map[journal.Key]*entry{}, due: map[journal.Key]time.Time{},
	}
	defer close(o.ended)
	defer l.close()
	scan := time.NewTimer(l.scan())
	defer scan.Stop()
	read := time.NewTimer(time.Hour)
	defer read.Stop()
	for {
		read.Reset(l.untilDue())
		events, errs := l.channels()
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if ok && l.event(e) {
				scan.Reset(l.scan())
			}
		case err, ok := <-errs:
			if ok {
				// Of an overflow or any other fault: what was missed is found by a scan.
				o.log.Warn("watch of the records missed something, they are all looked at", "error", err)
				scan.Reset(l.scan())
			}
		case <-scan.C:
			scan.Reset(l.scan())
		case <-read.C:
			l.readDue()
		case q := <-o.ask:
			l.read(q.key)
			o.mu.RLock()
			q.answer <- o.shown[q.key]
			o.mu.RUnlock()
		}
	}
}

func (l *loop) close() {
	if l.watcher != nil {
		_ = l.watcher.Close() // nothing can be done about it, and nothing was written
	}
	for _, e := range l.records {
		e.close()
	}
}

// channels are those of the watch, nil without one.
func (l *loop) channels() (<-chan fsnotify.Event, <-chan error) {
	if l.watcher == nil {
		return nil, nil
	}
	return l.watcher.Events, l.watcher.Errors
}

// event takes a change in, and says whether everything is to be looked at anew.
func (l *loop) event(e fsnotify.Event) (scan bool) {
	if filepath.Dir(e.Name) != l.dir || e.Name == l.dir {
		// About the folder itself, or about those above it while it is not there.
		moved := l.watched[e.Name] && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename))
		return e.Name == l.dir || moved || !l.watched[l.dir] && e.Has(fsnotify.Create)
	}
	name, ok := strings.CutSuffix(filepath.Base(e.Name), ".jsonl")
	key := journal.Key(name)
	if !ok || key.Validate() != nil {
		return false
	}
	if e.Has(fsnotify.Create) || e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
		l.read(key)
		return false
	}
	if _, waits := l.due[key]; !waits && e.Has(fsnotify.Write) {
		l.due[key] = time.Now().Add(coalesce)
	}
	return false
}

func (l *loop) untilDue() time.Duration {
	wait := time.Hour
	for _, at := range l.due {
		wait = min(wait, time.Until(at))
	}
	return max(wait, 0)
}

func (l *loop) readDue() {
	now := time.Now()
	for key, at := range l.due {
		if !at.After(now) {
			l.read(key)
		}
	}
}

// scan looks the whole folder through, reads what is not as it was when it was read, and
// says when to do it again.
func (l *loop) scan() time.Duration {
	faults := []error{l.watch()}
	keys, err := l.list()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // no folder, no records
	}
	if err != nil {
		l.complain(errors.Join(append(faults, err)...))
		return blindScanEvery
	}
	left := make(map[journal.Key]bool, len(l.shown)) // only this goroutine changes shown
	for key := range l.shown {
		left[key] = true
	}
	for _, key := range keys {
		delete(left, key)
		at, err := os.Lstat(l.store.Path(key))
		if e := l.records[key]; e != nil && err == nil && e.stamp == stampOf(at) {
			continue
		}
		l.read(key)
	}
	for key := range left {
		l.read(key)
	}
	if !l.loaded {
		l.loaded = true
		close(l.synced)
	}
	l.complain(errors.Join(faults...))
	if len(l.watched) == 0 || l.store != nil && !l.watched[l.dir] {
		return blindScanEvery // while the folder is not there this is cheap
	}
	return scanEvery
}

// list gives the keys of the folder; fs.ErrNotExist when there is none. The store is
// opened when there is a folder: opening it would make one.
func (l *loop) list() ([]journal.Key, error) {
	if l.store == nil {
		if _, err := os.Lstat(l.dir); err != nil {
			return nil, err
		}
		store, err := journal.Open(l.dir, record.Kind)
		if err != nil {
			return nil, err
		}
		_ = store.Close() // reading needs the path alone, whichever folder it leads to later
		l.store = store
	}
	return journal.List(l.dir)
}

// complain tells of the folder's faults, each once until another one comes or none.
func (l *loop) complain(err error) {
	l.mu.Lock()
	l.Observer.fault = err
	l.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != l.said && err != nil {
		l.log.Error("records cannot be watched as they should, tried again", "dir", l.dir, "error", err)
	}
	l.said = text
}

// watch watches the folder and the one above it, or, as long as they are not there, the
// nearest that is. It begins anew each time: whether a path leads to the directory that it
// led to cannot be told, for a new one may get the number of the old. What happens
// meanwhile is found by the scan that follows.
func (l *loop) watch() error {
	if l.watcher == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watch records: %w", err)
		}
		l.watcher = w
	}
	for dir := range l.watched {
		_ = l.watcher.Remove(dir) // it may have gone by itself
	}
	clear(l.watched)
	var faults []error
	// A directory that appears between the look and the watch needs another round.
	for more := true; more; {
		more, faults = false, nil
		for _, dir := range l.above() {
			if l.watched[dir] {
				continue
			}
			if err := l.watcher.Add(dir); err == nil {
				l.watched[dir], more = true, true
			} else if !errors.Is(err, fs.ErrNotExist) {
				faults = append(faults, fmt.Errorf("watch %s: %w", dir, err))
			}
		}
	}
	return errors.Join(faults...)
}

// above gives the folder, if it is there, and the nearest one above it.
func (l *loop) above() []string {
	var dirs []string
	for dir := l.dir; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			dirs = append(dirs, dir)
			if dir != l.dir {
				return dirs
			}
		}
		if dir == filepath.Dir(dir) {
			return dirs
		}
	}
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), mod: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.ino = st.Ino
	}
	return s
}
