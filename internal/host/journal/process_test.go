// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The test binary is also the processes that are killed and that inherit.
const helperEnv = "JOURNAL_TEST_HELPER"

func TestMain(m *testing.M) {
	helper := os.Getenv(helperEnv)
	if helper == "" {
		os.Exit(m.Run())
	}
	run := map[string]func(dir string) error{
		"hold": helperHold, "loop": helperLoop, "wait": helperWait, "full": helperFull, "mounted": helperMounted,
	}[helper]
	if err := run(os.Args[1]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// startHelper runs a helper on a store's folder and gives its first line of output.
func startHelper(t *testing.T, name, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir) //nolint:gosec // this test itself
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error:") {
		t.Fatalf("helper %s says %q, %v", name, line, err)
	}
	return cmd, strings.TrimSpace(line)
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed, which Wait tells as an error
}

// helperHold takes the lock of "k", starts a child that inherits it, tells its PID and waits.
func helperHold(dir string) error {
	s, err := Open(dir, testKind)
	if err != nil {
		return err
	}
	r, err := s.Acquire(context.Background(), "k")
	if err != nil {
		return err
	}
	if err := r.Begin(Intent{PodUID: "u"}); err != nil {
		return err
	}
	child := exec.Command(os.Args[0], dir) //nolint:gosec // this test itself
	child.Env = append(os.Environ(), helperEnv+"=wait")
	child.ExtraFiles = []*os.File{r.LockFile()}
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		return err
	}
	_, start, err := processStat(child.Process.Pid)
	if err != nil {
		return err
	}
	if err := r.Append(Phase{Phase: Started, Group: child.Process.Pid, Start: start}); err != nil {
		return err
	}
	fmt.Println(child.Process.Pid)
	return child.Wait()
}

// helperWait is a delegate that does nothing for long.
func helperWait(string) error {
	time.Sleep(time.Minute) //nolint:forbidigo // what a delegate does that hangs
	return nil
}

// helperLoop lives records of one key, over and over, until it is killed.
func helperLoop(dir string) error {
	s, err := Open(dir, testKind)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		r, err := s.Acquire(context.Background(), "k")
		if err != nil {
			return err
		}
		if err := r.Begin(Intent{PodUID: strconv.Itoa(i)}); err != nil {
			return err
		}
		for range 3 {
			if err := r.Append(Phase{Phase: Done, Result: json.RawMessage(`"` + strings.Repeat("x", 9000) + `"`)}); err != nil {
				return err
			}
		}
		if i%3 == 0 {
			err = r.Forget()
		}
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
}

func TestHolderIsKilled(t *testing.T) {
	s := newStore(t)
	cmd, line := startHelper(t, "hold", s.dir)
	child, err := strconv.Atoi(line)
	must(t, err)
	defer syscall.Kill(-child, syscall.SIGKILL) //nolint:errcheck // gone when the test succeeds

	wantHolders := func(want ...Holder) {
		t.Helper()
		f, st, err := s.Peek("k")
		must(t, err)
		defer f.Close() //nolint:errcheck // opened for reading
		got, err := Holders(f)
		must(t, err)
		byPID := cmpopts.SortSlices(func(a, b Holder) bool { return a.PID < b.PID })
		if diff := cmp.Diff(want, got, byPID, cmpopts.IgnoreFields(Process{}, "Start")); diff != "" {
			t.Error(diff)
		}
		p, ok := st.LastStarted()
		if !ok || p.Group != child || !Alive(Process{PID: p.Group, Start: p.Start}) {
			t.Errorf("last started: %+v, %t", p, ok)
		}
		if owner := st.Intents[0].Owner; Alive(owner) != slices.ContainsFunc(want, func(h Holder) bool { return h.PID == owner.PID }) {
			t.Errorf("owner %+v is alive: %t", owner, Alive(owner))
		}
	}
	wantHolders(Holder{Process: Process{PID: cmd.Process.Pid}}, Holder{Process: Process{PID: child}, Inherited: true})
	kill(t, cmd)
	// Its delegate holds the lock on.
	if _, err := s.TryAcquire("k"); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	wantHolders(Holder{Process: Process{PID: child}, Inherited: true})

	must(t, syscall.Kill(-child, syscall.SIGKILL))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := s.Acquire(ctx, "k")
	must(t, err)
	if st := r.State(); len(st.Intents) != 1 || st.Intents[0].PodUID != "u" || len(st.Phases) != 1 {
		t.Errorf("the record says %+v", st)
	}
	// The reader of the lock's own file sees this process, though it was opened otherwise.
	got, err := Holders(r.LockFile())
	must(t, err)
	if diff := cmp.Diff([]Holder{{Process: Self()}}, got); diff != "" {
		t.Error(diff)
	}
	must(t, r.Begin(testIntent("k")))
	if got, err = Holders(r.LockFile()); err != nil || len(got) != 1 || got[0].Process != Self() {
		t.Errorf("after Begin: %+v, %v", got, err)
	}
	must(t, r.Close())
}

