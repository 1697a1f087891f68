// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package held says what a process still has of a pod that has gone: a mount, a thread or a file in a
// namespace of the pod's keeps the pod's end from being one.
//
// It only reads /proc, and knows nothing of Weft or of who is looked at.
//
// Implements: architecture 4.7.
package held

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Mounts says which process has a mount that a text names, as a pod's UID does those of its volumes.
func Mounts(text string) error {
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return err
	}
	for _, file := range files {
		if mounts, err := os.ReadFile(file); err == nil && bytes.Contains(mounts, []byte(text)) {
			return fmt.Errorf("its mounts are in %s", file)
		}
	}
	return nil
}

// Foreign says which thread or file of a process is in a namespace that is not the process' own.
func Foreign(pid int) error {
	proc := "/proc/" + strconv.Itoa(pid)
	for _, kind := range []string{"mnt", "net", "pid"} {
		if err := threads(proc, kind); err != nil {
			return err
		}
	}
	return files(proc)
}

// threads looks at the namespaces of one kind.
func threads(proc, kind string) error {
	own, err := os.Readlink(proc + "/ns/" + kind)
	if err != nil {
		return err
	}
	all, err := filepath.Glob(proc + "/task/*/ns/" + kind)
	if err != nil {
		return err
	}
	for _, thread := range all {
		if ns, err := os.Readlink(thread); err == nil && ns != own {
			return fmt.Errorf("%s is %s, not %s", thread, ns, own)
		}
	}
	return nil
}

// files looks at what mounts the open files are in.
func files(proc string) error {
	text, err := os.ReadFile(proc + "/mountinfo")
	if err != nil {
		return err
	}
	var mounts []string
	for line := range strings.Lines(string(text)) {
		id, _, _ := strings.Cut(line, " ")
		mounts = append(mounts, id)
	}
	open, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return err
	}
	for _, f := range open {
		path, err := os.Readlink(proc + "/fd/" + f.Name())
		// The runtime gave it the first three; what is no path has no mount.
		if err != nil || len(f.Name()) == 1 && f.Name() < "3" || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/memfd:") {
			continue
		}
		info, err := os.ReadFile(proc + "/fdinfo/" + f.Name())
		if err != nil {
			continue
		}
		_, id, _ := strings.Cut(string(info), "mnt_id:")
		id, _, _ = strings.Cut(id, "\n")
		if id = strings.TrimSpace(id); !slices.Contains(mounts, id) {
			return fmt.Errorf("file %s (%s) is in mount %s, which is none of its own", f.Name(), path, id)
		}
	}
	return nil
}
