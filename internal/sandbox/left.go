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
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
)

// leftInPod lists what DEL should have removed from a pod's namespace.
func leftInPod(s sandboxed) ([]string, error) {
	n, err := kernel.OpenNetns(s.netns)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	names, err := linkNames(n)
	var left []string
	for _, name := range names {
		if name != "lo" {
			left = append(left, fmt.Sprintf("interface %s of pod %s/%s", name, s.pod.Namespace, s.pod.Name))
		}
	}
	return left, err
}

// leftOnHost lists what is on the host after every pod was deleted, beyond what was there
// before. Bridges are removed first: the plugin that makes them leaves them for later pods.
func (h *host) leftOnHost(w wants) ([]string, error) {
	names, err := linkNames(h.netns)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, name := range names {
		if slices.Contains(h.links, name) {
			continue
		}
		if slices.Contains(w.bridges, name) {
			if err := h.netns.RemoveLink(name); err != nil {
				return nil, err
			}
			continue
		}
		left = append(left, "host interface "+name)
	}
	for _, name := range h.links {
		if !slices.Contains(names, name) {
			left = append(left, "host interface "+name+", which did not come back")
		}
	}
	for _, dir := range w.dataDirs {
		files, err := filesBelow(dir, isAddress)
		if err != nil {
			return nil, err
		}
		left = append(left, prefixed("address file ", files)...)
	}
	return left, nil
}

// leftOfWeft lists records, namespaces and processes.
func leftOfWeft() ([]string, error) {
	var left []string
	for _, sub := range []string{"attachments", "devices", "sweep", "quarantine"} {
		files, err := filesBelow(filepath.Join(stateDir, sub), func(string) bool { return true })
		if err != nil {
			return nil, err
		}
		left = append(left, prefixed("record ", files)...)
	}
	files, err := filesBelow(netnsDir, func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	left = append(left, prefixed("network namespace ", files)...)
	processes, err := ownProcesses()
	return append(left, prefixed("process ", processes)...), err
}

func prefixed(prefix string, names []string) []string {
	var all []string
	for _, n := range names {
		all = append(all, prefix+n)
	}
	return all
}

// isAddress tells host-local's files of addresses from its lock and its memory of the last one.
func isAddress(name string) bool {
	return name != "lock" && !strings.HasPrefix(name, "last_reserved_ip.")
}

// filesBelow lists the files of a tree whose names are meant; no tree, no files.
func filesBelow(dir string, meant func(name string) bool) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && meant(d.Name()) {
			files = append(files, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for files: %w", err)
	}
	return files, nil
}

// ownProcesses lists the processes that this one (the first of its process namespace)
// started or inherited; those that a user let in from outside (nsenter) are theirs.
func ownProcesses() ([]string, error) {
	// Children that ended are no processes any more once they were waited for.
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 || err != nil {
			break
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	parents, names := map[int]int{}, map[int]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat")); err == nil {
			p := parseStat(string(stat))
			names[pid], parents[pid] = p.name, p.parent
		}
	}
	var all []string
	for pid, name := range names {
		if pid != os.Getpid() && descends(pid, os.Getpid(), parents) {
			all = append(all, fmt.Sprintf("%d (%s)", pid, name))
		}
	}
	slices.Sort(all)
	return all, nil
}

// procStat is what is read of /proc/<pid>/stat.
type procStat struct {
	name   string
	parent int
	start  uint64 // clock ticks since boot
}

// parseStat reads a process's stat; the name may hold anything, so the last parenthesis ends
// it. What is no number reads as 0.
func parseStat(stat string) procStat {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return procStat{}
	}
	p := procStat{name: stat[open+1 : end]}
	if fields := strings.Fields(stat[end+1:]); len(fields) > 19 { // fields 3 to 22
		p.parent, _ = strconv.Atoi(fields[1])
		p.start, _ = strconv.ParseUint(fields[19], 10, 64)
	}
	return p
}

func descends(pid, from int, parents map[int]int) bool {
	for range len(parents) {
		if pid = parents[pid]; pid == from {
			return true
		}
	}
	return false
}
