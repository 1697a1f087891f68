// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/proc"
)

// ctxTick is how soon a wait notices that its context was cancelled before the deadline.
const ctxTick = 50 * time.Millisecond

// stream is a connected socket that is read and written under a context, without the
// runtime's poller: that would cost weft-cni a thread.
type stream struct {
	fd  int // nonblocking; -1 when closed
	ctx context.Context
	// beside is read while the stream waits, so that who writes there is not held up.
	beside *pipe
}

func newStream(fd int) (*stream, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return &stream{fd: fd, ctx: context.Background()}, nil
}

// wait waits until events can be; the error is os.ErrDeadlineExceeded when the context ends first.
func (s *stream) wait(events int16) error {
	self := unix.PollFd{Fd: int32(s.fd), Events: events} //nolint:gosec // a descriptor
	for {
		if s.ctx.Err() != nil {
			return os.ErrDeadlineExceeded
		}
		timeout := ctxTick
		if deadline, ok := s.ctx.Deadline(); ok {
			timeout = min(timeout, max(time.Until(deadline), 0))
		}
		if err := proc.Poll(timeout, s.beside.with(&self)...); err != nil {
			return err
		}
		s.beside.take()
		if self.Revents != 0 {
			return nil
		}
	}
}

// Read gives what is there, io.EOF when the peer has hung up.
func (s *stream) Read(b []byte) (int, error) {
	for {
		n, err := syscall.Read(s.fd, b)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			if err := s.wait(unix.POLLIN); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write writes all of b.
func (s *stream) Write(b []byte) (n int, err error) {
	for n < len(b) {
		m, err := syscall.Write(s.fd, b[n:])
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			if err := s.wait(unix.POLLOUT); err != nil {
				return n, err
			}
		case err != nil:
			return n, os.NewSyscallError("write", err)
		}
		n += max(m, 0)
	}
	return n, nil
}

// hangup ends what the peer can read.
func (s *stream) hangup() { _ = syscall.Shutdown(s.fd, syscall.SHUT_WR) }

func (s *stream) close() error {
	if s.fd < 0 {
		return os.ErrClosed
	}
	fd := s.fd
	s.fd = -1
	return syscall.Close(fd)
}

// pipe is the reading end of one, whose content goes to a log. A nil one has none.
type pipe struct {
	poll unix.PollFd // Fd is -1 when closed
	to   io.Writer   // never fails
	buf  [1 << 10]byte
}

// with adds the pipe to what is waited for, while it is open.
func (p *pipe) with(fds ...*unix.PollFd) []*unix.PollFd {
	if p == nil || p.poll.Fd < 0 {
		return fds
	}
	return append(fds, &p.poll)
}

// take reads once when Poll has said that it can be read.
func (p *pipe) take() {
	if p == nil || p.poll.Fd < 0 || p.poll.Revents == 0 {
		return
	}
	p.poll.Revents = 0
	n, err := syscall.Read(int(p.poll.Fd), p.buf[:])
	if errors.Is(err, syscall.EINTR) {
		return
	}
	if n <= 0 || err != nil {
		p.close()
		return
	}
	_, _ = p.to.Write(p.buf[:n])
}

// drain takes what is there, and waits for the rest of it until the time is over.
func (p *pipe) drain(timeout time.Duration) {
	for end := time.Now().Add(timeout); p.poll.Fd >= 0; p.take() {
		rest := time.Until(end)
		if rest < 0 || proc.Poll(rest, &p.poll) != nil {
			break
		}
	}
	p.close()
}

func (p *pipe) close() {
	if p.poll.Fd >= 0 {
		_ = syscall.Close(int(p.poll.Fd))
	}
	p.poll.Fd = -1
}
