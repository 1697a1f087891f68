// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/fault"
)

const (
	maxStdout = 32 << 20  // bytes of an answer; also the limit of a planner message
	maxStderr = 256 << 10 // bytes of one plugin's stderr that are passed on
	maxText   = 4 << 10   // bytes of each text of an Error
	// drain is how long the output of a plugin that has ended is waited for: a process
	// that it left behind may keep the pipes open for ever.
	drain = 500 * time.Millisecond
	// restTimeout bounds the search for what a killed plugin left behind.
	restTimeout = 2 * time.Second
	// busyTries with a pause that doubles from busyPause, 1.3 s in all, outlast an installer
	// that is writing the plugin's binary at this moment.
	busyTries = 8
	busyPause = 10 * time.Millisecond
)

// errFlood is the cause of killing a plugin that writes too much.
var errFlood = errors.New("answer is longer than 32 MiB") //nolint:gochecknoglobals // a sentinel

// process is one run of one plugin.
type process struct {
	path    string
	env     []string
	stdin   []byte
	inherit []*os.File
	stderr  io.Writer
	started func(Group)

	tail tail // the end of its stderr
}

// run starts the plugin and waits for its end. The error is nil when it exited with
// status 0, and otherwise tells how it ended: what killed it, the context's cause
// included, or its *exec.ExitError. stdout is what it wrote in either case.
func (p *process) run(ctx context.Context) (stdout []byte, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := capture{limit: maxStdout, over: func() { cancel(errFlood) }}
	p.tail.to, p.tail.left = p.stderr, maxStderr
	cmd, err := p.start(ctx, &out)
	if err != nil {
		return nil, err
	}
	if p.started != nil {
		p.started(groupOf(cmd.Process.Pid))
	}
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		// The leader has not been reaped, so the group's number is still its own.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		close(killed)
	})
	awaitExit(cmd)
	if !stop() {
		<-killed
	}
	if ctx.Err() != nil {
		p.endRest(ctx)
	}
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well; somebody whom it left behind keeps its pipes
	}
	if out.full {
		return out.buf.Bytes(), errFlood
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && signal(exit) == syscall.SIGKILL && ctx.Err() != nil {
		err = fmt.Errorf("killed with its process group: %w", context.Cause(ctx))
	}
	return out.buf.Bytes(), err
}

// endRest ends what a killed plugin left in sessions of its own: it still has a
// descriptor that the plugin inherited, and would go on behind the undo's back.
func (p *process) endRest(ctx context.Context) {
	if len(p.inherit) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restTimeout)
	defer cancel()
	if err := EndGroup(ctx, Group{}, p.inherit[0]); err != nil {
		_, _ = fmt.Fprintf(p.stderr, "%v\n", err)
	}
}

// start starts the plugin, trying again while its binary is being written.
func (p *process) start(ctx context.Context, stdout io.Writer) (*exec.Cmd, error) {
	// Descriptors that this process itself inherited open are not the plugin's business.
	// The kernel can do this from 5.11 on; before that they go through.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	pause := busyPause
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("start: %w", context.Cause(ctx))
		}
		cmd := &exec.Cmd{
			Path: p.path, Args: []string{p.path}, Env: p.env,
			Stdin: bytes.NewReader(p.stdin), Stdout: stdout, Stderr: &p.tail,
			ExtraFiles:  p.inherit,
			SysProcAttr: &syscall.SysProcAttr{Setpgid: true, PidFD: new(-1)},
			WaitDelay:   drain,
		}
		err := cmd.Start()
		if err == nil {
			return cmd, nil
		}
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return nil, fmt.Errorf("start: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// awaitExit waits for the end of a child without reaping it: until it is reaped
// neither its number nor its group's can be given to others.
func awaitExit(cmd *exec.Cmd) {
	if pollExit(*cmd.SysProcAttr.PidFD) == nil {
		return
	}
	for errors.Is(unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), syscall.EINTR) {
	}
}

// pollExit is awaitExit by a descriptor of the child, which it closes: no thread is held up
// meanwhile, and one alone moves the plugin's input and output. Kernels before 5.4 have no
// such descriptors, or cannot poll them.
func pollExit(pidfd int) error {
	if pidfd < 0 {
		return errors.ErrUnsupported
	}
	if err := syscall.SetNonblock(pidfd, true); err != nil {
		return errors.Join(err, syscall.Close(pidfd))
	}
	f := os.NewFile(uintptr(pidfd), "child")
	defer f.Close() //nolint:errcheck // it was only polled
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) (done bool) {
		var info unix.Siginfo
		failed = unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		return failed != nil || info.Signo != 0
	})
	return errors.Join(err, failed)
}

// failure completes bad with how the plugin failed: its own error where it gave one.
func (p *process) failure(bad *Error, stdout []byte, err error) *Error {
	bad.Err = err
	if errors.Is(err, errFlood) {
		bad.Code, bad.Msg = uint(fault.Result), err.Error()
		return bad
	}
	bad.Code = uint(fault.Delegate)
	if e, ok := errorObject(stdout); ok {
		bad.Code, bad.Msg, bad.Details = e.Code, e.Msg, e.Details
		return bad
	}
	bad.Msg = err.Error()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		bad.Msg = fmt.Sprintf("ended with %s and without a CNI error", exit)
	}
	if text := strings.TrimSpace(string(p.tail.last)); text != "" {
		bad.Msg += ", having said on stderr: " + fault.Bound(text, maxText)
	} else if text := bytes.TrimSpace(stdout); len(text) > 0 {
		bad.Msg += ", having said " + fault.Quote(string(text))
	}
	return bad
}

// errorObject reads a CNI error: an object with a code or a message. A message with
// code 0, which is none of CNI's, gets fault.Delegate.
func errorObject(stdout []byte) (e Error, ok bool) {
	var object struct {
		Code    *uint  `json:"code"`
		Msg     string `json:"msg"`
		Details string `json:"details"`
	}
	// Results, the rule, hold neither word and are not decoded twice.
	if !bytes.Contains(stdout, []byte(`"code"`)) && !bytes.Contains(stdout, []byte(`"msg"`)) {
		return e, false
	}
	if json.Unmarshal(stdout, &object) != nil {
		return e, false
	}
	if object.Code != nil {
		e.Code = *object.Code
	}
	if e.Code == 0 && object.Msg == "" {
		return e, false
	}
	if e.Code == 0 {
		e.Code = uint(fault.Delegate)
	}
	e.Msg, e.Details = cut(object.Msg), cut(object.Details)
	return e, true
}

// cut bounds a text of a plugin's; short ones, the rule, stay as they are.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

func signal(exit *exec.ExitError) syscall.Signal {
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return status.Signal()
	}
	return 0
}

// capture keeps what is written up to a limit; beyond it, it calls over and fails.
type capture struct {
	buf   bytes.Buffer
	limit int
	full  bool
	over  func()
}

func (c *capture) Write(b []byte) (int, error) {
	if c.buf.Len()+len(b) > c.limit {
		c.full = true
		c.over()
		return 0, errFlood
	}
	return c.buf.Write(b)
}

// tail passes on what is written, up to left bytes, and keeps the last of it.
type tail struct {
	to   io.Writer
	left int
	last []byte
}

func (t *tail) Write(b []byte) (int, error) {
	n := min(len(b), t.left)
	t.left -= n
	// Where the log is gone the plugin goes on all the same.
	_, _ = t.to.Write(b[:n])
	t.last = append(t.last, b[max(0, len(b)-maxText):]...)
	t.last = t.last[max(0, len(t.last)-maxText):]
	return len(b), nil
}