// Wherever a process is killed, the next one finds a whole record or none.
func TestKilledAnywhere(t *testing.T) {
	s := newStore(t)
	for i := range 60 {
		cmd, _ := startHelper(t, "loop", s.dir)
		// A different moment each time, within some rounds of the loop.
		timer := time.NewTimer(time.Duration(i*211%7000) * time.Microsecond)
		<-timer.C
		kill(t, cmd)
		wantWholeOrNone(t, s, i)
	}
	wantFiles(t, s.QuarantineDir())
}

// The same before chosen calls to the kernel that touch the record: every fourth of those of
// a process' start and its first round. Each run is slow, the crash suite has them all.
func TestKilledAtCalls(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed")
	}
	s := newStore(t)
	const calls = "openat,flock,newfstatat,fstat,pread64,unlinkat,write,fsync,renameat,renameat2,ftruncate,close"
	for n := 1; n <= 75; n += 4 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		cmd := exec.CommandContext(ctx, strace, "-f", "-qq", "-o", "/dev/null", //nolint:gosec // this test itself
			"--inject="+calls+":signal=SIGKILL:when="+strconv.Itoa(n), os.Args[0], s.dir)
		// Few threads: strace counts the calls of each on its own.
		cmd.Env = append(os.Environ(), helperEnv+"=loop", "GOMAXPROCS=1")
		// The helper would outlive strace, and loop for ever.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		cancel()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Skipf("strace cannot kill: %v: %s", err, out)
		}
		wantWholeOrNone(t, s, n)
	}
	wantFiles(t, s.QuarantineDir())
}

// wantWholeOrNone sees that the record of "k" can be used, and clears it away.
func wantWholeOrNone(t *testing.T, s *Store, kill int) {
	t.Helper()
	r, err := s.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("kill %d: %v", kill, err)
	}
	st := r.State()
	switch {
	case st.Empty:
	case len(st.Intents) != 1 || len(st.Phases) > 3:
		t.Fatalf("kill %d: record says %d intents, %d phases", kill, len(st.Intents), len(st.Phases))
	default:
		must(t, r.Append(Phase{Phase: Undone}))
		again, err := s.Read("k")
		must(t, err)
		if len(again.Phases) != len(st.Phases)+1 {
			t.Fatalf("kill %d: %d phases became %d", kill, len(st.Phases), len(again.Phases))
		}
		must(t, r.Forget())
	}
	must(t, r.Close())
	wantFiles(t, s.dir)
}

// A full disk is played by a tiny file system in namespaces of one's own, and by a limit
// on file sizes where those are forbidden.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir) //nolint:gosec // this test itself
	cmd.Env = append(os.Environ(), helperEnv+"=mounted")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("no file system of one's own (%v): %s", err, out)
		cmd = exec.CommandContext(t.Context(), os.Args[0], dir) //nolint:gosec // this test itself
		cmd.Env = append(os.Environ(), helperEnv+"=full")
		out, err = cmd.CombinedOutput()
	}
	if err != nil || !strings.HasSuffix(string(out), "full, then fine\n") {
		t.Errorf("%v: %s", err, out)
	}
}

