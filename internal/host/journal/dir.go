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

	"github.com/weftnet/weft/internal/host/brief"
)

// PrivateDir opens a folder of a state directory, and makes it, and the state directory
// above it, with mode 0700 when they are missing. A folder that is a symbolic link, that
// another user owns or that others may write to is refused: who can change records can
// make Weft run anything. A folder that was made is on the disk when PrivateDir returns.
func PrivateDir(path string) (*os.File, error) {
	f, err := openDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = errors.Join(makePrivate(filepath.Dir(path)), makePrivate(path)); err == nil {
			f, err = openDir(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open folder: %w", err)
	}
	// The state directory may be a link that an administrator made; its folders may not.
	if err := checkOwner(os.Stat(filepath.Dir(path))); err != nil {
		return nil, errors.Join(fmt.Errorf("open folder %s: %w", filepath.Dir(path), err), f.Close())
	}
	if err := checkOwner(f.Stat()); err != nil {
		return nil, errors.Join(fmt.Errorf("open folder %s: %w", path, err), f.Close())
	}
	return f, nil
}

func openDir(path string) (*os.File, error) {
	return brief.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
}

func makePrivate(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(dir), 0o755); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func checkOwner(info fs.FileInfo, err error) error {
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.IsDir():
		return errors.New("it is not a directory")
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d", st.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to it (mode %04o)", info.Mode().Perm())
	}
	return nil
}

func syncDir(path string) error {
	f, err := brief.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
