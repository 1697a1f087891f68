// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/fault"
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
// goes to stderr, bounded (nil discards it). The error is a *fault.Fault of code 11.
func Spawn(ctx context.Context, path string, stderr io.Writer) (*Client, error) {
	c := &Client{name: "planner " + path}
	// One socket pair is stdin and stdout: a deadline can then be set on both.
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, c.faultf(fault.TryLater, err, "make socket pair: %v", err) // too many files are open
	}
	theirs := os.NewFile(uintptr(fds[1]), "planner stdio")
	defer theirs.Close()
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		_ = syscall.Close(fds[0])
		return nil, c.faultf(fault.Internal, err, "make socket pair: %v", err)
	}
	c.conn = os.NewFile(uintptr(fds[0]), "planner")

	p := &process{log: &boundedLog{w: stderr}}
	p.cmd = exec.CommandContext(ctx, path)
	// All of it. A Go program then asks no cgroup for its share and stops no thread to take less.
	p.cmd.Env = []string{"GOMAXPROCS=1"}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs, theirs, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = p.kill
	// A child that keeps stderr open does not keep us.
	p.cmd.WaitDelay = endWait
	if err := p.cmd.Start(); err != nil {
		_ = c.conn.Close()
		return nil, c.faultf(fault.TryLater, err, "start: %v", err)
	}
	c.proc = p
	return c, nil
}

// process is a spawned planner.
type process struct {
	cmd  *exec.Cmd
	log  *boundedLog
	once sync.Once

	mu   sync.Mutex
	gone bool // the leader is about to be waited for: its number may soon be another's
}

// kill ends the whole group, unless its number is no longer ours.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return os.ErrProcessDone
	}
	return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
}

// end waits for the planner, kills it when that takes long, ends what is left of
// its group, and says how it ended: "exit status 3". Its input has ended, or it
// has hung up.
func (p *process) end() string {
	p.once.Do(func() {
		timer := time.AfterFunc(endWait, func() { _ = p.kill() })
		// Seen, but not reaped: while the leader is a zombie the group's number is ours.
		for unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		timer.Stop()
		_ = p.kill()
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		_ = p.cmd.Wait() // the state says more
	})
	return p.cmd.ProcessState.String()
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
