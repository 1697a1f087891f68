// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// unified says whether the machine has nothing but cgroup v2.
func unified() bool {
	var s unix.Statfs_t
	return unix.Statfs(cgroupRoot, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// hierarchies are the directories below which a node has its own: all of v1's, or v2's one. The
// one of v2 that may be beside v1 has no controllers, but runc keeps track of processes there.
func hierarchies() ([]string, error) {
	if unified() {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() { // a link is another name of a hierarchy
			all = append(all, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return all, nil
}

// makeCgroup makes a cgroup of that name in every hierarchy: kubelets that share a root would
// clean up each other's pods.
func makeCgroup(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if unified() {
			if err := delegate(h, dir); err != nil {
				return err
			}
		}
		// A v1 cpuset takes no process before it has these.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h, f))
			if unified() || errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, f), value, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate lets the children of a v2 cgroup use every controller that it can have.
func delegate(parent, dir string) error {
	controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, d := range []string{parent, dir} {
		for c := range strings.FieldsSeq(string(controllers)) {
			// One by one: a controller that cannot be had must not cost the others.
			os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+"+c), 0o644) //nolint:errcheck // kubelet names those it misses
		}
	}
	return nil
}

// removeCgroup removes the cgroup of that name with all below it, once the processes that were
// in it are gone; they have been killed.
func removeCgroup(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, h := range all {
		dir := filepath.Join(h, name)
		for {
			err := removeTree(dir)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove cgroup: %w", err)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	return nil
}

// removeTree removes directories from the leaves up; the files in them are the kernel's.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}
