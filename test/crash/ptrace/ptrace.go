// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package ptrace runs a program, numbers the system calls that it enters and kills it at
// the entry of a chosen one, so that this call does not happen and every call before it
// did. The crash suite walks a kill through a whole run of weft-cni with it (architecture
// 4.3 and 5). Or it answers a chosen call with an error instead of carrying it out, as a
// disk does that is full.
//
// It owns: the list of calls that count (calls.go), the numbering, the kill, the error. It
// must not know what the program is about.
//
// Why not "strace --inject": that numbers the calls of every thread by itself, and a Go
// program moves between threads as it likes, so that "the 17th call" would be another one
// in every run. Here one number runs over all threads of the process, in the order in which
// the calls are entered. Nothing needs to be installed either.
//
// What holds, and how a reader checks it (ptrace_test.go runs a program with a known
// sequence of calls under it):
//   - Only the threads of the process are followed. The programs that it starts run
//     untraced and outlive the kill: Go starts them by clone(CLONE_VFORK), which the kernel
//     reports as a vfork and PTRACE_O_TRACECLONE alone does not ask for.
//   - A call that is killed at its entry is not carried out: the kernel looks for a fatal
//     signal after the tracer's stop and before it does anything (ptrace_report_syscall_entry).
//   - When the tracer dies, so does the program (PTRACE_O_EXITKILL).
package ptrace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Command is what to run and when to kill it.
type Command struct {
	Path  string
	Args  []string // Args[0] is the program's name
	Env   []string
	Dir   string
	Files []*os.File // descriptors 0, 1, 2, …

	// KillAt kills at the entry of the call of this number, counted from 1. 0 = never.
	KillAt int
	// Fail is asked about every call that counts, at its entry; the call that it gives an
	// error for is not carried out, and gives the program that error. nil = none fails.
	Fail func(Call) syscall.Errno
	// Stall kills when no call that counts was entered for so long. 0 = never.
	Stall time.Duration
}

// Call is a system call that was entered.
type Call struct {
	Name string
	// Path is the file that the call names, "" when it names none. Only the call that was
	// killed has it, and those that Fail is asked about: there it is also the file of the
	// descriptor that write, pwrite64, fsync and the like come with.
	Path string
	// Flags are those of openat, when Fail is asked about it.
	Flags uint64
}

func (c Call) String() string { return strings.TrimSpace(c.Name + " " + c.Path) }

// Outcome is what became of a run.
type Outcome struct {
	// Calls are the calls that count, in the order of their entry. The last one was not
	// carried out when Killed.
	Calls []Call
	// Killed: the process was killed at the call KillAt.
	Killed bool
	// Status is how the process ended.
	Status syscall.WaitStatus
}

// Run runs a command to its end. When ctx ends first, the process is killed and the error
// wraps the context's.
func Run(ctx context.Context, c Command) (Outcome, error) {
	type answer struct {
		out Outcome
		err error
	}
	done := make(chan answer, 1)
	go func() {
		// Requests are valid only on the thread that attached. It is not unlocked, so that
		// it ends with the goroutine, and the program with it whatever went wrong.
		runtime.LockOSThread() //nolint:forbidigo // see above
		out, err := run(ctx, c)
		done <- answer{out, err}
	}()
	a := <-done
	return a.out, a.err
}

// Probe says why there is no tracing here, nil when there is.
func Probe(ctx context.Context, path string, args []string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("probe ptrace: %w", err)
	}
	defer null.Close()
	out, err := Run(ctx, Command{Path: path, Args: args, Files: []*os.File{null, null, null}, KillAt: 1})
	switch {
	case err != nil:
		return fmt.Errorf("probe ptrace: %w", err)
	case !out.Killed:
		return errors.New("probe ptrace: no system call was seen")
	}
	return nil
}

type tracer struct {
	Command
	process *os.Process
	known   map[int]bool    // threads that have stopped before
	looking map[int]bool    // threads that are opening a file of /proc
	proc    map[uint64]bool // descriptors of /proc
	failing map[int]syscall.Errno
	stall   *time.Timer
	out     Outcome
}

func run(ctx context.Context, c Command) (Outcome, error) {
	p, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Dir: c.Dir, Env: c.Env, Files: c.Files, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("start traced: %w", err)
	}
	defer p.Release()
	t := &tracer{
		Command: c, process: p, known: map[int]bool{p.Pid: true},
		looking: map[int]bool{}, proc: map[uint64]bool{}, failing: map[int]syscall.Errno{},
	}
	defer context.AfterFunc(ctx, t.kill)()
	if c.Stall > 0 {
		t.stall = time.AfterFunc(c.Stall, t.kill)
		defer t.stall.Stop()
	}
	if err := t.follow(); err != nil {
		t.kill()
		return t.out, fmt.Errorf("trace %s: %w", c.Path, err)
	}
	if err := ctx.Err(); err != nil {
		return t.out, fmt.Errorf("trace %s: %w", c.Path, err)
	}
	return t.out, nil
}

// kill goes through the process' descriptor: a process that took its number is safe.
func (t *tracer) kill() { _ = t.process.Kill() }

