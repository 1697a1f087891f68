// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// machine is what the figures depend on.
type machine struct {
	cores      int
	cpu        string
	kernel     string
	fileSystem string
	golang     string
	load       string // processes that wanted to run, over the last minute, before measuring began
}

// inspect describes the machine and the disk that dir is on, which must be a real
// one: on a file system in memory a sync costs nothing, and nothing would be compared.
func inspect(dir string) (machine, error) {
	m := machine{cores: runtime.NumCPU(), golang: strings.TrimPrefix(runtime.Version(), "go")}
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		return m, fmt.Errorf("read kernel version: %w", err)
	}
	var release []byte
	for _, c := range uts.Release {
		// What distributors add to the version says nothing here.
		if (c < '0' || c > '9') && c != '.' {
			break
		}
		release = append(release, byte(c))
	}
	m.kernel = string(release)
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.cpu = cpuModel(info)
	}
	if average, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.load, _, _ = strings.Cut(string(average), " ")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return m, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return m, err
	}
	m.fileSystem = fileSystem(string(mounts), dir)
	switch m.fileSystem {
	case "tmpfs", "ramfs", "":
		return m, fmt.Errorf("measure on %q: the state folder must be on a real disk (-state)", m.fileSystem)
	}
	return m, nil
}

// cpuModel is the first processor's name in /proc/cpuinfo, "" where it has none.
func cpuModel(info []byte) string {
	for line := range bytes.Lines(info) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(key)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// fileSystem is the type of the file system that dir (absolute, no links) is on,
// from /proc/self/mountinfo: the longest mount point that holds it, the last of equals.
func fileSystem(mountinfo, dir string) string {
	best, kind := -1, ""
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		fields, types := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(types) < 1 {
			continue
		}
		point := strings.TrimSuffix(fields[4], "/")
		if (dir == point || strings.HasPrefix(dir, point+"/")) && len(point) >= best {
			best, kind = len(point), types[0]
		}
	}
	return kind
}
