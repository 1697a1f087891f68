// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package listen is the edge of a planner that is a daemon: a unix socket on which the
// hands ask, several at once.
//
// It owns the socket's file and a lock file beside it, which says that a server lives:
// whoever holds the lock may replace what a killed one left.
//
// Invariants: only root and the server's own user are answered, whatever the file's mode;
// the socket appears at its path with its mode, and listening; of two servers on one path
// the second does not start; a file that is no socket is never removed; connections are
// bounded, and one that says nothing, or takes no answer, is closed; a request that has
// arrived when the server ends is still answered, within drainTime; a panic of the
// handler ends one request and nothing else.
//
// It knows neither plans nor sources.
//
// Implements: architecture 4.2 (the unix socket), 4.4 (agent.sock).
package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/cni/wire"
)

const (
	// maxConnections is how many are served at once; others wait in the socket's backlog.
	maxConnections = 512
	// idleTime is how long a connection may say nothing: longer than an ADD takes by
	// default, since the report comes over the connection that gave the plan.
	idleTime = 2 * time.Minute
	// maxIdle bounds what a request's own timeout may make of idleTime.
	maxIdle = 15 * time.Minute
	// answerTime is how long a peer may take to read an answer.
	answerTime = 30 * time.Second
	// drainTime is what requests under way have when the server ends.
	drainTime = 5 * time.Second

	maxPath = 107 // of a socket's address, in bytes
	suffix  = ".new"
)

// Handle answers one request. ctx ends with the server, after drainTime.
type Handle = func(context.Context, wire.Request) wire.Response

// Server serves one socket.
type Server struct {
	path   string
	mode   fs.FileMode
	handle Handle
	log    *slog.Logger
	uid    int // answered besides root
	ready  chan struct{}
	drain  time.Duration
	idle   time.Duration

	mu       sync.Mutex
	ending   bool // no further request is read
	givenUp  bool // nor an answer written
	sessions map[*session]struct{}
	under    sync.WaitGroup // sessions
}

// New makes a Server for the socket path; nothing is touched yet.
func New(path string, mode fs.FileMode, handle Handle, log *slog.Logger) (*Server, error) {
	switch {
	case !filepath.IsAbs(path):
		return nil, fmt.Errorf("socket %q: the path is not absolute", path)
	case len(path)+len(suffix) > maxPath:
		return nil, fmt.Errorf("socket %q: the path is longer than %d bytes", path, maxPath-len(suffix))
	}
	return &Server{
		path: path, mode: mode, handle: handle, log: log, uid: os.Geteuid(), ready: make(chan struct{}),
		drain: drainTime, idle: idleTime, sessions: map[*session]struct{}{},
	}, nil
}

// String names the server.
func (s *Server) String() string { return "planner at " + s.path }

// Ready is closed once the socket is there and listened on.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx ends, and then what is under way. It is called once. The socket's
// directory has to exist.
func (s *Server) Run(ctx context.Context) error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	l, err := s.listen(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = os.Remove(s.path) }() // the lock says that it is ours; a stale one harms nobody
	close(s.ready)

	handling, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	unhook := context.AfterFunc(ctx, func() { l.Close() })
	defer unhook()
	err = s.accept(ctx, handling, l)
	return errors.Join(err, s.end(stop))
}

// lock takes the lock file, which the kernel gives back when this process dies.
func (s *Server) lock() (*os.File, error) {
	f, err := os.OpenFile(s.path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock socket: %w", err)
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		f.Close()
		return nil, fmt.Errorf("listen on %s: another server does", s.path)
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// listen puts the socket at its path: made and given its mode beside it, then renamed, so
// that there is no moment without a socket, or with one that others may use.
func (s *Server) listen(ctx context.Context) (*net.UnixListener, error) {
	for _, path := range []string{s.path, s.path + suffix} {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("look at socket: %w", err)
		case info.Mode().Type() != fs.ModeSocket:
			return nil, fmt.Errorf("listen on %s: %s is there, and no socket", s.path, path)
		}
	}
	if err := os.Remove(s.path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	generic, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.path+suffix)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l := generic.(*net.UnixListener)
	l.SetUnlinkOnClose(false) // by then it has another name
	err = os.Chmod(s.path+suffix, s.mode)
	if err == nil {
		err = os.Rename(s.path+suffix, s.path)
	}
	if err != nil {
		l.Close()
		_ = os.Remove(s.path + suffix)
		return nil, fmt.Errorf("put socket in place: %w", err)
	}
	return l, nil
}

// accept serves connections until the listener is closed because ctx has ended.
func (s *Server) accept(ctx, handling context.Context, l *net.UnixListener) error {
	places := make(chan struct{}, maxConnections)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case err == nil:
			s.begin(handling, conn, func() { <-places })
			continue
		case !passing(err):
			return fmt.Errorf("accept: %w", err)
		}
		s.log.WarnContext(ctx, "cannot accept a connection, and tries again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		<-places
	}
}

// passing says that accepting failed for a lack that ends: of descriptors or memory.
func passing(err error) bool {
	for _, lack := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// end has idle connections closed and waits for the others: first for their answers,
// then, once drain is over, for handlers to see that their context has ended.
func (s *Server) end(stop func()) error {
	s.mu.Lock()
	s.ending = true
	for ses := range s.sessions {
		ses.hurry()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.under.Wait()
	}()
	if within(s.drain, done) {
		return nil
	}
	s.log.Warn("requests are still under way, and are given up")
	stop()
	s.mu.Lock()
	s.givenUp = true
	for ses := range s.sessions {
		_ = ses.conn.SetWriteDeadline(past()) // a peer that does not read
	}
	s.mu.Unlock()
	if !within(s.drain, done) {
		return fmt.Errorf("end %s: a request does not end", s)
	}
	return nil
}

func within(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// past is a deadline that is over.
func past() time.Time { return time.Unix(1, 0) }
