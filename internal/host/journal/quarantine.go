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
	"time"

	"github.com/weftnet/weft/internal/host/brief"
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
	dir, err := PrivateDir(r.store.QuarantineDir())
	if err != nil {
		return "", fmt.Errorf("quarantine record %s: %w", r.key, err)
	}
	defer dir.Close()
	now := time.Now().UTC()
	path := filepath.Join(dir.Name(), now.Format(quarantineTime)+"-"+string(r.key)+recordSuffix)
	if err := os.Link(r.path, path); err != nil {
		return "", fmt.Errorf("quarantine record %s: %w", r.key, err)
	}
	if err := r.replace(nil, false); err != nil {
		return "", errors.Join(fmt.Errorf("quarantine record %s: %w", r.key, err), os.Remove(path))
	}
	r.state = State{Empty: true}
	// The record is safe; the note beside it and the pruning are not worth an error.
	if note, err := brief.OpenFile(path+reasonSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
		_, _ = note.WriteString(reason + "\n")
		_ = note.Close()
	}
	_ = r.store.PruneQuarantine(now)
	return path, nil
}

// PruneQuarantine removes what is in quarantine for more than 7 days, and the oldest
// records beyond 100. It leaves alone what Weft did not put there.
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
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("prune quarantine: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

func quarantinedAt(name string) (time.Time, error) {
	return time.Parse(quarantineTime, name[:min(len(name), len(quarantineTime))])
}
