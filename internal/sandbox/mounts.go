// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// covered are the directories that plugins write to: inside the sandbox they are empty
// memory file systems, and everything else of the machine is read-only.
func covered() []string { return []string{"/run", "/var/lib", "/var/log", "/tmp"} }

// setUpMounts makes the sandbox's file system from the copy of the machine's mounts that a
// new mount namespace starts with. keep are directories that must stay visible, at their paths.
func setUpMounts(keep []string) error {
	kept, err := openCovered(keep)
	defer func() {
		for _, f := range kept {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	readOnly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, readOnly); err != nil {
		return fmt.Errorf("make the machine's files read-only: %w", err)
	}
	for _, dir := range covered() {
		mode := "mode=755"
		if dir == "/tmp" {
			mode = "mode=1777"
		}
		err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, mode)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	// A new process namespace needs its own view of /proc, a new network one its own of /sys.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return showAgain(kept)
}

// openCovered opens those directories of keep that will be covered.
func openCovered(keep []string) ([]*os.File, error) {
	var open []*os.File
	for _, dir := range keep {
		under := func(c string) bool { return dir == c || strings.HasPrefix(dir, c+"/") }
		if !slices.ContainsFunc(covered(), under) {
			continue
		}
		f, err := os.Open(dir)
		if err != nil {
			return open, fmt.Errorf("open directory: %w", err)
		}
		open = append(open, f)
	}
	return open, nil
}

// showAgain binds open directories to their paths, over what covers them.
func showAgain(dirs []*os.File) error {
	for _, f := range dirs {
		if err := os.MkdirAll(f.Name(), 0o755); err != nil {
			return fmt.Errorf("show directory again: %w", err)
		}
		source := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		if err := unix.Mount(source, f.Name(), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("show %s again: %w", f.Name(), err)
		}
	}
	return nil
}

// realDir is a directory's path without symbolic links, so that it can be compared with covered ones.
func realDir(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find directory %s: %w", path, err)
	}
	abs, err = filepath.EvalSymlinks(abs)
	if err != nil {
		return "", fmt.Errorf("find directory: %w", err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", fmt.Errorf("find directory: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("find directory: %s is a file", path)
	}
	return abs, nil
}
