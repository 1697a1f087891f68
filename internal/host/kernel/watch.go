// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls changed whenever something changed of the host namespace's links (netlink) or of
// network and PCI devices (uevents), and once when it watches, since something may have changed
// before. What it was is not told: changed is to look, and must not block long. Messages that were
// lost count as a change. It returns when ctx ends, with nil, or when it can watch no more.
func (m *Machine) Watch(ctx context.Context, changed func()) error {
	links, err := subscribe(unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	defer links.Close()
	const kernelGroup = 1 // the other one is udev's
	events, err := subscribe(unix.NETLINK_KOBJECT_UEVENT, kernelGroup)
	if err != nil {
		return fmt.Errorf("watch devices: %w", err)
	}
	defer events.Close()
	stop := context.AfterFunc(ctx, func() { // what waits in a read ends with its file
		_ = links.Close()
		_ = events.Close()
	})
	defer stop()
	changed()
	ended := make(chan error, 1)
	go func() {
		err := follow(events, changed, ofDevices)
		ended <- errors.Join(err, links.Close()) // neither watches without the other
	}()
	err = errors.Join(follow(links, changed, func([]byte) bool { return true }), events.Close(), <-ended)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // that is how it was to end
	}
	return fmt.Errorf("watch: %w", err)
}

// subscribe opens a netlink socket in the namespace of the process that gets a group's messages.
// The file can be closed while it is read.
func subscribe(protocol, group int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: uint32(group)}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// follow reads messages until the file is closed.
func follow(file *os.File, changed func(), matters func([]byte) bool) error {
	const most = 64 << 10 // what is longer is cut, and its beginning says enough
	buffer := make([]byte, most)
	for {
		n, err := file.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS): // there were too many
			changed()
		case err != nil:
			return err
		case matters(buffer[:n]):
			changed()
		}
	}
}

// ofDevices tells whether a uevent is about a network or PCI device: "ACTION@path", then NAME=value,
// each with a zero behind it.
func ofDevices(event []byte) bool {
	for part := range bytes.SplitSeq(event, []byte{0}) {
		if kind, ok := bytes.CutPrefix(part, []byte("SUBSYSTEM=")); ok {
			return string(kind) == "net" || string(kind) == "pci"
		}
	}
	return false
}
