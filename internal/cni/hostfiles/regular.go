// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/weftnet/weft/internal/host/brief"
)

// Errors of ReadRegular besides those of the file system.
var (
	ErrNotRegular = errors.New("is no regular file")
	ErrTooLarge   = errors.New("is too large")
)

// ReadRegular reads the file name in root, which must be regular and hold at most
// limit bytes. It never waits for a FIFO or a device, and refuses a symbolic link
// that leads out of root. Errors: *fs.PathError, ErrNotRegular, ErrTooLarge (wrapped).
func ReadRegular(root *os.Root, name string, limit int64) ([]byte, error) {
	open := func(name string, flag int, perm fs.FileMode) (*os.File, error) {
		return brief.OpenIn(root, name, flag, perm)
	}
	return readRegular(root.Stat, open, name, limit)
}

func readRegular(stat func(string) (fs.FileInfo, error), open func(string, int, fs.FileMode) (*os.File, error),
	name string, limit int64,
) ([]byte, error) {
	// Looked at before it is opened, since opening a device may already do something;
	// and again afterwards, since another may have taken its place.
	if info, err := stat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, ErrNotRegular
	}
	f, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, ErrNotRegular
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w (more than %d bytes)", ErrTooLarge, limit)
	}
	return data, nil
}

// Cause drops the operation and the path of a file error: the object of a
// warning already names the file.
func Cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
