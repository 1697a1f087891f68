// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// peakRuns is how often the peak memory is measured; the largest counts.
const peakRuns = 10

// peak is the most memory that a process of one verb ever held, in bytes.
type peak struct {
	verb  string
	bytes int64
}

// peaks measures ADD and DEL of weft-cni, outside the timed runs.
func (b *bench) peaks(ctx context.Context) ([]peak, error) {
	peaks := []peak{{verb: "ADD"}, {verb: "DEL"}}
	for range peakRuns {
		b.next()
		for i := range peaks {
			n, err := b.highWater(ctx, peaks[i].verb)
			if err != nil {
				return nil, fmt.Errorf("measure memory of %s: %w", peaks[i].verb, err)
			}
			peaks[i].bytes = max(peaks[i].bytes, n)
		}
	}
	return peaks, nil
}

// highWater runs weft-cni once and reads VmHWM of the process when it is about to
// end. The kernel stops a traced process there, with its memory still in place.
// wait4's ru_maxrss would not do: it starts at the size of the process that forked,
// and counts the delegates and the planner as well.
func (b *bench) highWater(ctx context.Context, verb string) (int64, error) {
	runtime.LockOSThread() //nolint:forbidigo // ptrace belongs to a thread
	defer runtime.UnlockOSThread()

	cmd := b.command(ctx, b.weft, verb, "eth0", b.conf)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	hwm, status, err := untilExit(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	// The process was reaped by untilExit; this waits for its output alone.
	_ = cmd.Wait()
	if err == nil && status != 0 {
		err = fmt.Errorf("exit status %d: %s", status, out.Bytes())
	}
	if err == nil && hwm == 0 {
		err = errors.New("the process ended without a stop")
	}
	return hwm, err
}

// untilExit lets a traced process run, hands it its signals, reads its high-water
// mark when it is about to exit, and reaps it.
func untilExit(pid int) (hwm int64, status int, err error) {
	const optionTraceExit = 0x40 // PTRACE_O_TRACEEXIT
	var ws syscall.WaitStatus
	for first := true; ; first = false {
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			return 0, 0, fmt.Errorf("wait: %w", err)
		}
		signal := 0
		switch {
		case ws.Exited():
			return hwm, ws.ExitStatus(), nil
		case ws.Signaled():
			return hwm, 128 + int(ws.Signal()), nil
		case first:
			// The stop after exec.
			if err := syscall.PtraceSetOptions(pid, optionTraceExit); err != nil {
				return 0, 0, fmt.Errorf("trace: %w", err)
			}
		case ws.StopSignal() == syscall.SIGTRAP:
			if hwm, err = readHighWater(pid); err != nil {
				return 0, 0, err
			}
		default:
			signal = int(ws.StopSignal())
		}
		if err := syscall.PtraceCont(pid, signal); err != nil {
			return 0, 0, fmt.Errorf("continue: %w", err)
		}
	}
}

// readHighWater gives VmHWM of a process in bytes.
func readHighWater(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return statusBytes(string(b), "VmHWM")
}
