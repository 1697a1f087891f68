// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/test/lab/box"
	"github.com/weftnet/weft/test/lab/vm/order"
)

// enter makes a mounted file system the root, with all that is mounted elsewhere: containers want to
// leave their root, and the first one that a kernel has cannot be left.
func enter(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, at := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/share"} {
		target := filepath.Join(root, at)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(at, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move mount %s: %w", at, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// serve does what comes through the owner's port, until it is closed.
func serve() error {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return err
	}
	for _, file := range names {
		name, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(name)) != order.Port {
			continue
		}
		port, err := os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(file))), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return box.Serve(port)
	}
	return fmt.Errorf("there is no port %s among %v", order.Port, names)
}
