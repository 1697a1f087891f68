// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
)

// The test binary is also the process that is killed, and the delegate that outlives it.
const helperEnv = "LANES_TEST_HELPER"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(helperEnv) {
	case "take":
		err = helperTake(os.Args[1])
	case "wait":
		time.Sleep(time.Minute) //nolint:forbidigo // what a delegate does that hangs
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, limit int) *Lanes {
	t.Helper()
	l, err := Open(filepath.Join(t.TempDir(), "state"), limit)
	must(t, err)
	return l
}

// soon is how long a Take may take that is to fail.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func take(t *testing.T, l *Lanes, urgent bool) *os.File {
	t.Helper()
	f, err := l.Take(t.Context(), urgent)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() }) // most were closed in the test
	return f
}

func wantBusy(t *testing.T, l *Lanes, urgent bool) {
	t.Helper()
	for _, ctx := range []context.Context{soon(t), brief.WithTimeout(context.Background(), 30*time.Millisecond)} {
		_, err := l.Take(ctx, urgent)
		if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("urgent %t: got %v", urgent, err)
		}
	}
}

func TestLimits(t *testing.T) {
	cpus := max(2*runtime.NumCPU(), 4)
	for _, tt := range []struct{ limit, slots, kept int }{
		{1, 1, 0}, {2, 2, 1}, {3, 3, 1}, {4, 4, 1}, {8, 8, 2}, {11, 11, 2}, {0, cpus, cpus / 4},
	} {
		t.Run(fmt.Sprint(tt.limit), func(t *testing.T) {
			l := open(t, tt.limit)
			var general []*os.File
			for range tt.slots - tt.kept {
				general = append(general, take(t, l, false))
			}
			wantBusy(t, l, false)
			for range tt.kept {
				take(t, l, true)
			}
			wantBusy(t, l, true)
			// What a general call gives back, both kinds may have.
			must(t, general[0].Close())
			again := take(t, l, true)
			wantBusy(t, l, false)
			must(t, again.Close())
			take(t, l, false)
			wantBusy(t, l, true)
		})
	}
	if _, err := Open(t.TempDir(), -1); err == nil {
		t.Error("a negative limit was taken")
	}
}

// Urgent calls leave the others' slots alone while their own are free.
func TestUrgentTakesItsShareFirst(t *testing.T) {
	l := open(t, 8)
	for range 2 {
		take(t, l, true)
	}
	for range 6 {
		take(t, l, false)
	}
	wantBusy(t, l, false)
}

// Calls that saturate the lanes for good do not hold up one that is urgent.
func TestUrgentNeverWaitsBehindOthers(t *testing.T) {
	l := open(t, 4)
	for range 3 {
		take(t, l, false)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := l.Take(ctx, false); !errors.Is(err, ErrBusy) {
				t.Errorf("a waiter got %v", err)
			}
		})
	}
	for range 10 {
		start := time.Now()
		f, err := l.Take(t.Context(), true)
		must(t, err)
		must(t, f.Close())
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("an urgent call waited %v", took)
		}
	}
	cancel()
	wg.Wait()
}

