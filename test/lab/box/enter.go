// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package box

import (
	"fmt"
	"net"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartInside starts cmd in every namespace of the box, with its root. cmd.Path is a path of
// the box. The caller waits for cmd.
func (b *Box) StartInside(cmd *exec.Cmd) error {
	return onThread(func() error { return startIn(b.PID(), cmd, "net", "uts", "ipc", "pid", "mnt") })
}

// StartOnNetwork starts cmd as a process of the machine, but on the box' network.
func (b *Box) StartOnNetwork(cmd *exec.Cmd) error {
	return onThread(func() error { return startIn(b.PID(), cmd, "net") })
}

// StartIn is StartInside for a box that another process owns, by its pid 1.
func StartIn(pid int, cmd *exec.Cmd) error {
	return onThread(func() error { return startIn(pid, cmd, "net", "uts", "ipc", "pid", "mnt") })
}

// onThread runs f on a thread that nothing else will use: it is never unlocked, so it ends
// with its goroutine. It must not be the process' first thread, which never ends and whose
// namespaces /proc/self shows.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() //nolint:forbidigo // the lab is not linked with internal/host
		if unix.Gettid() == unix.Getpid() {
			result <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		result <- f()
	}()
	return <-result
}

// Listen opens a listener of this process on the box' network.
func (b *Box) Listen(address string) (l net.Listener, err error) {
	err = onThread(func() error {
		if err := enter(b.PID(), "net"); err != nil {
			return err
		}
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

func startIn(pid int, cmd *exec.Cmd, kinds ...string) error {
	if err := enter(pid, kinds...); err != nil {
		return err
	}
	return cmd.Start()
}

// enter moves the thread into namespaces of a process.
func enter(pid int, kinds ...string) error {
	// Threads share their root and working directory; a mount namespace wants its own.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the threads' common root: %w", err)
	}
	fds := make([]int, 0, len(kinds))
	defer func() {
		for _, fd := range fds {
			unix.Close(fd) //nolint:errcheck // nothing was written
		}
	}()
	// All are opened first: behind the mount namespace there is another /proc.
	for _, kind := range kinds {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s namespace of pid %d: %w", kind, pid, err)
		}
		fds = append(fds, fd)
	}
	for i, fd := range fds {
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("enter %s namespace of pid %d: %w", kinds[i], pid, err)
		}
	}
	return nil
}
