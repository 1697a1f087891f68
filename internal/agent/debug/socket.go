// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// socket is a listener whose file nobody but its user may open, from the moment at which
// the file has its name.
type socket struct {
	*net.UnixListener
	path string
	own  fs.FileInfo
}

// listen makes the socket under another name and renames it: what an earlier server left
// is replaced in one step, and there is no moment with other permissions.
func listen(path string) (*socket, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen on %s: it is there and is no socket", path)
	}
	temp := path + "." + rand.Text()[:6]
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // it would be the temporary name
	s := &socket{UnixListener: l, path: path}
	err = os.Chmod(temp, 0o600)
	if err == nil {
		s.own, err = os.Lstat(temp)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close(), os.Remove(temp))
	}
	return s, nil
}

// Close ends listening and removes the file, if it is still this socket's.
func (s *socket) Close() error {
	if s.inPlace() {
		os.Remove(s.path) //nolint:errcheck // a stale file is replaced by the next server
	}
	return s.UnixListener.Close()
}

// inPlace says whether the socket's path still leads to it.
func (s *socket) inPlace() bool {
	info, err := os.Lstat(s.path)
	// Another file may have been given the number of one that is gone.
	return err == nil && os.SameFile(info, s.own) && info.ModTime().Equal(s.own.ModTime())
}

// gone says whether nothing is at the socket's path any more.
func (s *socket) gone() bool {
	_, err := os.Lstat(s.path)
	return errors.Is(err, fs.ErrNotExist)
}

// peer is the user at the other end of a connection, as the kernel knows it.
func peer(c net.Conn) (uint32, error) {
	counted, ok := c.(*conn)
	if !ok {
		return 0, fmt.Errorf("read peer credentials: connection is a %T", c)
	}
	raw, err := counted.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, credErr); err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	return cred.Uid, nil
}

// limited accepts no more connections at a time than it has slots; others wait in the
// kernel.
type limited struct {
	*socket
	slots  chan struct{}
	closed chan struct{}
}

// Accept waits for a slot, then for a connection.
func (l limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.AcceptUnix()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &conn{UnixConn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close also ends an Accept that waits for a slot.
func (l limited) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return l.socket.Close()
}

// conn is a connection that holds a slot.
type conn struct {
	*net.UnixConn
	free func()
}

// Close gives the slot back.
func (c *conn) Close() error {
	defer c.free()
	return c.UnixConn.Close()
}
