// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

// Dir is a directory whose files are read, without what an os.Root costs a process that lives for
// milliseconds: the runtime's poller. That is there for a file that is a symbolic link.
type Dir struct {
	dir  *os.File
	root *os.Root // once there was a link
}

// OpenDir opens a directory, which is to be closed.
func OpenDir(path string) (*Dir, error) {
	dir, err := brief.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Dir{dir: dir}, nil
}

// Close closes what is open.
func (d *Dir) Close() error {
	if d.root != nil {
		d.root.Close() //nolint:errcheck,gosec // nothing was written
	}
	return d.dir.Close()
}

// Names are what stands in the directory, in no order.
func (d *Dir) Names() ([]string, error) { return d.dir.Readdirnames(-1) }

// ReadRegular is ReadRegular of a file that stands in the directory.
func (d *Dir) ReadRegular(name string, limit int64) ([]byte, error) {
	if filepath.Base(name) != name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	const path = 0x200000 // O_PATH: it is looked at, not opened
	link := false
	stat := func(name string) (fs.FileInfo, error) {
		f, err := brief.OpenAt(d.dir, name, path|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // nothing was written
		info, err := f.Stat()
		link = err == nil && info.Mode()&fs.ModeSymlink != 0
		return info, err
	}
	open := func(name string, flag int, perm fs.FileMode) (*os.File, error) {
		return brief.OpenAt(d.dir, name, flag|syscall.O_NOFOLLOW, perm)
	}
	data, err := readRegular(stat, open, name, limit)
	if !link && !errors.Is(err, syscall.ELOOP) { // which says that it became one
		return data, err
	}
	if d.root == nil {
		if d.root, err = os.OpenRoot(d.dir.Name()); err != nil {
			return nil, err
		}
	}
	return ReadRegular(d.root, name, limit)
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
