// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// OpenFile is os.OpenFile for a file that is none to wait for: without the runtime's poller,
// which costs a process that opens a few small files three more descriptors and a thread.
// O_NONBLOCK is about the opening alone: a FIFO does not hold it up.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	for {
		fd, err := syscall.Open(path, flag|syscall.O_CLOEXEC, uint32(perm.Perm()))
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err == nil && flag&syscall.O_NONBLOCK != 0 {
			err = syscall.SetNonblock(fd, false) // os takes what is nonblocking for what can be polled
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// ReadFile is os.ReadFile in the same manner.
func ReadFile(path string) ([]byte, error) {
	f, err := OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	return io.ReadAll(f)
}
