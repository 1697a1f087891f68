// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package socket puts a unix socket at a path, and tells who connects to it: what the agent's
// two servers, of planners' requests and of people's questions, have in common.
//
// Invariants: there is no moment with a socket at the path that others may use, or on which
// nobody listens, and none without one when an earlier server left its own; a file that is no
// socket is never removed, nor is the socket of a later server; a folder in which others could
// put another socket at the path is refused.
//
// It knows no protocol, and does not decide who may connect. Two servers that start on one
// path at the same time are kept apart by their callers.
//
// Implements: architecture 4.4 (agent.sock, debug.sock).
package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Suffix is that of the name under which a socket is made; its path has to leave room for it.
const Suffix = ".new"

// Socket is a listener at a path.
type Socket struct {
	*net.UnixListener
	path string
	own  fs.FileInfo
}

// Listen makes the socket under another name, gives it its mode and renames it. What an
// earlier server left is replaced.
func Listen(path string, mode fs.FileMode) (*Socket, error) {
	if err := checkFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	temp := path + Suffix
	for _, p := range []string{path, temp} {
		info, err := os.Lstat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("look at socket: %w", err)
		case info.Mode().Type() != fs.ModeSocket:
			return nil, fmt.Errorf("listen on %s: %s is there and is no socket", path, p)
		}
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // by then it has another name
	s := &Socket{UnixListener: l, path: path}
	err = os.Chmod(temp, mode)
	if err == nil {
		s.own, err = os.Lstat(temp)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: put socket in place: %w", path, err), l.Close(), os.Remove(temp))
	}
	return s, nil
}

// checkFolder refuses a folder that another user owns or that others may write to: they could
// take the socket away, and answer in its place.
func checkFolder(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("look at folder %s: %w", path, err)
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("folder %s belongs to user %d, who could put another socket there", path, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write to folder %s (mode %04o), and could put another socket there", path, st.Mode&0o7777)
	}
	return nil
}

// Close ends listening and removes the file, if it is still this socket's.
func (s *Socket) Close() error {
	if s.InPlace() {
		_ = os.Remove(s.path) // a stale one harms nobody
	}
	return s.UnixListener.Close()
}

// InPlace says whether the socket's path still leads to it.
func (s *Socket) InPlace() bool {
	info, err := os.Lstat(s.path)
	// Another file may have been given the number of one that is gone.
	return err == nil && os.SameFile(info, s.own) && info.ModTime().Equal(s.own.ModTime())
}

// Gone says whether nothing is at the socket's path any more.
func (s *Socket) Gone() bool {
	_, err := os.Lstat(s.path)
	return errors.Is(err, fs.ErrNotExist)
}

// Peer is who connected, at the time it did, as the kernel knows it.
func Peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, inner); err != nil {
		return nil, fmt.Errorf("read peer credentials: %w", err)
	}
	return cred, nil
}
