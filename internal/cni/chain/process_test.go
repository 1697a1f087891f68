// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/test/binaries"
)

// hands makes this test binary play a weft-cni that is to be killed: it locks a file and
// runs ADD with the lock inherited.
const hands = "WEFT_TEST_HANDS"

type handsCall struct {
	Lock string
	Call chain.Call
}

func TestMain(m *testing.M) {
	if text := os.Getenv(hands); text != "" {
		if err := playHands(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func playHands(text string) error {
	var h handsCall
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return err
	}
	lock, err := os.Open(h.Lock)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	h.Call.Inherit = []*os.File{lock}
	h.Call.Started = func(i int, g chain.Group) { fmt.Fprintln(os.Stdout, i, g.ID, g.Start) }
	_, err = chain.New(os.Stderr, nil).Add(context.Background(), h.Call)
	return err
}

// startHands starts such a process and gives the group that it started.
func startHands(t *testing.T, b *bench, lock string) (*exec.Cmd, chain.Group) {
	t.Helper()
	b.call.Started = nil
	text, err := json.Marshal(struct {
		Lock string
		Call any
	}{lock, map[string]any{
		"Network": b.call.Network, "ContainerID": b.call.ContainerID, "Netns": b.call.Netns, "IfName": b.call.IfName, "Path": b.call.Path,
	}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hands+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read started group: %v", err)
	}
	var plugin int
	var g chain.Group
	if _, err := fmt.Sscan(line, &plugin, &g.ID, &g.Start); err != nil || plugin != 0 {
		t.Fatalf("started %q: %v", line, err)
	}
	return cmd, g
}

// within polls something real until it is so.
func within(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s still not: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// alive reports whether a process runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func lockFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// free reports whether a file's lock can be had, without keeping it.
func free(t *testing.T, f *os.File) bool {
	t.Helper()
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	return true
}

// At the deadline the plugin is killed, and so is the child that it had started.
func TestDeadlineKillsTheGroup(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa","child":{"ADD":"1m"},"sleep":{"ADD":"1m"}`)
	var group chain.Group
	b.call.Started = func(_ int, g chain.Group) { group = g }
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	_, err := runner(nil).Add(ctx, b.call)
	e := chainError(t, err)
	if e.Code != 104 || !errors.Is(err, context.DeadlineExceeded) || e.Msg != "killed with its process group: context deadline exceeded" {
		t.Errorf("error %d %q", e.Code, e.Msg)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v, want about the deadline of 1s", took)
	}
	within(t, "no process of the group is left", func() bool { return syscall.Kill(-group.ID, 0) != nil || !anyAlive(t, group.ID) })
}

// anyAlive reports whether a process group has a running process.
func anyAlive(t *testing.T, group int) bool {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) > 2 && f[0] != "Z" && f[2] == strconv.Itoa(group) {
			return true
		}
	}
	return false
}

// A call that is over before it starts runs nothing.
func TestCancelledRunsNothing(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa"`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := runner(nil).Add(ctx, b.call); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	b.wantOrder()
}

// A process that a plugin leaves behind with its pipes open delays the answer by no
// more than the drain time, does not spoil it, and is left alone.
func TestChildHoldsThePipes(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa","child":{"ADD":"1m"}`)
	began := time.Now()
	out, err := runner(nil).Add(t.Context(), b.call)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := out.Bytes(); err != nil || strings.TrimSpace(string(raw)) != `{"cniVersion":"1.0.0"}` {
		t.Errorf("result %q, %v", raw, err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	child := b.records(true)[0].Child
	if !alive(child) {
		t.Errorf("child %d was killed", child)
	}
	if p, err := os.FindProcess(child); err == nil {
		_ = p.Kill()
	}
}

// A binary that is being written at this moment is waited for.
func TestBusyBinary(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa"`)
	binary := filepath.Join(b.dir, "pa")
	data, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(binary); err != nil { // it may be linked to others
		t.Fatal(err)
	}
	w, err := os.OpenFile(binary, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(50*time.Millisecond, func() { _ = w.Close() })
	defer timer.Stop()
	if _, err := runner(nil).Add(t.Context(), b.call); err != nil {
		t.Error(err)
	}
}

// When weft-cni is killed its delegate still has the lock; EndGroup ends the delegate
// and its children, and the lock is free.
func TestLockOutlivesTheHands(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa","detail":true,"sleep":{"ADD":"1m"},"child":{"ADD":"1m"}`)
	lock := lockFile(t)
	cmd, g := startHands(t, b, lock.Name())
	within(t, "the delegate is at work", func() bool { return len(b.records(false)) == 1 })
	call := b.records(false)[0]
	if call.PID != g.ID {
		t.Errorf("group %d, want the delegate's own, %d", g.ID, call.PID)
	}
	if !slices.Equal(call.FDs, []int{3}) {
		t.Errorf("delegate inherited descriptors %v, want the lock as 3", call.FDs)
	}
	if held, err := chain.Holders(lock); err != nil || !slices.Contains(held, cmd.Process.Pid) || !slices.Contains(held, call.PID) {
		t.Errorf("holders %v, %v; want the hands %d and the delegate %d", held, err, cmd.Process.Pid, call.PID)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if free(t, lock) {
		t.Error("the lock is free with the delegate still running")
	}
	if held, err := chain.Holders(lock); err != nil || slices.Contains(held, cmd.Process.Pid) || !slices.Contains(held, call.PID) {
		t.Errorf("holders %v, %v; want the delegate %d, not the hands", held, err, call.PID)
	}
	if err := chain.EndGroup(t.Context(), g, lock); err != nil {
		t.Fatal(err)
	}
	if alive(call.PID) || anyAlive(t, g.ID) {
		t.Error("processes of the group still run")
	}
	if !free(t, lock) {
		t.Error("the lock is still held")
	}
}

// The delegate itself has ended, its children have not: one in its group, which is known
// by the lock, or one in a session of its own, which has nothing but the lock.
func TestEndGroupWithoutLeader(t *testing.T) {
	for _, session := range []bool{false, true} {
		t.Run(fmt.Sprintf("session %v", session), func(t *testing.T) {
			b := newBench(t, "1.0.0", fmt.Sprintf(`"type":"pa","child":{"ADD":"1m"},"session":%v`, session), `"type":"pb","sleep":{"ADD":"1m"}`)
			lock := lockFile(t)
			cmd, g := startHands(t, b, lock.Name())
			within(t, "the second delegate is at work", func() bool { return len(b.records(false)) == 2 })
			child := b.records(true)[0].Child
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if alive(g.ID) || !alive(child) {
				t.Fatalf("leader alive: %v, child alive: %v; want the child alone", alive(g.ID), alive(child))
			}
			// The first plugin's group is given: the second's leader is found by the lock.
			if err := chain.EndGroup(t.Context(), g, lock); err != nil {
				t.Fatal(err)
			}
			if alive(child) || alive(b.records(false)[1].PID) || !free(t, lock) {
				t.Error("something was left")
			}
		})
	}
}

// What is not known to be the group that is meant is left alone.
func TestEndGroupSparesOthers(t *testing.T) {
	lock := lockFile(t)
	dir := binaries.Delegate(t, "pa")
	sleeper := func(files ...*os.File) *exec.Cmd {
		cmd := exec.Command(filepath.Join(dir, "pa"))
		cmd.Env = []string{"DELEGATE_CHILD=1m"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.ExtraFiles = files
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	t.Run("a number that went to another process", func(t *testing.T) {
		other := sleeper()
		if err := chain.EndGroup(t.Context(), chain.Group{ID: other.Process.Pid, Start: 1}, lock); err != nil {
			t.Fatal(err)
		}
		if !alive(other.Process.Pid) {
			t.Error("a process with another start time was killed")
		}
	})
	t.Run("one that waits for the lock", func(t *testing.T) {
		opened, err := os.Open(lock.Name())
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		defer syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
		waiter, holder := sleeper(opened), sleeper(lock)
		if held, err := chain.Holders(lock); err != nil || !slices.Equal(held, []int{holder.Process.Pid}) {
			t.Errorf("holders %v, %v; want %d alone", held, err, holder.Process.Pid)
		}
		if err := chain.EndGroup(t.Context(), chain.Group{}, opened); err != nil {
			t.Fatal(err)
		}
		if !alive(waiter.Process.Pid) || alive(holder.Process.Pid) {
			t.Errorf("waiter alive %v, holder alive %v", alive(waiter.Process.Pid), alive(holder.Process.Pid))
		}
	})
	t.Run("a group without leader and lock", func(t *testing.T) {
		b := newBench(t, "1.0.0", `"type":"pa","child":{"ADD":"1m"}`)
		var g chain.Group
		b.call.Started = func(_ int, started chain.Group) { g = started }
		if _, err := runner(nil).Add(t.Context(), b.call); err != nil {
			t.Fatal(err)
		}
		child := b.records(true)[0].Child
		if err := chain.EndGroup(t.Context(), g, lock); err != nil {
			t.Fatal(err)
		}
		if !alive(child) {
			t.Error("a process that nothing ties to the group was killed")
		}
		if p, err := os.FindProcess(child); err == nil {
			_ = p.Kill()
		}
	})
	t.Run("this process", func(t *testing.T) {
		if err := chain.EndGroup(t.Context(), chain.Group{ID: syscall.Getpgrp(), Start: 1}, nil); err != nil {
			t.Fatal(err)
		}
	})
}
