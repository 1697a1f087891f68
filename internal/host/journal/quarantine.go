// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What quarantine keeps.
const (
	quarantineAge   = 7 * 24 * time.Hour
	quarantineFiles = 100
)

// A quarantined record is <time>-<key>.jsonl, and its reason the same with .reason. The
// time leads, so that names sort by it; it is the time of the move, not of the record.
const (
	quarantineTime = "20060102T150405.000000000Z"
	reasonSuffix   = ".reason"
)

// QuarantineDir is where this store's bad records go.
func (s *Store) QuarantineDir() string { return filepath.Join(filepath.Dir(s.dir), "quarantine") }

// quarantine gives the record a second name, then puts a locked one in its place that says st, perhaps
// nothing: at no moment it has no name, or its key a free lock.
func (r *Record) quarantine(reason string, st State) (string, error) {
	if r.gone {
		return "", fmt.Errorf("quarantine record %s: %w", r.key, errGone)
	}
	content, err := encode(st)
	if err != nil {
		return "", fmt.Errorf("write record %s anew: %w", r.key, err)
	}
	return r.store.keep(r.key, reason, func(to string) error {
		if err := os.Link(r.path, to); err != nil {
			return err
		}
		// What is lost with the power is of another boot, but its bytes are not.
		if err := r.replace(content, durable{file: len(content) > 0}); err != nil {
			return errors.Join(err, os.Remove(to))
		}
		r.state = st
		return nil
	})
}

// anew is what takes the place of a corrupt record.
func (r *Record) anew(corrupt *CorruptError) State {
	if r.store.salvage != nil {
		if in, phases, known := r.store.salvage(corrupt); known {
			for i := range phases {
				phases[i].Time = cmp.Or(phases[i].Time, time.Now().UTC())
			}
			return State{Intents: []Intent{r.complete(in)}, Phases: phases}
		}
	}
	return State{Empty: true}
}

// encode gives the bytes of a record.
func encode(st State) (content []byte, err error) {
	for _, in := range st.Intents {
		line, err := encodeLine(in)
		if err != nil {
			return nil, err
		}
		content = append(content, line...)
	}
	for _, p := range st.Phases {
		line, err := encodeLine(p)
		if err != nil {
			return nil, err
		}
		content = append(content, line...)
	}
	return content, nil
}

// PruneQuarantine removes what is in quarantine for more than 7 days, and the oldest
// records beyond 100. It leaves alone what Weft did not put there, and a folder that was
// where a record should be, while there is something in it.
func (s *Store) PruneQuarantine(now time.Time) error {
	entries, err := os.ReadDir(s.QuarantineDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("prune quarantine: %w", err)
	}
	var names []string // oldest first
	for _, e := range entries {
		if _, err := quarantinedAt(e.Name()); err == nil && strings.HasSuffix(e.Name(), recordSuffix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	var errs []error
	for i, name := range names {
		if at, err := quarantinedAt(name); err == nil && now.Sub(at) <= quarantineAge && len(names)-i <= quarantineFiles {
			break
		}
		path := filepath.Join(s.QuarantineDir(), name)
		for _, path := range []string{path + reasonSuffix, path} {
			err := os.Remove(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
				errs = append(errs, fmt.Errorf("prune quarantine: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

func quarantinedAt(name string) (time.Time, error) {
	return time.Parse(quarantineTime, name[:min(len(name), len(quarantineTime))])
}
