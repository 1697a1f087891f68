// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/proc"
)

// plumbing is the three pipes of one plugin: stdin is given to it, and what it writes goes
// to stdout and stderr.
type plumbing struct {
	stdin          []byte // what is still to be written
	stdout, stderr io.Writer

	in, out, err unix.PollFd // our ends; Fd is -1 when closed
	buf          []byte
}

func newPlumbing(stdout, stderr io.Writer) *plumbing {
	none := unix.PollFd{Fd: -1}
	return &plumbing{stdout: stdout, stderr: stderr, in: none, out: none, err: none, buf: make([]byte, 4<<10)}
}

// start makes the pipes and starts the plugin on them.
func (l *plumbing) start(p *process) (*proc.Child, error) {
	var theirs []int
	l.stdin = p.stdin
	defer func() {
		for _, fd := range theirs {
			_ = syscall.Close(fd)
		}
	}()
	for _, pipe := range []struct {
		ours          *unix.PollFd
		events        int16
		end, theirEnd int
	}{{&l.in, unix.POLLOUT, 1, 0}, {&l.out, unix.POLLIN, 0, 1}, {&l.err, unix.POLLIN, 0, 1}} {
		var fds [2]int
		if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
			l.close()
			return nil, fmt.Errorf("make pipe: %w", err)
		}
		*pipe.ours = unix.PollFd{Fd: int32(fds[pipe.end]), Events: pipe.events} //nolint:gosec // a descriptor
		theirs = append(theirs, fds[pipe.theirEnd])
	}
	// Only writing can wait after poll has said that there is room for some of it.
	if err := syscall.SetNonblock(int(l.in.Fd), true); err != nil {
		l.close()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	files := []uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2])}
	for _, f := range p.inherit {
		files = append(files, f.Fd())
	}
	l.write() // most configurations fit in the pipe
	child, err := proc.Start(p.path, p.env, files)
	if err != nil {
		l.close()
		return nil, err
	}
	return child, nil
}

// serve moves what is to be moved until the plugin has ended, which ctx's deadline makes it.
func (l *plumbing) serve(ctx context.Context, child *proc.Child) error {
	deadline, bounded := ctx.Deadline()
	for {
		timeout := time.Duration(-1)
		if bounded {
			timeout = max(time.Until(deadline), 0)
		}
		ended, err := child.Wait(timeout, l.open()...)
		if err == nil {
			err = l.move()
		}
		if err != nil {
			child.Kill()
		}
		if err != nil || ended {
			return err
		}
		if bounded && ctx.Err() != nil {
			child.Kill()
			bounded = false
		}
	}
}

// drain takes what a plugin that has ended wrote. Whom it left behind may keep its pipes.
func (l *plumbing) drain() error {
	closePipe(&l.in)
	for end := time.Now().Add(drain); ; {
		rest := time.Until(end)
		open := l.open()
		if len(open) == 0 || rest < 0 {
			return nil
		}
		err := proc.Poll(rest, open...)
		if err == nil {
			err = l.move()
		}
		if err != nil {
			return err
		}
	}
}

func (l *plumbing) open() []*unix.PollFd {
	var open [3]*unix.PollFd
	return slices.DeleteFunc(append(open[:0], &l.in, &l.out, &l.err), func(p *unix.PollFd) bool { return p.Fd < 0 })
}

func (l *plumbing) close() {
	closePipe(&l.in)
	closePipe(&l.out)
	closePipe(&l.err)
}

// move reads and writes once where poll says that something can be done.
func (l *plumbing) move() error {
	if l.in.Fd >= 0 && l.in.Revents != 0 {
		l.write()
	}
	return errors.Join(l.read(&l.out, l.stdout), l.read(&l.err, l.stderr))
}

// write gives the plugin as much of its input as there is room for. One that does not read
// all of it is its own judge.
func (l *plumbing) write() {
	for len(l.stdin) > 0 {
		n, err := syscall.Write(int(l.in.Fd), l.stdin)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if errors.Is(err, syscall.EAGAIN) {
			return
		}
		if err != nil {
			break
		}
		l.stdin = l.stdin[n:]
	}
	closePipe(&l.in)
}

// read passes on one read. What cannot be passed on is not read any further: the pipe is
// closed, or the plugin killed by who cannot take more.
func (l *plumbing) read(pipe *unix.PollFd, to io.Writer) error {
	if pipe.Fd < 0 || pipe.Revents == 0 {
		return nil
	}
	pipe.Revents = 0
	n, err := syscall.Read(int(pipe.Fd), l.buf)
	if errors.Is(err, syscall.EINTR) {
		return nil
	}
	if n <= 0 || err != nil {
		closePipe(pipe)
		return os.NewSyscallError("read from plugin", err)
	}
	if _, err := to.Write(l.buf[:n]); err != nil {
		closePipe(pipe) // capture's flood, which kills the plugin
	}
	return nil
}

func closePipe(p *unix.PollFd) {
	if p.Fd >= 0 {
		_ = syscall.Close(int(p.Fd))
	}
	p.Fd = -1
}
