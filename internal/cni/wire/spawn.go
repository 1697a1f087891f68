// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/host/proc"
)

const (
	// endWait is how long a planner may take to end once its input has ended.
	endWait = time.Second
	// maxStderr bounds what is forwarded of a planner's stderr, tailSize what is quoted of it.
	maxStderr = 64 << 10
	tailSize  = 1 << 10
)

// Spawn starts a planner program (weft-planner) that speaks the protocol on its
// stdin and stdout; it serves until the Client is closed. It has a process group
// of its own, which is killed when ctx ends, no environment but GOMAXPROCS, and its stderr
// goes to stderr, bounded (nil discards it), whenever the Client waits for it. The error is
// a *fault.Fault of code 11.
func Spawn(ctx context.Context, path string, stderr io.Writer) (*Client, error) {
	c := &Client{name: "planner " + path}
	if ctx.Err() != nil {
		return nil, c.faultf(fault.TryLater, ctx.Err(), "start: %v", ctx.Err())
	}
	// One socket pair is stdin and stdout.
	socks, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, c.faultf(fault.TryLater, err, "make socket pair: %v", err) // too many files are open
	}
	defer syscall.Close(socks[1]) //nolint:errcheck // the planner has it
	if c.conn, err = newStream(socks[0]); err != nil {
		_ = syscall.Close(socks[0])
		return nil, c.faultf(fault.Internal, err, "make socket pair: %v", err)
	}
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		_ = c.conn.close()
		return nil, c.faultf(fault.TryLater, err, "make pipe: %v", err)
	}
	defer syscall.Close(ends[1]) //nolint:errcheck // the planner has it
	p := &process{ctx: ctx, log: &boundedLog{w: stderr}}
	p.stderr = pipe{poll: unix.PollFd{Fd: int32(ends[0]), Events: unix.POLLIN}, to: p.log} //nolint:gosec // a descriptor
	// All of it. A Go program then asks no cgroup for its share and stops no thread to take less.
	p.child, err = proc.Start(path, []string{"GOMAXPROCS=1"}, []uintptr{uintptr(socks[1]), uintptr(socks[1]), uintptr(ends[1])})
	if err != nil {
		p.stderr.close()
		_ = c.conn.close()
		return nil, c.faultf(fault.TryLater, err, "start: %v", err)
	}
	p.free = context.AfterFunc(ctx, p.child.Kill)
	c.proc, c.conn.beside = p, &p.stderr
	return c, nil
}

// process is a spawned planner.
type process struct {
	child  *proc.Child
	stderr pipe
	log    *boundedLog
	ctx    context.Context //nolint:containedctx // Spawn's, which ends it
	free   func() bool     // lets go of ctx
	once   sync.Once
	exit   string // how it ended
}

// end waits for the planner, kills it when that takes long, ends what is left of
// its group, and says how it ended: "exit status 3". Its input has ended, or it
// has hung up.
func (p *process) end() string {
	p.once.Do(func() {
		for end := time.Now().Add(endWait); p.ctx.Err() == nil; {
			rest := time.Until(end)
			ended, err := p.child.Wait(max(rest, 0), p.stderr.with()...)
			p.stderr.take()
			if ended || err != nil || rest < 0 {
				break
			}
		}
		// Seen, but not reaped: while the leader is a zombie the group's number is ours.
		p.child.Kill()
		// A child that keeps stderr open does not keep us.
		p.stderr.drain(endWait)
		p.free()
		exit, err := p.child.Reap()
		p.exit = exit.Error()
		if err != nil {
			p.exit = err.Error()
		}
	})
	return p.exit
}

// tail is the end of the planner's stderr for a message, "" when there is none.
func (p *process) tail() string {
	if p == nil {
		return ""
	}
	if text := fault.Bound(strings.TrimSpace(p.log.last()), tailSize); text != "" {
		return ": " + text
	}
	return ""
}

// boundedLog forwards the first maxStderr bytes and remembers the last tailSize.
type boundedLog struct {
	mu   sync.Mutex
	w    io.Writer
	sent int
	end  []byte
}

// Write never fails: what is too much is dropped, and the planner goes on.
func (l *boundedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := maxStderr - l.sent; room > 0 && l.w != nil {
		n, err := l.w.Write(b[:min(room, len(b))])
		l.sent += n
		if err != nil && !errors.Is(err, io.ErrShortWrite) {
			l.w = nil
		}
	}
	l.end = append(l.end, b[max(0, len(b)-tailSize):]...)
	l.end = l.end[max(0, len(l.end)-tailSize):]
	return len(b), nil
}

func (l *boundedLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.end)
}
