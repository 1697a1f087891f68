// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"
)

// folder is an open one, by its bare descriptor: an os.File for each folder and attribute asks the
// kernel for more than a scan of hundreds of functions can spare.
type folder struct {
	fd   int
	name string
}

// folder opens one of sysfs, wherever links lead within it.
func (m *Machine) folder(name string) (*folder, error) {
	file, err := m.sysfs.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &folder{fd: fd, name: name}, nil
}

func (d *folder) close() {
	if d != nil {
		unix.Close(d.fd)
	}
}

// open opens what is in a folder and no link.
func (d *folder) open(name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(d.fd, name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.ELOOP):
			err = errLink
		case errors.Is(err, unix.EINTR):
			continue
		}
		return -1, d.fault("open", name, err)
	}
}

func (d *folder) fault(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: path.Join(d.name, name), Err: err}
}

// folder is open for a folder.
func (d *folder) folder(name string) (*folder, error) {
	fd, err := d.open(name, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &folder{fd: fd, name: name}, nil
}

// errLink: an attribute is a file, and what it says is this function's.
var errLink = errors.New("is a link, and must be none")

// most is a page, which is all that an attribute can be, and a link's target too.
const most = 4096

// read reads a short attribute. The kernel gives all of it at once.
func (d *folder) read(attr string) (string, error) {
	fd, err := d.open(attr, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var page [most]byte
	n, err := unix.Read(fd, page[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, page[:])
	}
	if err != nil {
		return "", d.fault("read", attr, err)
	}
	return string(bytes.TrimSpace(page[:n])), nil
}

func (d *folder) readlink(name string) (string, error) {
	var page [most]byte
	for {
		n, err := unix.Readlinkat(d.fd, name, page[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", d.fault("readlink", name, err)
		}
		return string(page[:n]), nil
	}
}

// names are those in the folder, which is read once.
func (d *folder) names() ([]string, error) {
	var names []string
	var page [2 * most]byte
	for {
		n, err := unix.ReadDirent(d.fd, page[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return names, d.fault("list", "", err)
		case n <= 0:
			return names, nil
		}
		_, _, names = unix.ParseDirent(page[:n], -1, names)
	}
}
