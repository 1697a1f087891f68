// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lanes bounds how many delegates run at once on a node, over all processes of Weft.
//
// It owns <stateDir>/lanes: one file a slot, whose flock is the slot. A delegate inherits
// the descriptor, so that a slot stays taken while one runs whose Weft was killed.
//
// Invariants: never more slots are taken than the limit; a quarter of them, at least one,
// is for urgent calls (DEL, GC, undo) alone, so that removing never waits behind adding. Of
// each kind of call one, which is at the gate, looks for slots, and nobody overtakes it.
// Those behind it sleep in the kernel until the gate is theirs, in about the order in which
// they came: a hundred calls that look again and again would leave the plugins no processor.
//
// It knows nothing of records, CNI or what runs in a slot.
//
// Implements: architecture 4.1 (delegateLimit) and 4.3; spec/cni.md case B67.
package lanes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
)

// ErrBusy says that no slot came free in time.
var ErrBusy = errors.New("all delegate slots are in use")

// How often a slot is looked for. Only the waiter at the gate does so.
const (
	slotPause    = time.Millisecond
	slotPauseMax = 4 * time.Millisecond
)

// Lanes are the slots of one state directory. Its methods may be called from several
// goroutines.
type Lanes struct {
	dir   string
	limit int
	kept  int // slots [0, kept) are for urgent calls
}

// Open gives the lanes of a state directory. The limit is the number of slots; 0 stands
// for two a CPU, at least four. A limit of 1 keeps none for urgent calls: nothing could
// ever be added.
func Open(stateDir string, limit int) (*Lanes, error) {
	if limit < 0 {
		return nil, fmt.Errorf("open lanes: limit %d is negative", limit)
	}
	dir, err := journal.PrivateDir(filepath.Join(stateDir, "lanes"))
	if err != nil {
		return nil, fmt.Errorf("open lanes: %w", err)
	}
	return newLanes(dir.Name(), limit), dir.Close()
}

func newLanes(dir string, limit int) *Lanes {
	if limit == 0 {
		limit = max(2*runtime.NumCPU(), 4)
	}
	kept := max(limit/4, 1)
	if limit == 1 {
		kept = 0
	}
	return &Lanes{dir: dir, limit: limit, kept: kept}
}

// Take gives a slot, and waits for one until ctx ends; the error is ErrBusy then. The slot
// is free again at Release, or, when the caller is killed, when every descriptor that was
// inherited from the file is closed.
func (l *Lanes) Take(ctx context.Context, urgent bool) (*os.File, error) {
	gate, first := "gate", l.kept
	if urgent {
		gate, first = "gate-urgent", 0
	}
	at, err := l.pass(ctx, gate)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	for pause := slotPause; ; pause = min(pause+slotPause, slotPauseMax) {
		for slot := first; slot < l.limit; slot++ {
			f, err := l.try(strconv.Itoa(slot))
			if err != nil || f != nil {
				return f, err
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// Release frees a slot, whoever else has inherited its descriptor: a daemon that a delegate
// left behind on purpose must not take a slot for ever.
func Release(slot *os.File) {
	// Unlocking an open file of ours cannot fail, and closing it unlocks as well.
	_ = syscall.Flock(int(slot.Fd()), syscall.LOCK_UN)
	_ = slot.Close()
}

// pass waits until this call is the one of its kind that may look for a slot.
func (l *Lanes) pass(ctx context.Context, gate string) (*os.File, error) {
	f, err := l.try(gate)
	if err != nil || f != nil {
		return f, err
	}
	if f, err = l.open(gate); err != nil {
		return nil, err
	}
	// A wait for a lock knows no end but the lock, so it has a thread, which only a call that
	// has to wait pays for.
	locked := make(chan error, 1)
	go func() { locked <- lock(f, 0) }()
	var over <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok && ctx.Done() == nil { // as of brief.WithTimeout
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case err := <-locked:
		if err != nil {
			return nil, errors.Join(fmt.Errorf("take slot: %w", err), f.Close())
		}
		return f, nil
	case <-over:
	case <-ctx.Done():
	}
	go func() { // what comes too late is for the next one
		_ = errors.Join(<-locked, f.Close())
	}()
	return nil, sleep(ctx, 0)
}

// try locks a file of the folder; nil when another has it.
func (l *Lanes) try(name string) (*os.File, error) {
	f, err := l.open(name)
	if err != nil {
		return nil, err
	}
	switch err := lock(f, syscall.LOCK_NB); {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, f.Close()
	default:
		return nil, errors.Join(fmt.Errorf("take slot: %w", err), f.Close())
	}
}

func (l *Lanes) open(name string) (*os.File, error) {
	f, err := brief.OpenFile(filepath.Join(l.dir, name), os.O_RDONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take slot: %w", err)
	}
	return f, nil
}

func lock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// sleep waits for d; the error is ErrBusy and why, once ctx has ended.
func sleep(ctx context.Context, d time.Duration) error {
	if err := brief.Sleep(ctx, d); err != nil {
		return fmt.Errorf("take slot: %w: %w", ErrBusy, err)
	}
	return nil
}
