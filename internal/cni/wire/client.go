// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// maxRounds bounds how often a planner may ask for files. A plan needs three at
// most: the cluster network's file, then what that file names, then the plan.
const maxRounds = 8

// ErrGone says that a planner on a socket hung up before it answered. It is an agent,
// which is started anew and sees the records; a spawned planner that ends is none.
var ErrGone = errors.New("planner is gone")

// Client talks to one planner. It is for one goroutine at a time.
type Client struct {
	conn *stream
	name string   // "planner at /run/weft/agent.sock"
	proc *process // nil when dialled

	// Meanwhile, when it is set, is called once: when the first request is on its way, and
	// before its answer is waited for.
	Meanwhile func()

	// Said beside the last plan.
	wantsReport, wantsHandover bool
}

// Spawned says that the planner is a program of this call, and not the node's agent.
func (c *Client) Spawned() bool { return c.proc != nil }

// Plan asks for the plan of an ADD and reads the files that the planner needs
// (read runs here, in the hands). Every error is a *fault.Fault: the planner's own
// with its code, 11 when the planner is away, dies or is late, 7 when the request
// is too large, 100 when what it says is not the protocol. After an error other
// than the planner's own the client is only good for Close.
func (c *Client) Plan(ctx context.Context, req PlanRequest, read func(plan.Need) plan.File) (*plan.Plan, error) {
	return c.plan(ctx, VerbPlan, req, read)
}

// Apply asks for the plan of a running pod, as Plan does for the one of an ADD.
func (c *Client) Apply(ctx context.Context, req PlanRequest, read func(plan.Need) plan.File) (*plan.Plan, error) {
	return c.plan(ctx, VerbApply, req, read)
}

func (c *Client) plan(ctx context.Context, verb string, req PlanRequest, read func(plan.Need) plan.File) (*plan.Plan, error) {
	stop, err := c.until(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()

	have := map[plan.Need]bool{}
	for _, f := range req.Files {
		have[f.Need] = true
	}
	c.wantsReport, c.wantsHandover = false, false
	for round := range maxRounds {
		ask := Request{RequestID: requestID(req.Sandbox, strconv.Itoa(round)), Verb: verb, Plan: &req}
		if verb == VerbApply {
			ask.Plan, ask.Apply = nil, &req
		}
		res, err := c.exchange(ctx, ask)
		if err != nil {
			return nil, err
		}
		if res.Plan != nil {
			c.wantsReport, c.wantsHandover = res.Report, res.Handover
			return res.Plan, nil
		}
		for _, need := range res.Need {
			if have[need] {
				return nil, c.faultf(fault.Internal, nil, "asks for %s again", fault.Quote(string(need)))
			}
			have[need] = true
			f := read(need)
			f.Need = need
			req.Files = append(req.Files, f)
		}
	}
	return nil, c.faultf(fault.Internal, nil, "still asks for files after %d rounds", maxRounds)
}

// WantsReport says whether the planner that gave the last plan wants to know how the ADD went.
func (c *Client) WantsReport() bool { return c.wantsReport }

// Report tells the planner how the ADD went, over the connection that gave the plan, and
// waits until that stands where users look. Errors are as those of Plan: 11 when time may
// mend it, 7 when somebody has to. It wraps ErrGone when an agent ended meanwhile.
func (c *Client) Report(ctx context.Context, req ReportRequest) error {
	stop, err := c.until(ctx)
	if err != nil {
		return err
	}
	defer stop()
	_, err = c.exchange(ctx, Request{RequestID: requestID(req.Sandbox, VerbReport), Verb: VerbReport, Report: &req})
	return err
}

// WantsHandover says whether the pod of the last plan claimed devices, which Handover asks for.
func (c *Client) WantsHandover() bool { return c.wantsHandover }

// Handover has the planner move the pod's claimed devices into the sandbox, over the connection
// that gave the plan. Errors are as those of Plan; after any of them no device is there, or will
// be brought home once the record of the ADD is gone.
func (c *Client) Handover(ctx context.Context, req HandoverRequest) error {
	stop, err := c.until(ctx)
	if err != nil {
		return err
	}
	defer stop()
	_, err = c.exchange(ctx, Request{RequestID: requestID(req.Sandbox, VerbHandover), Verb: VerbHandover, Handover: &req})
	return err
}

func requestID(s plan.Sandbox, what string) string {
	return s.ContainerID + "-" + s.IfName + "/" + what
}

// until gives the connection the time of ctx, until stop is called.
func (c *Client) until(ctx context.Context) (stop func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, c.faultf(fault.TryLater, err, "deadline has passed")
	}
	c.conn.ctx = ctx
	return func() { c.conn.ctx = context.Background() }, nil
}

