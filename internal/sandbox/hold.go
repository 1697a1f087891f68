// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/journal"
)

// Holder is the process that keeps a sandbox.
type Holder struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, so that a reused PID is not taken for it
	User  bool   `json:"user"`  // it has a user namespace of its own

	down string // command that takes it down
}

// newHolder identifies a running process.
func newHolder(pid int, user bool) (*Holder, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("read process: %w", err)
	}
	return &Holder{PID: pid, Start: parseStat(string(stat)).start, User: user}, nil
}

func (h *Holder) process() journal.Process { return journal.Process{PID: h.PID, Start: h.Start} }

// Enter is a shell command that runs a shell in the namespace at path.
func (h *Holder) Enter(path string) string {
	user := ""
	if h.User {
		user = " -U --preserve-credentials"
	}
	return fmt.Sprintf("nsenter -t %d%s -m -p -n nsenter --net=%s sh", h.PID, user, path)
}

// place is the user's directory where one kept sandbox is remembered.
type place struct {
	dir  string
	lock *os.File
	log  *os.File // what the holder says when it ends
}

const (
	holderFile = "holder.json"
	logFile    = "log"
)

// ErrKept tells that a sandbox is kept already.
var ErrKept = errors.New("a sandbox is kept already")

// ErrNotKept tells that there is no kept sandbox.
var ErrNotKept = errors.New("no sandbox is kept")

// newPlace prepares the directory for a sandbox to keep.
func newPlace(dir string) (*place, error) {
	given := dir
	dir, err := stateHome(dir)
	if err != nil {
		return nil, err
	}
	p := &place{dir: dir}
	if p.lock, err = lock(dir); err != nil {
		return nil, err
	}
	if h, err := remembered(dir); err == nil && journal.Alive(h.process()) {
		return nil, errors.Join(fmt.Errorf("%w (process %d); take it down first: %s", ErrKept, h.PID, downCommand(given)), p.lock.Close())
	}
	p.log, err = os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open log of the sandbox: %w", err), p.lock.Close())
	}
	return p, nil
}

// lock keeps a directory to one run --keep or down until the file is closed: of two
// sandboxes only one could be remembered, and the other would be nobody's.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("use state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another weft sandbox is being kept or taken down here, wait for it")
		}
		return nil, errors.Join(fmt.Errorf("lock state directory %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// downCommand takes down the sandbox that is remembered in the directory given by a flag.
func downCommand(stateDir string) string {
	if stateDir == "" {
		return "weft sandbox down"
	}
	return "weft sandbox down --state-dir " + shellWord(stateDir)
}

// shellWord is a text as one word of a shell's command.
func shellWord(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-+,@%:=", r)
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func (p *place) close() {
	p.log.Close()
	p.lock.Close()
}

func (p *place) remember(h *Holder) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, holderFile), append(data, '\n'), 0o600)
}

func remembered(dir string) (*Holder, error) {
	data, err := os.ReadFile(filepath.Join(dir, holderFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotKept
	}
	if err != nil {
		return nil, fmt.Errorf("read kept sandbox: %w", err)
	}
	h := &Holder{}
	if err := json.Unmarshal(data, h); err != nil {
		return nil, fmt.Errorf("read kept sandbox: %w", err)
	}
	return h, nil
}

// stateHome is the given directory, else one in the user's cache, else one below the temporary
// directory. It is made private to the user, and refused when it is somebody else's.
func stateHome(dir string) (string, error) {
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("weft-%d", os.Geteuid()), "sandbox")
		if cache, err := os.UserCacheDir(); err == nil && os.MkdirAll(cache, 0o700) == nil {
			dir = filepath.Join(cache, "weft", "sandbox")
		}
	}
	file, err := journal.PrivateDir(dir)
	if err != nil {
		return "", fmt.Errorf("use state directory: %w", err)
	}
	return dir, file.Close()
}

// Down ends the kept sandbox and reports what its deletion found. The error is ErrNotKept
// when there is none.
func Down(ctx context.Context, dir string) (*Report, error) {
	if _, err := os.Stat(dir); dir != "" && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist", ErrNotKept, dir)
	}
	dir, err := stateHome(dir)
	if err != nil {
		return nil, err
	}
	alone, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer alone.Close()
	h, err := remembered(dir)
	if err != nil {
		return nil, err
	}
	ended, err := h.end(ctx)
	if err != nil {
		return nil, err
	}
	report, err := lastReport(filepath.Join(dir, logFile))
	if forget := os.Remove(filepath.Join(dir, holderFile)); forget != nil {
		return nil, fmt.Errorf("forget sandbox: %w", forget)
	}
	if !ended {
		return nil, fmt.Errorf("%w: its process %d ended by itself, and everything of it with it", ErrNotKept, h.PID)
	}
	return report, err
}

// end tells the holder to take down and waits for its end; false when it does not run any
// more. The descriptor stays with one process, so that no other one is ever signalled.
func (h *Holder) end(ctx context.Context) (bool, error) {
	fd, err := unix.PidfdOpen(h.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", h.PID, err)
	}
	defer unix.Close(fd)
	if !journal.Alive(h.process()) {
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return false, fmt.Errorf("end process %d: %w", h.PID, err)
	}
	if ok, err := waitEnd(ctx, fd, stopTime); ok || err != nil {
		return ok, err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return false, fmt.Errorf("kill process %d: %w", h.PID, err)
	}
	return waitEnd(ctx, fd, stopTime)
}

// waitEnd waits until the process behind a pidfd has ended, and tells whether it has.
func waitEnd(ctx context.Context, fd int, limit time.Duration) (bool, error) {
	for until := time.Now().Add(limit); time.Now().Before(until) && ctx.Err() == nil; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		switch n, err := unix.Poll(poll, 100); {
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("wait for process: %w", err)
		case n > 0:
			return true, nil
		}
	}
	return false, ctx.Err()
}

// lastReport reads what the holder found when it took down.
func lastReport(file string) (*Report, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read log of the sandbox: %w", err)
	}
	defer f.Close()
	var last *Report
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var a answer
		// Other lines are what plugins wrote to stderr.
		if json.Unmarshal(lines.Bytes(), &a) == nil && a.Report != nil {
			last = a.Report
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read log of the sandbox: %w", err)
	}
	if last == nil {
		return nil, fmt.Errorf("take down: the sandbox ended without saying what it found; see %s", file)
	}
	return last, nil
}
