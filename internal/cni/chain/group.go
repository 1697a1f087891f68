// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
)

// Group is the process group of one plugin.
type Group struct {
	ID int // number of the group, and of its leader
	// Start is the leader's start time in clock ticks since boot (field 22 of
	// /proc/<pid>/stat): together with ID it names one process of this boot.
	Start uint64
}

func groupOf(pid int) Group {
	s, _ := readStat(pid) // a child that is not reaped has one
	return Group{ID: pid, Start: s.start}
}

// holders gives the processes, other than this one, that have the flock of lock's file:
// those that share the locked open file itself, not those that merely wait for the lock.
// It maps their numbers to their start times. Each start time is read before the
// process is looked into: a number that changes hands meanwhile shows then.
func holders(lock *os.File) (map[int]uint64, error) {
	info, err := lock.Stat()
	if err != nil {
		return nil, err
	}
	inode, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("read inode: not a file of this system")
	}
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	found := map[int]uint64{}
	for _, pid := range pids {
		s, err := readStat(pid)
		if err != nil || !s.alive() || pid == os.Getpid() {
			continue
		}
		if holds(pid, info, fmt.Appendf(nil, ":%d ", inode.Ino)) {
			found[pid] = s.start
		}
	}
	return found, nil
}

// holds looks through a process's descriptors. The kernel tells in fdinfo which lock an
// open file carries; the files themselves are looked at only when the inode's number
// fits, because looking at a file of a dead network file system hangs.
func holds(pid int, lock fs.FileInfo, inode []byte) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(dir, "fdinfo"))
	if err != nil {
		return false // gone, or not ours to look at
	}
	for _, fd := range fds {
		text, err := brief.ReadFile(filepath.Join(dir, "fdinfo", fd.Name()))
		if err != nil || !bytes.Contains(text, []byte("FLOCK")) || !bytes.Contains(text, inode) {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, "fd", fd.Name()))
		if err == nil && os.SameFile(info, lock) {
			return true
		}
	}
	return false
}

// EndGroup kills what a killed weft-cni left behind and waits until it is gone: every
// process that has the flock of lock's file (may be nil), and the processes of g when g
// is known to be that group still, not one that got its number later. It is known by its
// leader's start time, or, when the leader is gone, by a member that has the lock.
//
// The caller makes sure that no living weft-cni has the lock.
func EndGroup(ctx context.Context, g Group, lock *os.File) error {
	e := ending{group: g, lock: lock, known: map[int]uint64{}}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left, err := e.pass()
		if err != nil {
			return fmt.Errorf("end process group %d: %w", g.ID, err)
		}
		if left == 0 {
			return nil
		}
		if err := brief.Sleep(ctx, pause); err != nil {
			return fmt.Errorf("end process group %d: %d processes are left: %w", g.ID, left, err)
		}
	}
}

// ending is an EndGroup at work.
type ending struct {
	group Group
	lock  *os.File
	known map[int]uint64 // group members seen so far: pid to start time
}

// pass kills what is to be ended and says how many processes that were.
func (e *ending) pass() (int, error) {
	victims := map[int]uint64{}
	if e.lock != nil {
		var err error
		if victims, err = holders(e.lock); err != nil {
			return 0, fmt.Errorf("find holders of %s: %w", e.lock.Name(), err)
		}
	}
	members, err := e.members(victims)
	if err != nil {
		return 0, err
	}
	maps.Copy(victims, members)
	for pid, start := range victims {
		if err := kill(pid, start); err != nil {
			return 0, err
		}
	}
	return len(victims), nil
}

// members gives the living processes of the group if it is the one that is meant.
func (e *ending) members(holders map[int]uint64) (map[int]uint64, error) {
	if e.group.ID <= 1 || e.group.ID == syscall.Getpgrp() {
		return nil, nil
	}
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	members, meant := map[int]uint64{}, false
	for _, pid := range pids {
		s, err := readStat(pid)
		if err != nil || s.group != e.group.ID || pid == os.Getpid() {
			continue
		}
		// A member that was seen in the right group proves that the group lasted.
		_, holder := holders[pid]
		meant = meant || holder || e.known[pid] == s.start || pid == e.group.ID && s.start == e.group.Start
		if s.alive() {
			members[pid] = s.start
		}
	}
	if !meant {
		return nil, nil
	}
	maps.Copy(e.known, members)
	return members, nil
}

// kill kills one process, named by number and start time. os.FindProcess takes hold of
// the process by a descriptor, so what is checked after it is what gets the signal.
func kill(pid int, start uint64) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil // gone
	}
	defer p.Release() //nolint:errcheck // it only lets go of the descriptor
	if s, err := readStat(pid); err != nil || s.start != start {
		return nil
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// stat is the part of /proc/<pid>/stat that matters here.
type stat struct {
	state byte
	group int
	start uint64
}

// alive is false for a process that has ended and only waits to be reaped.
func (s stat) alive() bool { return s.state != 'Z' && s.state != 'X' }

func readStat(pid int) (stat, error) {
	b, err := brief.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat reads field 3 (state), 5 (process group) and 22 (start time). Field 2, the
// name in parentheses, may hold spaces and parentheses.
func parseStat(b []byte) (stat, error) {
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("parse process stat: %d fields after the name", len(fields))
	}
	group, err := strconv.Atoi(string(fields[2]))
	if err != nil {
		return stat{}, fmt.Errorf("parse process group: %w", err)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("parse start time: %w", err)
	}
	return stat{state: fields[0][0], group: group, start: start}, nil
}

func processes() ([]int, error) {
	dir, err := brief.OpenFile("/proc", os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // opened for reading
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