func helperMounted(dir string) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128k,mode=0700"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return fill(dir, syscall.ENOSPC)
}

func helperFull(dir string) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64 << 10, Max: 64 << 10}); err != nil {
		return err
	}
	return fill(dir, syscall.EFBIG)
}

// fill fills the disk with one record and sees that each step that has no room leaves the
// record as it was.
func fill(dir string, full syscall.Errno) error {
	s, err := Open(filepath.Join(dir, "state", "attachments"), testKind)
	if err != nil {
		return err
	}
	r, err := s.Acquire(context.Background(), "k")
	if err != nil {
		return err
	}
	large := json.RawMessage(`"` + strings.Repeat("x", 200<<10) + `"`)
	if err := r.Begin(Intent{Body: large}); !errors.Is(err, full) {
		return fmt.Errorf("beginning a large record: %w", err)
	}
	if names, err := filepath.Glob(s.dir + "/*"); err != nil || len(names) != 1 || !r.State().Empty {
		return fmt.Errorf("after that there are %v, %w", names, err)
	}
	if err := r.Begin(testIntent("k")); err != nil {
		return fmt.Errorf("beginning a small record: %w", err)
	}
	phases := 0
	for ; ; phases++ {
		if err = r.Append(Phase{Phase: Done, Result: large[:3000:3000][:2999]}); err == nil {
			return errors.New("half a JSON text was accepted")
		}
		if err = r.Append(Phase{Phase: Done, Result: append(large[:3000:3000], '"')}); err != nil {
			break
		}
	}
	if !errors.Is(err, full) || phases < 3 {
		return fmt.Errorf("after %d phases: %w", phases, err)
	}
	if err := r.Extend(Intent{Body: large}); !errors.Is(err, full) {
		return fmt.Errorf("extending: %w", err)
	}
	st, err := s.Read("k")
	if err != nil || len(st.Phases) != phases || len(st.Intents) != 1 || len(r.State().Phases) != phases {
		return fmt.Errorf("reading: %d phases of %d: %w", len(st.Phases), phases, err)
	}
	// Small things fit still, or again after something made room; nothing is corrupt.
	small := r.Append(Phase{Phase: Undone})
	if small != nil && !errors.Is(small, full) {
		return small
	}
	if err := r.Close(); err != nil {
		return err
	}
	if r, err = s.TryAcquire("k"); err != nil {
		return err
	}
	if err := errors.Join(r.Forget(), r.Close()); err != nil {
		return err
	}
	if r, err = s.Acquire(context.Background(), "k"); err != nil {
		return err
	}
	if err := errors.Join(r.Begin(testIntent("k")), r.Close()); err != nil {
		return err
	}
	fmt.Println("full, then fine")
	return nil
}

func TestAlive(t *testing.T) {
	self := Self()
	if self.PID != os.Getpid() || self.Start == 0 || !Alive(self) {
		t.Errorf("this process, %+v, is not alive", self)
	}
	if Alive(Process{PID: self.PID, Start: self.Start + 1}) {
		t.Error("a process that had this PID before is alive")
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	must(t, cmd.Start())
	_, start, err := processStat(cmd.Process.Pid)
	must(t, err)
	child := Process{PID: cmd.Process.Pid, Start: start}
	if !Alive(child) {
		t.Error("a running child is not alive")
	}
	must(t, cmd.Process.Kill())
	for deadline := time.Now().Add(10 * time.Second); Alive(child); { // not waited for: a zombie
		if time.Now().After(deadline) {
			t.Fatal("a zombie is alive")
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // polls a real process
	}
	_ = cmd.Wait() // it was killed
	if Alive(child) {
		t.Error("a dead process is alive")
	}
}

func TestBootID(t *testing.T) {
	if id := BootID(); len(id) != 36 || id != BootID() {
		t.Errorf("got %q", id)
	}
}
