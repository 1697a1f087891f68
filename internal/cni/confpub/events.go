// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weftnet/weft/internal/host/wake"
)

// events says that something happened in some directories. It may miss what it likes: the
// next rescan sees it.
type events struct {
	watcher *fsnotify.Watcher // nil: the machine has none left
	log     *slog.Logger
	changed wake.Signal
	done    chan struct{}
	// followed are the directories under watch, each as it was when the watch began: a new
	// one may take its name.
	followed map[string]fs.FileInfo
}

func newEvents(log *slog.Logger) *events {
	e := &events{
		log: log, changed: wake.New(), done: make(chan struct{}),
		followed: map[string]fs.FileInfo{},
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("changes of the conf directory are seen late, by looking again and again", "error", err)
		close(e.done)
		return e
	}
	e.watcher = w
	go e.relay()
	return e
}

// relay ends when the watcher is closed.
func (e *events) relay() {
	defer close(e.done)
	for {
		select {
		case _, ok := <-e.watcher.Events:
			if !ok {
				return
			}
		case _, ok := <-e.watcher.Errors: // an overflow: look again
			if !ok {
				return
			}
		}
		e.changed.Raise()
	}
}

// follow watches directories, those of before that were replaced as well. One that is not
// there is watched once it is.
func (e *events) follow(dirs ...string) {
	if e.watcher == nil {
		return
	}
	// The watcher drops a directory that is removed or renamed, and a new one may get its inode.
	live := e.watcher.WatchList()
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			delete(e.followed, dir)
			continue
		}
		if before := e.followed[dir]; before != nil && os.SameFile(before, info) && slices.Contains(live, dir) {
			continue
		}
		_ = e.watcher.Remove(dir) // of the one that is gone, if the watcher still has it
		if err := e.watcher.Add(dir); err != nil {
			e.log.Warn("a directory is not watched", "directory", dir, "error", err)
			continue
		}
		e.followed[dir] = info
	}
}

// quiet waits for a burst of events to end, at most d; they are one change.
func (e *events) quiet(ctx context.Context, d time.Duration) {
	wake.Pause(ctx, d)
	e.changed.Clear()
}

func (e *events) close() {
	if e.watcher != nil {
		_ = e.watcher.Close() // only watches and a descriptor
	}
	<-e.done
}
