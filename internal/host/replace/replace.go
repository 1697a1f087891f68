// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replace puts a whole file in the place of another, for readers that must never
// see half of one: runtimes, the kernel that executes it.
//
// It owns the temporary files .<name>.<number>.tmp beside a file: their names begin with
// a dot and end in none of the endings that a runtime reads.
//
// Invariants: the name is at every moment that of the old bytes or of the new ones; when
// File returns, the new ones are on the disk under their name with the mode that was
// asked for, whatever the umask; after an error the old ones are as they were. What a
// kill leaves is a temporary file, which Leftovers removes. Two writers may work on one
// name at once: the later one wins.
//
// It knows nothing of what the bytes mean.
//
// Implements: spec/cni.md rule 11; architecture 4.4 (publishing and installing).
package replace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// attempts bounds how often a write is begun anew because another writer's Leftovers took
// the temporary file.
const attempts = 5

// File makes path a file of these bytes and this mode. A symbolic link in its place is
// replaced, not followed.
func File(path string, mode fs.FileMode, content io.ReadSeeker) error {
	for i := 1; ; i++ {
		err := write(path, mode, content)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || i == attempts {
			return err
		}
		if _, gone := os.Stat(filepath.Dir(path)); gone != nil {
			return err
		}
		if _, err := content.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func write(path string, mode fs.FileMode, content io.Reader) (err error) {
	dir, base := filepath.Split(path)
	f, err := os.CreateTemp(filepath.Clean(dir), "."+base+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// Closed before it has its name: a file that is open for writing cannot be executed.
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Clean(dir))
}

// Leftovers removes the temporary files of earlier writes of path, and says how many.
func Leftovers(path string) (int, error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	faults := []error{err}
	removed := 0
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "."+base+".")
		if !ok {
			continue
		}
		number, ok = strings.CutSuffix(number, ".tmp")
		if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
			continue
		}
		err := os.Remove(filepath.Join(dir, e.Name()))
		if err == nil {
			removed++
		} else if !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	return removed, errors.Join(faults...)
}

// SyncDir has the names in a directory on the disk when it returns.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}
