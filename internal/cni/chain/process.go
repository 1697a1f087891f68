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
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/proc"
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
// included, or its proc.Exit. stdout is what it wrote in either case.
//
// Neither goroutines nor the runtime's poller take part: each would cost a process that
// lives for milliseconds a thread.
func (p *process) run(ctx context.Context) (stdout []byte, err error) {
	out := capture{limit: maxStdout}
	p.tail.to, p.tail.left = p.stderr, maxStderr
	pipes := newPlumbing(&out, &p.tail)
	defer pipes.close()
	child, err := p.start(ctx, pipes)
	if err != nil {
		return nil, err
	}
	if p.started != nil {
		p.started(groupOf(child.PID))
	}
	out.over = child.Kill
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		child.Kill()
		close(killed)
	})
	failed := pipes.serve(ctx, child)
	if !stop() {
		<-killed
	}
	if ctx.Err() != nil || out.full {
		p.endRest(ctx)
	}
	failed = errors.Join(failed, pipes.drain())
	exit, err := child.Reap()
	switch {
	case out.full:
		return out.buf.Bytes(), errFlood
	case exit.Killed() && ctx.Err() != nil:
		err = fmt.Errorf("killed with its process group: %w", context.Cause(ctx))
	case exit != 0:
		err = exit
	default:
		err = errors.Join(err, failed)
	}
	return out.buf.Bytes(), err
}

// endRest ends what a killed plugin left in sessions of its own: it still has a
// descriptor that the plugin inherited, and would go on behind the undo's back.
func (p *process) endRest(ctx context.Context) {
	if len(p.inherit) == 0 {
		return
	}
	ctx = brief.WithTimeout(context.WithoutCancel(ctx), restTimeout)
	if err := EndGroup(ctx, Group{}, p.inherit[0]); err != nil {
		_, _ = fmt.Fprintf(p.stderr, "%v\n", err)
	}
}

// start starts the plugin, trying again while its binary is being written.
func (p *process) start(ctx context.Context, pipes *plumbing) (*proc.Child, error) {
	pause := busyPause
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("start: %w", context.Cause(ctx))
		}
		child, err := pipes.start(p)
		if err == nil {
			return child, nil
		}
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return nil, fmt.Errorf("start: %w", err)
		}
		_ = brief.Sleep(ctx, pause)
		pause *= 2
	}
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
	if exit, ok := errors.AsType[proc.Exit](err); ok {
		bad.Msg = fmt.Sprintf("ended with %v and without a CNI error", exit)
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
