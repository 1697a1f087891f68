// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package proc_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/proc"
)

// shell starts a shell whose output can be read.
func shell(t *testing.T, script string) (*proc.Child, *os.File) {
	t.Helper()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	path := t.TempDir() + "/script"
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	out := os.NewFile(uintptr(ends[0]), "out")
	t.Cleanup(func() { _ = out.Close() })
	c, err := proc.Start(path, []string{"PATH=" + os.Getenv("PATH"), "ONE=1"}, []uintptr{in.Fd(), uintptr(ends[1]), uintptr(ends[1])})
	_ = syscall.Close(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	return c, out
}

func TestChild(t *testing.T) {
	for script, want := range map[string]struct{ said, end string }{
		"echo $ONE $HOME":          {"1\n", "exit status 0"},
		"exit 3":                   {"", "exit status 3"},
		"kill -9 $$":               {"", "signal: killed"},
		"ls /proc/self/fd | wc -l": {"4\n", "exit status 0"}, // 0 to 2 and that of ls itself
	} {
		c, out := shell(t, script)
		said, err := io.ReadAll(out)
		if err != nil || string(said) != want.said {
			t.Errorf("%s: said %q, %v; want %q", script, said, err, want.said)
		}
		for ended := false; !ended; {
			if ended, err = c.Wait(20 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
		// Seen, not reaped: it still has its number.
		if err := syscall.Kill(c.PID, 0); err != nil {
			t.Errorf("%s: after Wait: %v", script, err)
		}
		if exit, err := c.Reap(); err != nil || exit.Error() != want.end {
			t.Errorf("%s: ended with %v, %v; want %s", script, exit, err, want.end)
		}
		c.Kill() // does nothing
	}
}

func TestKillEndsTheGroup(t *testing.T) {
	c, out := shell(t, "sleep 60 & echo; sleep 60")
	if group, err := syscall.Getpgid(c.PID); err != nil || group != c.PID {
		t.Errorf("process group %d, %v; want its own", group, err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if ended, err := c.Wait(0); ended || err != nil {
		t.Errorf("ended: %v, %v before the kill", ended, err)
	}
	c.Kill()
	if exit, err := c.Reap(); err != nil || !exit.Killed() {
		t.Errorf("ended with %v, %v", exit, err)
	}
	// The end of the pipe comes when nobody has it any more, the child's child included.
	if _, err := io.ReadAll(out); err != nil {
		t.Error(err)
	}
}

func TestStartFaults(t *testing.T) {
	for path, want := range map[string]error{t.TempDir() + "/none": fs.ErrNotExist, t.TempDir(): fs.ErrPermission} {
		if _, err := proc.Start(path, nil, []uintptr{0, 1, 2}); !errors.Is(err, want) {
			t.Errorf("start %s: %v", path, err)
		}
	}
}

func TestPoll(t *testing.T) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(ends[0])
	defer syscall.Close(ends[1])
	p := unix.PollFd{Fd: int32(ends[0]), Events: unix.POLLIN}
	if err := proc.Poll(0, &p); err != nil || p.Revents != 0 {
		t.Errorf("empty pipe: %#x, %v", p.Revents, err)
	}
	if _, err := syscall.Write(ends[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := proc.Poll(-1, &p); err != nil || p.Revents != unix.POLLIN {
		t.Errorf("full pipe: %#x, %v", p.Revents, err)
	}
}