// send sends one request.
func (c *Client) send(ctx context.Context, req Request) error {
	err := Write(c.conn, req)
	switch {
	case err == nil:
		if c.Meanwhile != nil {
			c.Meanwhile()
			c.Meanwhile = nil
		}
		return nil
	case errors.Is(err, ErrTooLarge):
		return c.faultf(fault.Config, err, "request is too large: %v", err)
	}
	// A planner that refuses a frame answers before it hangs up: read on.
	if res := (&Response{}); Read(c.conn, res) == nil && res.Error != nil {
		return c.answered(res.Error)
	}
	return c.broken(ctx, err)
}

// exchange sends one request and returns what answers it other than an error.
func (c *Client) exchange(ctx context.Context, req Request) (*Response, error) {
	req.Version = Version
	if d, ok := ctx.Deadline(); ok {
		req.TimeoutMS = max(1, time.Until(d).Milliseconds())
	}
	if err := c.send(ctx, req); err != nil {
		return nil, err
	}
	var res Response
	if err := Read(c.conn, &res); err != nil {
		return nil, c.broken(ctx, err)
	}
	switch {
	// A request that could not be read has no ID to repeat.
	case res.RequestID != req.RequestID && (res.RequestID != "" || res.Error == nil):
		return nil, c.faultf(fault.Internal, nil, "answers request %s, asked was %s",
			fault.Quote(res.RequestID), fault.Quote(req.RequestID))
	case res.Error != nil && res.Plan == nil && len(res.Need) == 0 && !res.Done:
		return nil, c.answered(res.Error) // also of another version: it says which ones it knows
	case res.Version < oldestVersion || res.Version > Version:
		return nil, c.faultf(fault.TryLater, nil, "answers in protocol version %d, known are %s", res.Version, KnownVersions())
	case res.Error == nil && req.answeredBy(res):
		return &res, nil
	}
	return nil, c.faultf(fault.Internal, nil, "answers with other than %s", req.answers())
}

// answeredBy says whether res, which is no error, is an answer to r.
func (r Request) answeredBy(res Response) bool {
	isPlan, isNeed := res.Plan != nil, len(res.Need) > 0
	if r.Verb != VerbPlan && r.Verb != VerbApply {
		return res.Done && !isPlan && !isNeed
	}
	return isPlan != isNeed && !res.Done
}

// answers names what may answer r.
func (r Request) answers() string {
	if r.Verb != VerbPlan && r.Verb != VerbApply {
		return "one of done and error"
	}
	return "one of plan, need and error"
}

// answered is the planner's own error as a fault.
func (c *Client) answered(e *Error) error {
	text := e.Msg
	if e.Details != "" {
		text += "; " + e.Details
	}
	if text == "" {
		text = c.name + " gives an error without a text"
	}
	code := fault.Code(e.Code)
	if code == 0 {
		code = fault.Internal
	}
	return &fault.Fault{Code: code, Text: fault.Bound(text, maxMsg+maxDetails)}
}

// broken says why the stream gave no answer.
func (c *Client) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded):
		return c.faultf(fault.TryLater, err, "gives no answer in time%s", c.proc.tail())
	case errors.Is(err, ErrGarbage) || errors.Is(err, ErrTooLarge):
		return c.faultf(fault.Internal, err, "answers nonsense: %v", err)
	case c.proc != nil:
		return c.faultf(fault.TryLater, err, "ends without an answer (%s)%s", c.proc.end(), c.proc.tail())
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return c.faultf(fault.TryLater, fmt.Errorf("%w: %w", ErrGone, err), "hangs up without an answer")
	}
	return c.faultf(fault.TryLater, fmt.Errorf("%w: %w", ErrGone, err), "gives no answer: %v", err)
}

// faultf makes a fault about this planner; err is its cause.
func (c *Client) faultf(code fault.Code, err error, format string, args ...any) error {
	return &fault.Fault{Code: code, Object: c.name, Text: fault.Bound(fmt.Sprintf(format, args...), maxMsg+maxDetails), Err: err}
}

// Hangup tells a planner that nothing more is asked, so that a spawned one ends while
// its caller does something else. Only Close may follow.
func (c *Client) Hangup() { c.conn.hangup() }

// Close hangs up. A spawned planner then ends by itself, or is killed after a second.
func (c *Client) Close() error {
	err := c.conn.close()
	if c.proc != nil {
		c.proc.end()
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", c.name, err)
	}
	return nil
}
