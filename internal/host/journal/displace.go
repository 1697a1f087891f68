// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
)

// notAFile is the fault of a path that leads to something else than a file, nil for a file
// or nothing.
func notAFile(key Key, path string) *CorruptError {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().IsRegular() {
		return nil //nolint:nilerr // who opens it says what is wrong with it
	}
	return &CorruptError{Key: key, Path: path, Reason: kindOf(info) + ", no file"}
}

func kindOf(info fs.FileInfo) string {
	switch mode := info.Mode(); {
	case mode.IsDir():
		return "it is a folder"
	case mode&fs.ModeSymlink != 0:
		return "it is a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "it is a FIFO"
	case mode&fs.ModeSocket != 0:
		return "it is a socket"
	}
	return "it is a device"
}

// displace moves what is no file from a record's path to quarantine, as it is. Nobody holds
// such a thing: no lock is ever taken on one. The folder's lock is between those who find it
// at the same time, so that none moves what another has put in its place since. nil: it
// was gone already.
func (s *Store) displace(key Key, path string) (*CorruptError, error) {
	folder, err := openDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("quarantine record %s: %w", key, err)
	}
	defer folder.Close() //nolint:errcheck // opened for its lock
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX) // for the time of a rename
	}
	if err != nil {
		return nil, fmt.Errorf("quarantine record %s: lock folder: %w", key, err)
	}
	bad := notAFile(key, path)
	if bad == nil {
		return nil, nil
	}
	kept, err := s.keep(key, bad.Reason, func(to string) error { return os.Rename(path, to) })
	if err != nil {
		return nil, errors.Join(bad, err)
	}
	bad.Path = kept
	return bad, nil
}

// keep puts a record into quarantine by move, with the reason beside it, and returns where
// it is.
func (s *Store) keep(key Key, reason string, move func(to string) error) (string, error) {
	dir, err := PrivateDir(s.QuarantineDir())
	if err != nil {
		return "", fmt.Errorf("quarantine record %s: %w", key, err)
	}
	defer dir.Close() //nolint:errcheck // opened for reading
	now := time.Now().UTC()
	path := filepath.Join(dir.Name(), now.Format(quarantineTime)+"-"+string(key)+recordSuffix)
	if err := move(path); err != nil {
		return "", fmt.Errorf("quarantine record %s: %w", key, err)
	}
	// The record is safe; the note beside it and the pruning are not worth an error.
	if note, err := brief.OpenFile(path+reasonSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
		_, _ = note.WriteString(reason + "\n")
		_ = note.Close()
	}
	_ = s.PruneQuarantine(now)
	return path, nil
}
