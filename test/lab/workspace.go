// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// workspace is the directory of one lab, <cache>/run/<id>. Its owner holds a lock on a file of
// it, so whoever can take the lock knows that the owner is gone, however it ended.
type workspace struct {
	dir, id string
	lock    *os.File

	mu     sync.Mutex
	record record
}

// record is what the next lab has to know to clean up after one that was killed.
type record struct {
	PIDs    []process `json:"pids"`    // of the boxes' first processes
	Cgroups []string  `json:"cgroups"` // names below every hierarchy's root
}

// process is a pid that cannot be mistaken for a later process of that number.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

const (
	recordFile = "lab.json"
	lockFile   = "lock"
	keptLogs   = 10 // labs whose logs stay
)

// newWorkspace clears what dead labs left, then makes a directory for this one.
func newWorkspace(cache string) (*workspace, error) {
	if err := reap(cache); err != nil {
		return nil, fmt.Errorf("clean up after earlier labs: %w", err)
	}
	random := make([]byte, 4)
	rand.Read(random)
	w := &workspace{id: hex.EncodeToString(random)}
	w.dir = filepath.Join(cache, "run", w.id)
	for _, d := range []string{w.path("log"), w.path("data")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	if w.lock, err = os.OpenFile(w.path(lockFile), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(w.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, &fs.PathError{Op: "lock", Path: w.lock.Name(), Err: err}
	}
	return w, nil
}

func (w *workspace) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

// log returns the path of a log file; its directory is there.
func (w *workspace) log(parts ...string) string { return w.path(append([]string{"log"}, parts...)...) }

// note records something to clean up, before it is made or at once after it.
func (w *workspace) note(add func(*record)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	add(&w.record)
	content, err := json.Marshal(w.record)
	if err != nil {
		return err
	}
	tmp := w.path(recordFile + ".tmp")
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, w.path(recordFile))
}

func (w *workspace) notePID(pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	return w.note(func(r *record) { r.PIDs = append(r.PIDs, process{PID: pid, Start: start}) })
}

// remove takes the workspace away. The logs are kept when asked for; it returns where.
func (w *workspace) remove(keepLogs bool) (logs string, err error) {
	defer w.lock.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	err = clear(w.record)
	cache := filepath.Dir(filepath.Dir(w.dir))
	if keepLogs {
		logs = keep(cache, w.dir)
	}
	return logs, errors.Join(err, os.RemoveAll(w.dir))
}

// keep moves a lab's logs to <cache>/logs, where those of the last few labs are.
func keep(cache, dir string) string {
	logs := filepath.Join(cache, "logs", filepath.Base(dir))
	if os.MkdirAll(filepath.Dir(logs), 0o755) != nil || os.Rename(filepath.Join(dir, "log"), logs) != nil {
		return ""
	}
	now := time.Now()
	os.Chtimes(logs, now, now) //nolint:errcheck // only decides which are dropped first
	if old, err := filepath.Glob(filepath.Join(cache, "logs", "*")); err == nil && len(old) > keptLogs {
		slices.SortFunc(old, func(a, b string) int { return cmp.Compare(modified(a), modified(b)) })
		for _, d := range old[:len(old)-keptLogs] {
			os.RemoveAll(d)
		}
	}
	return logs
}

func modified(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}

// reap clears what labs left whose owner is gone.
func reap(cache string) error {
	dirs, err := filepath.Glob(filepath.Join(cache, "run", "*", lockFile))
	if err != nil {
		return err
	}
	for _, path := range dirs {
		if err := reapOne(cache, path); err != nil {
			return err
		}
	}
	return nil
}

func reapOne(cache, path string) error {
	lock, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its owner has just removed it
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil //nolint:nilerr // held: that lab lives
	}
	dir := filepath.Dir(path)
	var r record
	if content, err := os.ReadFile(filepath.Join(dir, recordFile)); err == nil {
		if err := json.Unmarshal(content, &r); err != nil {
			return fmt.Errorf("read %s: %w", filepath.Join(dir, recordFile), err)
		}
	}
	if err := clear(r); err != nil {
		return err
	}
	keep(cache, dir)
	return os.RemoveAll(dir)
}

// clear removes what lies outside the workspace. Boxes end by themselves with their owner;
// only one that is stuck is still there to be killed.
func clear(r record) error {
	for _, p := range r.PIDs {
		if start, err := startTime(p.PID); err == nil && start == p.Start {
			syscall.Kill(p.PID, syscall.SIGKILL) //nolint:errcheck // it may end by itself now
		}
	}
	var errs []error
	for _, name := range r.Cgroups {
		errs = append(errs, removeCgroup(name))
	}
	return errors.Join(errs...)
}

// startTime is when a process began, field 22 of its stat file.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses and may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var start uint64
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, fmt.Errorf("pid %d has ended", pid)
	}
	_, err = fmt.Sscan(fields[19], &start)
	return start, err
}
