// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/host/brief"
)

// Waiting for a place in the backlog of a busy agent.
const (
	firstWait = time.Millisecond
	lastWait  = 50 * time.Millisecond
)

// Dial connects to the planner that listens on a unix socket. The error is a
// *fault.Fault of code 11 when nobody listens there or ctx ends first; its cause
// (syscall.ENOENT, syscall.ECONNREFUSED) tells an agent that is not there.
func Dial(ctx context.Context, socket string) (*Client, error) {
	c := &Client{name: "planner at " + socket}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, c.faultf(fault.Internal, err, "make socket: %v", err)
	}
	if err := connect(ctx, fd, socket); err != nil {
		_ = syscall.Close(fd)
		return nil, c.faultf(fault.TryLater, err, "connect: %v", err)
	}
	c.conn = &stream{fd: fd, ctx: context.Background()}
	return c, nil
}

// connect never waits inside the kernel: a full backlog is EAGAIN.
func connect(ctx context.Context, fd int, socket string) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
		switch {
		case err == nil || errors.Is(err, syscall.EISCONN):
			return nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EAGAIN):
			return err
		}
		if err := brief.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}