// Many calls, more than slots: never too many at once, and each gets its turn.
func TestEachGetsItsTurn(t *testing.T) {
	const limit, calls, rounds = 8, 60, 3
	l := open(t, limit)
	var running, most, urgentDone, done atomic.Int32
	var wg sync.WaitGroup
	for i := range calls {
		urgent := i%10 == 0
		wg.Go(func() {
			for range rounds {
				f, err := l.Take(t.Context(), urgent)
				if err != nil {
					t.Error(err)
					return
				}
				n := running.Add(1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				runtime.Gosched()
				running.Add(-1)
				if urgent {
					urgentDone.Add(1)
				} else {
					done.Add(1)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > limit || most.Load() < 2 {
		t.Errorf("%d ran at once", most.Load())
	}
	if urgentDone.Load() != calls/10*rounds || done.Load() != (calls-calls/10)*rounds {
		t.Errorf("%d urgent and %d other calls ran", urgentDone.Load(), done.Load())
	}
}

// The one at the gate gets the next slot, whoever comes meanwhile.
func TestHeadOfQueueIsNotOvertaken(t *testing.T) {
	l := open(t, 2)
	held := take(t, l, false)
	got := make(chan *os.File, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		f, err := l.Take(t.Context(), false)
		if err != nil {
			t.Error(err)
		}
		got <- f
	})
	for { // until it is at the gate
		f, err := l.try("gate")
		must(t, err)
		if f == nil {
			break
		}
		must(t, f.Close())
		runtime.Gosched()
	}
	must(t, held.Close())
	for range 20 {
		if f, err := l.Take(soon(t), false); err == nil {
			// Only when the head has had the slot, and gave it back.
			must(t, f.Close())
			t.Fatal("a later call overtook it")
		}
		if len(got) > 0 {
			break
		}
	}
	wg.Wait()
	must(t, (<-got).Close())
	must(t, take(t, l, false).Close())
}

// waiters are the calls that the kernel lists as waiting for the lock of a lane's file.
func waiters(t *testing.T, l *Lanes, name string) int {
	t.Helper()
	info, err := os.Stat(filepath.Join(l.dir, name))
	must(t, err)
	locks, err := os.ReadFile("/proc/locks")
	must(t, err)
	file := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)
	n := 0
	for line := range strings.Lines(string(locks)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, file) {
			n++
		}
	}
	return n
}

// Calls behind the one at the gate sleep; one that gives up lets go of what it waited for.
func TestWaitersSleep(t *testing.T) {
	const calls = 20
	l := open(t, 2)
	held := take(t, l, false)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if _, err := l.Take(ctx, false); !errors.Is(err, ErrBusy) {
				t.Errorf("a waiter got %v", err)
			}
		})
	}
	deadline := time.Now().Add(10 * time.Second)
	for n := 0; n != calls-1; n = waiters(t, l, "gate") {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d calls sleep in the kernel", n, calls-1)
		}
		runtime.Gosched()
	}
	late := brief.WithTimeout(context.Background(), 30*time.Millisecond)
	if _, err := l.Take(late, false); !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call whose deadline no channel tells got %v", err)
	}
	cancel()
	wg.Wait()
	must(t, held.Close())
	for range 3 {
		must(t, take(t, l, false).Close())
	}
}

func helperTake(state string) error {
	l, err := Open(state, 2)
	if err != nil {
		return err
	}
	f, err := l.Take(context.Background(), false)
	if err != nil {
		return err
	}
	child := exec.Command(os.Args[0], state) //nolint:gosec // this test itself
	child.Env = append(os.Environ(), helperEnv+"=wait")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Println(child.Process.Pid)
	return child.Wait()
}

// A slot whose owner was killed stays taken while the delegate runs that inherited it.
func TestDelegateKeepsTheSlot(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	cmd := exec.CommandContext(t.Context(), os.Args[0], state) //nolint:gosec // this test itself
	cmd.Env = append(os.Environ(), helperEnv+"=take")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	var delegate int
	if _, err := fmt.Sscan(line, &delegate); err != nil {
		t.Fatalf("helper says %q", line)
	}
	l, err := Open(state, 2)
	must(t, err)
	wantBusy(t, l, false)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	wantBusy(t, l, false)
	must(t, syscall.Kill(delegate, syscall.SIGKILL))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	f, err := l.Take(ctx, false)
	must(t, err)
	must(t, f.Close())
}

func TestDeadlineBeforeSlot(t *testing.T) {
	l := open(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// A free slot is given even then: the caller's own deadline is its own business.
	f, err := l.Take(ctx, true)
	must(t, err)
	must(t, f.Close())
}

// BenchmarkTake is what each delegate run pays when slots are free.
func BenchmarkTake(b *testing.B) {
	l := open(b, 8)
	for b.Loop() {
		f, err := l.Take(b.Context(), false)
		must(b, err)
		must(b, f.Close())
	}
}
