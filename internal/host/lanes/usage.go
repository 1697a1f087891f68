// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Usage is how the lanes stand.
type Usage struct {
	Limit int
	Kept  int // of these, for urgent calls alone
	InUse int
	// Waiting are the calls that have no slot yet. Where the kernel does not say who waits
	// (its list of locks names another device than the file system), it is at most one of a kind.
	Waiting, WaitingUrgent int
}

// Look says how the lanes of a state directory stand, without making anything there: of a
// node that never had a delegate nothing is in use. A lock is tried for a moment, as a
// shared one; who comes by then looks again a millisecond later.
func Look(stateDir string, limit int) (Usage, error) {
	l := newLanes(filepath.Join(stateDir, "lanes"), limit)
	u := Usage{Limit: l.limit, Kept: l.kept}
	entries, err := os.ReadDir(l.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return u, nil
	case err != nil:
		return u, fmt.Errorf("look at lanes: %w", err)
	}
	var faults []error
	for _, e := range entries {
		taken, err := l.taken(e.Name())
		if err != nil {
			faults = append(faults, fmt.Errorf("look at lanes: %w", err))
		}
		if _, err := strconv.Atoi(e.Name()); err == nil && taken { // also one beyond the limit, which was higher before
			u.InUse++
		}
		if !taken {
			continue
		}
		switch e.Name() {
		case "gate":
			u.Waiting = 1 + l.behind(e.Name())
		case "gate-urgent":
			u.WaitingUrgent = 1 + l.behind(e.Name())
		}
	}
	return u, errors.Join(faults...)
}

// taken says whether somebody has the lock of a file.
func (l *Lanes) taken(name string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(l.dir, name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) // closing lets it go
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// behind counts those who sleep in the kernel until a file's lock is theirs.
func (l *Lanes) behind(name string) (n int) {
	info, err := os.Stat(filepath.Join(l.dir, name))
	if err != nil {
		return 0
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer locks.Close()
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // 1: -> FLOCK ADVISORY WRITE pid device:inode 0 EOF
		if len(fields) > 6 && fields[1] == "->" && fields[2] == "FLOCK" && fields[6] == file {
			n++
		}
	}
	return n
}
