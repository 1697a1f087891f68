// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/brief"
)

// maxDumps bounds how often one dump is asked for: an interruption means that something
// changed meanwhile, and a namespace does not change that often in a row.
const maxDumps = 20

// Netns is an open network namespace. It may be used from several goroutines.
type Netns struct {
	path   string
	file   *os.File
	handle *netlink.Handle

	rawOnce sync.Once
	raw     *nl.SocketHandle // for what the library has no call for
	rawErr  error
}

// OpenNetns opens the network namespace at path (a bind mount, or /proc/<pid>/ns/net).
// errors.Is(err, fs.ErrNotExist) tells that there is none.
func OpenNetns(path string) (*Netns, error) {
	// O_NONBLOCK: a path that is no namespace (a FIFO, say) must not hang.
	if err := brief.Spare(); err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	file, err := brief.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	n := &Netns{path: path, file: file}
	err = n.do(func() error {
		n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in %s: %w", path, err), file.Close())
	}
	return n, nil
}

// Path is the path that the namespace was opened by.
func (n *Netns) Path() string { return n.path }

// Close lets go of the namespace; it does not remove it.
func (n *Netns) Close() error {
	n.handle.Close()
	n.rawOnce.Do(func() {})
	if n.raw != nil {
		n.raw.Close()
	}
	return n.file.Close()
}

// request is a request of our own to the kernel's routing part, about a link (0: none or all).
func (n *Netns) request(kind, flags, index int) (*nl.NetlinkRequest, error) {
	n.rawOnce.Do(func() {
		n.rawErr = n.do(func() error {
			socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
			if err == nil {
				n.raw = &nl.SocketHandle{Socket: socket}
			}
			return err
		})
	})
	if n.rawErr != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", n.path, n.rawErr)
	}
	request := nl.NewNetlinkRequest(kind, flags)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: n.raw}
	about := nl.NewIfInfomsg(unix.AF_UNSPEC)
	about.Index = int32(index)
	request.AddData(about)
	return request, nil
}

// do runs f on a thread that is inside the namespace. When the thread cannot return to
// where it came from, it ends with its goroutine instead of being used by others.
func (n *Netns) do(f func() error) error {
	return onThread(func() (bool, error) {
		home, err := brief.OpenFile("/proc/thread-self/ns/net", os.O_RDONLY, 0)
		if err != nil {
			return true, fmt.Errorf("open own network namespace: %w", err)
		}
		defer home.Close()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return true, fmt.Errorf("enter %s: %w", n.path, err)
		}
		err = f()
		return unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil, err
	})
}

// onThread runs f on a locked thread, which is used again only if f says that it is clean.
func onThread(f func() (clean bool, err error)) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		clean, err := f()
		if clean {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// dump asks for a list until the kernel gives one that nothing interrupted.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for range maxDumps {
		all, err := list()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		return all, err
	}
	return nil, fmt.Errorf("interrupted %d times: %w", maxDumps, netlink.ErrDumpInterrupted)
}
