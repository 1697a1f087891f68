// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/host/journal"
)

// retryRead is when a record is read again for which there was no descriptor left.
const retryRead = time.Second

// maxRecord is the largest record that is looked at: far above what pods need, and little
// enough that a file that something else has filled does not end the agent for want of
// memory, at every start anew. The hands read larger ones, and the status of such a pod is
// written once, by its report.
const maxRecord = 24 << 20

// errLarge is why a record is not looked at.
var errLarge = errors.New("is too large to be looked at")

// read makes the view of a key what its file says now.
func (l *loop) read(key journal.Key) {
	delete(l.due, key)
	if l.store == nil {
		if _, err := l.list(); err != nil {
			return // without a folder there are no records
		}
	}
	// The stamp is taken before: of what is written meanwhile it knows nothing, so that the
	// next scan finds a difference rather than none.
	var before stamp
	if at, err := os.Lstat(l.store.Path(key)); err == nil {
		before = stampOf(at)
	}
	if before.size > maxRecord {
		l.end(key)
		l.fault(key, "", fmt.Errorf("record %s: %w: %d bytes, more than %d", key, errLarge, before.size, maxRecord))
		return
	}
	file, st, err := l.store.Peek(key)
	l.reads.Add(1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.end(key)
		l.hide(key)
	case file == nil:
		// Not the record's fault, perhaps: what was known of it stays.
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			l.due[key] = time.Now().Add(retryRead)
		}
		if l.records[key] == nil {
			l.fault(key, "", err)
		}
	case err != nil:
		l.unreadable(key, file, st, err)
	case st.Empty:
		_ = file.Close() // it was only read
		l.end(key)
		l.show(key, shown{empty: true})
	default:
		l.take(key, file, st, before)
	}
}

// take takes a whole record in.
func (l *loop) take(key journal.Key, file *os.File, st journal.State, before stamp) {
	now, err := view(st, l.boot)
	if err != nil {
		l.unreadable(key, file, st, err)
		return
	}
	now.Torn = torn(file)
	e := l.records[key]
	if e != nil && same(e.file, file) && len(st.Phases) >= e.phases {
		_ = file.Close() // the one that is open already is the same file
		if e.lines == len(st.Intents)+len(st.Phases) && e.view.Torn == now.Torn {
			e.stamp = before // files only grow, so nothing changed
			return
		}
	} else {
		l.end(key)
		e = &entry{file: file, watch: newStopwatch(now.Begun)}
		e.watch.adding = !now.Body.Plugged // else the ADD was over long ago
		l.records[key] = e
	}
	e.stamp, e.view = before, now
	fresh := st.Phases[e.phases:]
	e.lines, e.phases = len(st.Intents)+len(st.Phases), len(st.Phases)
	l.lap(e, fresh)
	l.show(key, shown{sandbox: now})
}

// unreadable shows a file of which there is no view, and says so once.
func (l *loop) unreadable(key journal.Key, file *os.File, st journal.State, err error) {
	_ = file.Close() // it was only read
	l.end(key)
	podUID := ""
	if len(st.Intents) > 0 {
		podUID = st.Intents[0].PodUID
	} else if corrupt, ok := errors.AsType[*journal.CorruptError](err); ok && len(corrupt.State.Intents) > 0 {
		podUID = corrupt.State.Intents[0].PodUID
	}
	l.fault(key, podUID, err)
}

func (l *loop) fault(key journal.Key, podUID string, err error) {
	if was := l.shown[key].fault; was != nil && was.PodUID == podUID && was.Err.Error() == err.Error() {
		return
	}
	l.log.Warn("record cannot be read, others are", "key", string(key), "error", err)
	// The record's good lines, which are as large as it is, are not kept with the error.
	if corrupt, ok := errors.AsType[*journal.CorruptError](err); ok {
		corrupt.State = journal.State{}
	}
	l.show(key, shown{fault: &Unreadable{Key: key, PodUID: podUID, Newer: errors.Is(err, journal.ErrNewer), Err: err}})
}

// end lets a file go that has lost its name, after what was written to it last.
func (l *loop) end(key journal.Key) {
	e := l.records[key]
	if e == nil {
		return
	}
	delete(l.records, key)
	l.lap(e, remaining(e.file, e.lines))
	if l.loaded {
		l.tellTimings(e.watch.gone())
	}
	e.close()
}

// hide takes a key out of the view.
func (l *loop) hide(key journal.Key) {
	if _, have := l.shown[key]; have {
		l.show(key, shown{})
	}
}

// lap tells the times of new phases, but not of those that were there at the start.
func (l *loop) lap(e *entry, fresh []journal.Phase) {
	for _, p := range fresh {
		if all := e.watch.lap(e.view, p); l.loaded {
			l.tellTimings(all)
		}
	}
}

func (e *entry) close() { _ = e.file.Close() } // it was only read

func same(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX == nil && errY == nil && os.SameFile(x, y)
}
