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

// Client talks to one planner. It is for one goroutine at a time.
type Client struct {
	conn *os.File // stream socket, nonblocking, so that deadlines work
	name string   // "planner at /run/weft/agent.sock"
	proc *process // nil when dialled
}

// Plan asks for the plan of an ADD and reads the files that the planner needs
// (read runs here, in the hands). Every error is a *fault.Fault: the planner's own
// with its code, 11 when the planner is away, dies or is late, 7 when the request
// is too large, 100 when what it says is not the protocol. After an error other
// than the planner's own the client is only good for Close.
func (c *Client) Plan(ctx context.Context, req PlanRequest, read func(plan.Need) plan.File) (*plan.Plan, error) {
	if err := ctx.Err(); err != nil {
		return nil, c.faultf(fault.TryLater, err, "deadline has passed")
	}
	if d, ok := ctx.Deadline(); ok {
		if err := c.conn.SetDeadline(d); err != nil {
			return nil, c.faultf(fault.Internal, err, "set deadline: %v", err)
		}
	}
	// A cancelled context wakes a read or write that is under way.
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	have := map[plan.Need]bool{}
	for _, f := range req.Files {
		have[f.Need] = true
	}
	id := req.Sandbox.ContainerID + "-" + req.Sandbox.IfName
	for round := range maxRounds {
		res, err := c.exchange(ctx, Request{
			Version: Version, RequestID: id + "/" + strconv.Itoa(round), Verb: VerbPlan, Plan: &req,
		})
		if err != nil {
			return nil, err
		}
		if res.Plan != nil {
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

// exchange sends one request and returns the plan or the needs that answer it.
func (c *Client) exchange(ctx context.Context, req Request) (*Response, error) {
	if err := Write(c.conn, req); err != nil {
		if errors.Is(err, ErrTooLarge) {
			return nil, c.faultf(fault.Config, err, "request is too large: %v", err)
		}
		// A planner that refuses a frame answers before it hangs up: read on.
		if res := (&Response{}); Read(c.conn, res) == nil && res.Error != nil {
			return nil, c.answered(res.Error)
		}
		return nil, c.broken(ctx, err)
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
	case res.Error != nil && res.Plan == nil && len(res.Need) == 0:
		return nil, c.answered(res.Error) // also of another version: it says which ones it knows
	case res.Version < oldestVersion || res.Version > Version:
		return nil, c.faultf(fault.TryLater, nil, "answers in protocol version %d, known are %s", res.Version, KnownVersions())
	case res.Error == nil && (res.Plan != nil) != (len(res.Need) > 0):
		return &res, nil
	}
	return nil, c.faultf(fault.Internal, nil, "answers with other than one of plan, need and error")
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
		return c.faultf(fault.TryLater, err, "hangs up without an answer")
	}
	return c.faultf(fault.TryLater, err, "gives no answer: %v", err)
}

// faultf makes a fault about this planner; err is its cause.
func (c *Client) faultf(code fault.Code, err error, format string, args ...any) error {
	return &fault.Fault{Code: code, Object: c.name, Text: fault.Bound(fmt.Sprintf(format, args...), maxMsg+maxDetails), Err: err}
}

// Close hangs up. A spawned planner then ends by itself, or is killed after a second.
func (c *Client) Close() error {
	err := c.conn.Close()
	if c.proc != nil {
		c.proc.end()
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", c.name, err)
	}
	return nil
}
