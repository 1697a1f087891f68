// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package ptrace_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/test/crash/ptrace"
)

// The test binary is the traced program as well, with one of these as its second argument.
const (
	steps   = "steps"   // makes directories 0, 1, 2, … under its third argument, on changing threads
	parent  = "parent"  // starts a child that makes a directory, then waits for it
	child   = "child"   // that child
	looker  = "looker"  // reads files of /proc, then one of its third argument
	sleeper = "sleeper" // sleeps
)

const dirs = 6

func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		if program, ok := map[string]func(string) error{
			steps: runSteps, parent: runParent, child: runChild, looker: runLooker,
			sleeper: runSleeper,
		}[os.Args[1]]; ok {
			if program(os.Args[2]) != nil {
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// runSteps makes every directory on a thread of its own, one after the other.
func runSteps(dir string) error {
	var failed error
	for i := range dirs {
		var step sync.WaitGroup
		step.Go(func() {
			runtime.LockOSThread() // never unlocked: the next step is on another thread
			failed = errors.Join(failed, os.Mkdir(filepath.Join(dir, strconv.Itoa(i)), 0o700))
		})
		step.Wait()
	}
	return failed
}

func runParent(dir string) error {
	return exec.Command("/proc/self/exe", child, dir).Run()
}

// runChild shows that it outlives its parent: it goes on when its parent has changed.
func runChild(dir string) error {
	before := os.Getppid()
	if err := os.Mkdir(filepath.Join(dir, "born"), 0o700); err != nil {
		return err
	}
	// Bounded: a parent that is not killed lets the child go by closing nothing.
	for range 200 {
		if os.Getppid() != before {
			return os.Mkdir(filepath.Join(dir, "orphan"), 0o700)
		}
		if _, err := os.Stat(filepath.Join(dir, "enough")); err == nil {
			return nil
		}
		<-time.After(10 * time.Millisecond)
	}
	return errors.New("nothing happened")
}

const looks = 100

func runLooker(dir string) error {
	var failed error
	for range looks {
		_, err := os.ReadFile("/proc/self/stat")
		failed = errors.Join(failed, err)
	}
	for range dirs {
		_, err := os.ReadFile(filepath.Join(dir, "file"))
		failed = errors.Join(failed, err)
	}
	return failed
}

func runSleeper(string) error {
	<-time.After(time.Minute)
	return nil
}

func command(t *testing.T, program, dir string) ptrace.Command {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	return ptrace.Command{
		Path: "/proc/self/exe", Args: []string{"traced", program, dir},
		Env: os.Environ(), Files: []*os.File{null, null, os.Stderr},
	}
}

func run(t *testing.T, c ptrace.Command) ptrace.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := ptrace.Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func need(t *testing.T) {
	t.Helper()
	err := ptrace.Probe(t.Context(), "/proc/self/exe", []string{"traced", steps, t.TempDir()})
	if err == nil {
		return
	}
	if os.Getenv("WEFT_CI") == "1" {
		t.Fatal(err)
	}
	t.Skip(err)
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func isMkdir(c ptrace.Call) bool { return strings.HasPrefix(c.Name, "mkdir") }

func TestCountsTheCallsOfAllThreads(t *testing.T) {
	need(t)
	dir := t.TempDir()
	out := run(t, command(t, steps, dir))
	made := 0
	for _, c := range out.Calls {
		if isMkdir(c) {
			made++
		}
	}
	if made != dirs {
		t.Errorf("saw %d mkdir, want %d: %v", made, dirs, out.Calls)
	}
	if out.Killed || !out.Status.Exited() || out.Status.ExitStatus() != 0 {
		t.Errorf("killed %t, status %#x, want an exit with 0", out.Killed, out.Status)
	}
	if last := out.Calls[len(out.Calls)-1]; last.Name != "exit_group" {
		t.Errorf("the last call is %s, want exit_group", last)
	}
}

// TestKillsBeforeTheCall walks the kill over the whole program: whatever the n-th call is,
// the directories of the calls that were over are there, and its own and all later ones are not.
func TestKillsBeforeTheCall(t *testing.T) {
	need(t)
	hit := map[int]bool{}
	// The runtime makes a call more or less than the last time now and then, so that a walk
	// can step over one of the directories.
	for range 10 {
		for n := 1; killAt(t, n, hit); n++ {
		}
		if len(hit) == dirs {
			return
		}
	}
	t.Errorf("killed at %d different mkdir, want %d", len(hit), dirs)
}

// killAt kills at call n and notes in hit which directory that call was to make. It says
// whether there was an n-th call.
func killAt(t *testing.T, n int, hit map[int]bool) bool {
	t.Helper()
	dir := t.TempDir()
	c := command(t, steps, dir)
	c.KillAt = n
	out := run(t, c)
	if !out.Killed {
		return false
	}
	if len(out.Calls) != n {
		t.Fatalf("kill at %d: %d calls were entered", n, len(out.Calls))
	}
	if !out.Status.Signaled() || out.Status.Signal() != syscall.SIGKILL {
		t.Errorf("kill at %d: status %#x, want SIGKILL", n, uint32(out.Status))
	}
	made := 0
	for _, c := range out.Calls[:n-1] {
		if isMkdir(c) {
			made++
		}
	}
	last := out.Calls[n-1]
	for i := range dirs {
		if i == made-1 && !isMkdir(last) {
			// Entered, and perhaps not over: the killed call may be one that the runtime made
			// on another thread meanwhile. The kill at the next mkdir shows that this one was.
			continue
		}
		if path := filepath.Join(dir, strconv.Itoa(i)); exists(t, path) != (i < made) {
			t.Errorf("kill at %d, %s: directory %d is there: %t, want %t", n, last, i, i >= made, i < made)
		}
	}
	if isMkdir(last) {
		if want := filepath.Join(dir, strconv.Itoa(made)); last.Path != want {
			t.Errorf("kill at %d: killed mkdir of %q, want %q", n, last.Path, want)
		}
		hit[made] = true
	}
	return true
}

func TestLookingAtProcessesDoesNotCount(t *testing.T) {
	need(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := run(t, command(t, looker, dir))
	calls := map[string]int{}
	for _, c := range out.Calls {
		calls[c.Name]++
	}
	for _, name := range []string{"openat", "read", "close"} {
		if n := calls[name]; n < dirs || n >= looks {
			t.Errorf("%d calls of %s count, want some %d", n, name, dirs)
		}
	}
	if out.Status != 0 {
		t.Errorf("status %#x, want an exit with 0", uint32(out.Status))
	}
}

// TestChildrenRunUntraced: the parent's run has no mkdir of the child's, and a child whose
// parent was killed goes on.
func TestChildrenRunUntraced(t *testing.T) {
	need(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "enough"), 0o700); err != nil {
		t.Fatal(err)
	}
	out := run(t, command(t, parent, dir))
	if out.Status.ExitStatus() != 0 || !exists(t, filepath.Join(dir, "born")) {
		t.Fatalf("status %#x: the child did not run", out.Status)
	}
	clones := 0
	for _, c := range out.Calls {
		if isMkdir(c) {
			t.Error("a call of the child was counted")
		}
		if c.Name == "clone" || c.Name == "clone3" {
			clones++
		}
	}
	if clones == 0 {
		t.Errorf("the start of the child was not counted: %v", out.Calls)
	}

	dir = t.TempDir()
	ctx, kill := context.WithTimeout(t.Context(), 30*time.Second)
	defer kill()
	go func() { // kills the parent as soon as it has a child
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "born")); err == nil {
				kill()
				return
			}
			<-time.After(10 * time.Millisecond)
		}
	}()
	out, err := ptrace.Run(ctx, command(t, parent, dir))
	if !errors.Is(err, context.Canceled) || !out.Status.Signaled() || out.Status.Signal() != syscall.SIGKILL {
		t.Errorf("error %v, status %#x, want SIGKILL", err, out.Status)
	}
	for range 500 {
		if exists(t, filepath.Join(dir, "orphan")) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Error("the child did not outlive its parent")
}

// TestLeavesOtherChildrenAlone: while the tracer waits, the caller's own children end, and
// are the caller's to wait for.
func TestLeavesOtherChildrenAlone(t *testing.T) {
	need(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if err := exec.Command("/proc/self/exe", steps, t.TempDir()).Run(); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range 10 {
				if out, err := ptrace.Run(t.Context(), command(t, steps, t.TempDir())); err != nil || out.Status != 0 {
					t.Errorf("status %#x, error %v", out.Status, err)
				}
			}
		})
	}
	all.Wait()
}

