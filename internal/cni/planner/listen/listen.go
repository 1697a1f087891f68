// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package listen is the edge of a planner that is a daemon: a unix socket on which the
// hands ask, several at once.
//
// It owns the socket's file and a lock file beside it, which says that a server lives:
// whoever holds the lock may replace what a killed one left.
//
// Invariants: only root and the server's own user are answered, whatever the file's mode;
// the socket appears at its path with its mode, and listening, and is put there again when
// somebody took it away (who cleans up below /run, say), or Run ends with the reason why
// not; of two servers on one path the second does not start; a file that is no socket is never removed; connections are
// bounded, and so are the bytes of all requests that are held at once; a connection that says nothing, or
// takes no answer, is closed; a request that has
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

	"golang.org/x/sync/semaphore"

	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/socket"
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
	// maxHeld is how many bytes of requests are held at once: those of the largest one. What
	// is made of them in memory is several times as much.
	maxHeld = wire.MaxMessage
	// arriveTime is how long a request may take to arrive once there is room for it.
	arriveTime = 30 * time.Second
	// drainTime is what requests under way have when the server ends.
	drainTime = 5 * time.Second
	// lookEvery is how often the server looks whether its socket is still at its path:
	// nobody is told when it is not, and nobody can connect any more.
	lookEvery = 5 * time.Second

	maxPath = 107 // of a socket's address, in bytes
	suffix  = socket.Suffix
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
	look   time.Duration
	arrive time.Duration
	room   *semaphore.Weighted // bytes of requests

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
		drain: drainTime, idle: idleTime, look: lookEvery,
		arrive: arriveTime, room: semaphore.NewWeighted(maxHeld), sessions: map[*session]struct{}{},
	}, nil
}

// String names the server.
func (s *Server) String() string { return "planner at " + s.path }

// Ready is closed once the socket is there and listened on.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx ends, and then what is under way. It is called once. The socket's
// directory has to exist.
func (s *Server) Run(ctx context.Context) error {
	handling, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	places := make(chan struct{}, maxConnections)
	announce := sync.OnceFunc(func() { close(s.ready) })
	for {
		lost, err := s.serve(ctx, handling, places, announce)
		if err != nil || !lost {
			return errors.Join(err, s.end(stop))
		}
		s.log.WarnContext(ctx, "socket was taken away, it is put there again", "path", s.path)
	}
}

// serve accepts connections at one socket, until ctx ends or the socket is lost.
func (s *Server) serve(ctx, handling context.Context, places chan struct{}, announce func()) (lost bool, err error) {
	lock, err := s.lock() // anew each time: its file may be gone as well
	if err != nil {
		return false, err
	}
	defer lock.Close()
	l, err := socket.Listen(s.path, s.mode)
	if err != nil {
		return false, err
	}
	defer l.Close()
	announce()

	here, leave := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer leave()
	unhook := context.AfterFunc(here, func() { l.UnixListener.Close() })
	defer unhook()
	watch.Go(func() {
		ticker := time.NewTicker(s.look)
		defer ticker.Stop()
		for l.InPlace() {
			select {
			case <-here.Done():
				return
			case <-ticker.C:
			}
		}
		leave()
	})
	err = s.accept(here, handling, l.UnixListener, places)
	return err == nil && ctx.Err() == nil, err
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

// accept serves connections until the listener is closed because ctx has ended.
func (s *Server) accept(ctx, handling context.Context, l *net.UnixListener, places chan struct{}) error {
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
			<-places
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