// follow lets the threads run from stop to stop until the process has ended.
func (t *tracer) follow() error {
	var status unix.WaitStatus
	if _, err := t.wait(&status); err != nil {
		return err
	}
	if !status.Stopped() {
		t.out.Status = syscall.WaitStatus(status)
		return errors.New("the program ended before its first instruction")
	}
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(t.process.Pid, options); err != nil {
		return fmt.Errorf("set options: %w", err)
	}
	if err := resume(t.process.Pid, 0); err != nil {
		return err
	}
	for {
		id, err := t.wait(&status)
		if err != nil {
			return err
		}
		if !status.Stopped() {
			// The process' own end is told last, when all its threads are gone.
			if id == t.process.Pid {
				t.out.Status = syscall.WaitStatus(status)
				return nil
			}
			continue
		}
		signal, err := t.stopped(id, status)
		if err != nil {
			return err
		}
		if err := resume(id, signal); err != nil {
			return err
		}
	}
}

// wait waits for any thread of the process. Its process group, which is its own, keeps the
// caller's other children out.
func (t *tracer) wait(status *unix.WaitStatus) (int, error) {
	for {
		id, err := unix.Wait4(-t.process.Pid, status, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return id, os.NewSyscallError("wait", err)
		}
	}
}

// resume lets a thread run to its next stop. One that has been killed meanwhile is told
// of by a later wait.
func resume(id, signal int) error {
	if err := unix.PtraceSyscall(id, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}

// stopped handles one stop of a thread and gives the signal that it goes on with.
func (t *tracer) stopped(id int, status unix.WaitStatus) (signal int, err error) {
	fresh := !t.known[id]
	t.known[id] = true
	const syscallStop = unix.SIGTRAP | 0x80 // TRACESYSGOOD
	switch stop := status.StopSignal(); {
	case stop == syscallStop:
		return 0, t.syscall(id)
	case status.TrapCause() > 0: // a thread was made; its own first stop follows
		return 0, nil
	case fresh && stop == unix.SIGSTOP: // that first stop
		return 0, nil
	default:
		return int(stop), nil
	}
}

// syscallInfo is struct ptrace_syscall_info of ptrace(2), with its entry part; at an exit
// the result is in the place of the number.
type syscallInfo struct {
	Op      uint8
	_       [3]byte
	Arch    uint32
	IP, SP  uint64
	Number  uint64
	Args    [6]uint64
	padding [2]uint64
}

func (t *tracer) syscall(id int) error {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(id),
		unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	switch {
	case errno == unix.ESRCH:
		return nil
	case errno != 0:
		return fmt.Errorf("read system call: %w", errno)
	case info.Op == unix.PTRACE_SYSCALL_INFO_ENTRY:
		return t.entered(id, info)
	case info.Op == unix.PTRACE_SYSCALL_INFO_EXIT && t.failing[id] != 0:
		errno := t.failing[id]
		delete(t.failing, id)
		return setResult(id, errno)
	case info.Op == unix.PTRACE_SYSCALL_INFO_EXIT && t.looking[id]:
		delete(t.looking, id)
		if result := int64(info.Number); result >= 0 {
			t.proc[uint64(result)] = true
		}
	}
	return nil
}

// entered counts a call and, when its number has come, kills the process before the call
// is carried out.
func (t *tracer) entered(id int, info syscallInfo) error {
	c, ok := counted[info.Number]
	if !ok || t.out.Killed || c.only != nil && !c.only(info.Args) || t.looks(id, info) {
		return nil
	}
	if t.stall != nil {
		t.stall.Reset(t.Stall)
	}
	call := Call{Name: c.name}
	if len(t.out.Calls)+1 == t.KillAt {
		if c.path >= 0 {
			call.Path = readString(id, uintptr(info.Args[c.path]))
		}
		t.out.Killed = true
		if err := t.process.Kill(); err != nil {
			return fmt.Errorf("kill: %w", err)
		}
	}
	t.out.Calls = append(t.out.Calls, call)
	if t.Fail == nil || t.out.Killed {
		return nil
	}
	call.Path = t.file(id, c, info)
	if info.Number == unix.SYS_OPENAT {
		call.Flags = info.Args[2]
	}
	errno := t.Fail(call)
	if errno == 0 {
		return nil
	}
	t.failing[id] = errno
	return skip(id)
}

// file is the file that a call is about, "" when it is about none.
func (t *tracer) file(id int, c call, info syscallInfo) string {
	if c.path >= 0 {
		return readString(id, uintptr(info.Args[c.path]))
	}
	switch info.Number {
	case unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE:
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.process.Pid, info.Args[0]))
		if err == nil {
			return path
		}
	}
	return ""
}

// looks tells the opening, reading and closing of files of /proc, and remembers which
// descriptors those are.
func (t *tracer) looks(id int, info syscallInfo) bool {
	switch info.Number {
	case unix.SYS_OPENAT:
		t.looking[id] = strings.HasPrefix(readString(id, uintptr(info.Args[1])), "/proc/")
		return t.looking[id]
	case unix.SYS_READ, unix.SYS_PREAD64:
		return t.proc[info.Args[0]]
	case unix.SYS_CLOSE:
		was := t.proc[info.Args[0]]
		delete(t.proc, info.Args[0]) // the number may be another file's as soon as this is done
		return was
	}
	return false
}

// readString reads a C string of the stopped thread, as much of it as can be read.
func readString(id int, addr uintptr) string {
	var s []byte
	word := make([]byte, 8)
	for len(s) < unix.PathMax {
		if n, err := unix.PtracePeekData(id, addr+uintptr(len(s)), word); err != nil || n != len(word) {
			break
		}
		for _, b := range word {
			if b == 0 {
				return string(s)
			}
			s = append(s, b)
		}
	}
	return string(s)
}