// TestFailedCallIsNotCarriedOut: the program is told the error, and goes on.
func TestFailedCallIsNotCarriedOut(t *testing.T) {
	need(t)
	dir := t.TempDir()
	c := command(t, steps, dir)
	made := 0
	c.Fail = func(call ptrace.Call) syscall.Errno {
		if !isMkdir(call) {
			return 0
		}
		if want := filepath.Join(dir, strconv.Itoa(made)); call.Path != want {
			t.Errorf("mkdir of %q, want %q", call.Path, want)
		}
		if made++; made == 3 {
			return syscall.ENOSPC
		}
		return 0
	}
	out := run(t, c)
	if out.Killed || !out.Status.Exited() || out.Status.ExitStatus() == 0 {
		t.Errorf("status %#x, want an exit status of the program's own that is not 0", uint32(out.Status))
	}
	for i := range dirs {
		if got := exists(t, filepath.Join(dir, strconv.Itoa(i))); got != (i != 2) {
			t.Errorf("directory %d is there: %t", i, got)
		}
	}
}

func TestContextEndsTheRun(t *testing.T) {
	need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	out, err := ptrace.Run(ctx, command(t, sleeper, ""))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
	if !out.Status.Signaled() {
		t.Errorf("status %#x, want a killed process", out.Status)
	}
}

func TestStartErrorIsTold(t *testing.T) {
	c := command(t, steps, "")
	c.Path = filepath.Join(t.TempDir(), "missing")
	if _, err := ptrace.Run(t.Context(), c); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want that the program is missing", err)
	}
}
