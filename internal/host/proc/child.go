// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a program that was started and has not been waited for. It leads a process
// group of its own.
type Child struct {
	PID   int
	pidfd int // -1 where the kernel has none

	mu   sync.Mutex
	gone bool // about to be reaped: its number may soon be another's
}

// Start runs the program at path with this environment and these descriptors, which
// become its 0, 1, 2 and so on; it inherits nothing else.
func Start(path string, env []string, files []uintptr) (*Child, error) {
	// Descriptors that this process itself inherited open are nobody's business.
	// The kernel can do this from 5.11 on; before that they go through.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	c := &Child{pidfd: -1}
	pid, err := syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{
		Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setpgid: true, PidFD: &c.pidfd},
	})
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	c.PID = pid
	return c, nil
}

// Kill ends the whole group, unless its number may no longer be ours.
func (c *Child) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		_ = syscall.Kill(-c.PID, syscall.SIGKILL)
	}
}

// endTick is how often the end of a child is looked for where nothing tells of it.
const endTick = 5 * time.Millisecond

// Wait is Poll until the child has ended as well, which it tells without reaping it:
// until it is reaped neither its number nor its group's can be given to others.
func (c *Child) Wait(timeout time.Duration, fds ...*unix.PollFd) (ended bool, err error) {
	if c.pidfd < 0 {
		if timeout < 0 || timeout > endTick {
			timeout = endTick
		}
		err := Poll(timeout, fds...)
		return c.ended(unix.P_PID, c.PID), err
	}
	end := unix.PollFd{Fd: int32(c.pidfd), Events: unix.POLLIN} //nolint:gosec // a descriptor
	err = Poll(timeout, append(fds, &end)...)
	return end.Revents != 0 && c.ended(unix.P_PIDFD, c.pidfd), err
}

func (c *Child) ended(by, id int) bool {
	var info unix.Siginfo
	err := unix.Waitid(by, id, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// Reap waits for the end of the child and says how it ended. Nothing but Kill, which does
// nothing any more, may follow.
func (c *Child) Reap() (Exit, error) {
	for errors.Is(unix.Waitid(unix.P_PID, c.PID, nil, unix.WEXITED|unix.WNOWAIT, nil), syscall.EINTR) {
	}
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	if c.pidfd >= 0 {
		_ = syscall.Close(c.pidfd)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.PID, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return Exit(status), os.NewSyscallError("wait for child", err)
		}
	}
}

// Exit is how a child ended. Any other than 0 is an error.
type Exit syscall.WaitStatus

// Error is "exit status 1" or "signal: killed".
func (e Exit) Error() string {
	s := syscall.WaitStatus(e)
	if !s.Signaled() {
		return "exit status " + strconv.Itoa(s.ExitStatus())
	}
	text := "signal: " + s.Signal().String()
	if s.CoreDump() {
		text += " (core dumped)"
	}
	return text
}

// Killed says whether SIGKILL ended it.
func (e Exit) Killed() bool {
	s := syscall.WaitStatus(e)
	return s.Signaled() && s.Signal() == syscall.SIGKILL
}

// Poll waits until something can be done with one of fds, whose Revents then say what, or
// until timeout, which is none when negative. One with a negative Fd is left out.
func Poll(timeout time.Duration, fds ...*unix.PollFd) error {
	var room [4]unix.PollFd
	list := room[:0]
	for _, fd := range fds {
		fd.Revents = 0
		list = append(list, *fd)
	}
	wait := -1
	if timeout >= 0 {
		wait = int(min(timeout.Milliseconds()+1, math.MaxInt32)) // rounded up: early is no use
	}
	_, err := unix.Poll(list, wait)
	if errors.Is(err, syscall.EINTR) {
		return nil // as if nothing had happened: callers look again
	}
	if err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	for i, fd := range fds {
		fd.Revents = list[i].Revents
	}
	return nil
}
