// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package outside runs programs in the mount and network namespaces in which others were
// run before: here, or where the machine's first process is, which a container sees that
// sees the host's processes.
//
// It owns the threads that enter those namespaces: each is given up with the program that it
// started, so that no other code ever runs there.
//
// Invariants: a program runs in the namespaces that were asked for, both of them, or not at
// all.
//
// It knows nothing of what it runs.
//
// Implements: architecture 4.4 (weft-cni apply in the host's mount namespace).
package outside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/proc"
)

// Place is where programs are run. The zero value is here.
type Place struct{ pid int }

// ErrNotFound says that neither this process nor the first one is where it is asked for.
var ErrNotFound = errors.New("the host's namespaces are not seen from here")

// Find gives the place with these namespaces (proc.Namespaces), which is here or where
// process 1 is.
func Find(namespaces string) (Place, error) { return find(namespaces, 1) }

func find(namespaces string, pid int) (Place, error) {
	ours, err := proc.Namespaces("self")
	if err != nil {
		return Place{}, err
	}
	if ours == namespaces {
		return Place{}, nil
	}
	theirs, err := proc.Namespaces(strconv.Itoa(pid))
	if err != nil {
		return Place{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if theirs != namespaces {
		return Place{}, ErrNotFound
	}
	return Place{pid}, nil
}

// Here says whether programs are run in the namespaces of this process.
func (p Place) Here() bool { return p.pid == 0 }

type kind struct {
	name string
	flag int
}

// kinds are the namespaces that are entered. The mount namespace comes last: with it /proc
// is another one.
func kinds() []kind { return []kind{{"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}} }

func path(pid int, kind string) string { return "/proc/" + strconv.Itoa(pid) + "/ns/" + kind }

// waitDelay is how long a program that was ended is waited for, and children of its that
// hold its output.
const waitDelay = 5 * time.Second

// maxOutput is how much of either output is kept.
const maxOutput = 1 << 20

// Run runs a program with exactly this environment and input until it ends, and gives what
// it wrote. When ctx ends first the program is killed. The error is an *exec.ExitError when
// the program ran and failed.
func (p Place) Run(ctx context.Context, argv, env []string, stdin []byte) (stdout, stderr []byte, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.WaitDelay = env, bytes.NewReader(stdin), waitDelay
	var out, complaint bounded
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := p.start(cmd); err != nil {
		return nil, nil, fmt.Errorf("run %s: %w", argv[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return out.b.Bytes(), complaint.b.Bytes(), fmt.Errorf("run %s: %w", argv[0], errors.Join(ctx.Err(), err))
	}
	return out.b.Bytes(), complaint.b.Bytes(), nil
}

// start starts a program from a thread that has entered the place.
func (p Place) start(cmd *exec.Cmd) error {
	if p.Here() {
		return cmd.Start()
	}
	return onThread(func() error {
		if err := p.enter(); err != nil {
			return fmt.Errorf("enter the namespaces of process %d: %w", p.pid, err)
		}
		return cmd.Start()
	})
}

// onThread runs f on a thread that nothing else will use: it is not given back, and ends with its
// goroutine. It is never the first one, which would not end, and whose namespaces are what /proc says of
// the process.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

func (p Place) enter() error {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close() // only looked at
		}
	}()
	for _, k := range kinds() {
		f, err := os.Open(path(p.pid, k.name))
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	// A thread that shares its root and working directory may not change the mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for i, k := range kinds() {
		if err := unix.Setns(int(files[i].Fd()), k.flag); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

// bounded keeps the beginning of what is written.
type bounded struct{ b bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := maxOutput - b.b.Len(); room > 0 {
		b.b.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
