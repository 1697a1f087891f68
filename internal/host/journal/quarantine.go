// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
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

// quarantine gives the record a second name, then puts a locked placeholder in its place:
// at no moment it has no name, or its key a free lock.
func (r *Record) quarantine(reason string) (string, error) {
	if r.gone {
		return "", fmt.Errorf("quarantine record %s: %w", r.key, errGone)
	}
	return r.store.keep(r.key, reason, func(to string) error {
		if err := os.Link(r.path, to); err != nil {
			return err
		}
		if err := r.replace(nil, false); err != nil {
			return errors.Join(err, os.Remove(to))
		}
		r.state = State{Empty: true}
		return nil
	})
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
