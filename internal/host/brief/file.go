// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// OpenFile is os.OpenFile for a file that is none to wait for: without the runtime's poller,
// which costs a process that opens a few small files three more descriptors and a thread.
// O_NONBLOCK is about the opening alone: a FIFO does not hold it up.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	return openAt(atCWD, path, path, flag, perm)
}

// atCWD is AT_FDCWD of openat(2).
const atCWD = -0x64

// OpenAt is OpenFile of a name in a directory that is open.
func OpenAt(dir *os.File, name string, flag int, perm fs.FileMode) (*os.File, error) {
	return openAt(int(dir.Fd()), name, filepath.Join(dir.Name(), name), flag, perm)
}

func openAt(dir int, name, path string, flag int, perm fs.FileMode) (*os.File, error) {
	for {
		fd, err := syscall.Openat(dir, name, flag|syscall.O_CLOEXEC, uint32(perm.Perm()))
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

// OpenIn is root.OpenFile where descriptors may run out. os.Root has no way around the
// runtime's poller, and the runtime ends the process when it cannot set that up.
func OpenIn(root *os.Root, name string, flag int, perm fs.FileMode) (*os.File, error) {
	if err := Spare(); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return root.OpenFile(name, flag, perm)
}

// Spare says whether a file can be opened and the runtime's poller set up, which takes two
// more descriptors: the error is what the kernel says where the runtime would throw.
func Spare() error {
	for range 3 {
		fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
		if err != nil {
			return err
		}
		defer syscall.Close(fd) //nolint:errcheck // it holds nothing
	}
	return nil
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
