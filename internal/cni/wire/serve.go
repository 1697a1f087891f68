// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
)

// oldestVersion is the oldest protocol version that is answered: the one before
// Version, once there is one.
const oldestVersion = max(1, Version-1)

// Bounds of an Error's texts, in bytes: containerd copies them into events.
const (
	maxMsg     = 2 << 10
	maxDetails = 2 << 10
)

// Serve answers the requests on r until it ends, one after the other. The answer
// function sees only requests of a known version and verb that are complete; it
// need not set Version and RequestID, and its panic becomes an Error of code 100.
// Serve returns nil at the end of r, else why it stopped.
func Serve(r io.Reader, w io.Writer, answer func(Request) Response) error {
	for {
		var req Request
		err := Read(r, &req)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, ErrGarbage) && !errors.Is(err, ErrTooLarge) {
			return fmt.Errorf("serve planner: %w", err)
		}
		res := respond(req, err, answer)
		werr := write(w, res)
		if res.Written != nil {
			res.Written()
		}
		if werr != nil {
			return fmt.Errorf("serve planner: %w", werr)
		}
		if errors.Is(err, ErrTooLarge) {
			return fmt.Errorf("serve planner: %w", err)
		}
	}
}

// respond makes the response to req, or to the bytes that were none (readErr).
func respond(req Request, readErr error, answer func(Request) Response) Response {
	var res Response
	switch {
	case errors.Is(readErr, ErrTooLarge):
		res.Error = &Error{Code: uint(fault.Config), Msg: "planner request: " + ErrTooLarge.Error()}
	case readErr != nil:
		res.Error = &Error{Code: uint(fault.Internal), Msg: fault.Bound("planner request: "+readErr.Error(), maxMsg)}
	case req.Version < oldestVersion || req.Version > Version:
		// Time mends it: an upgrade is under way, of the hands or of the planner.
		res.Error = &Error{Code: uint(fault.TryLater), Msg: fmt.Sprintf(
			"planner request has protocol version %d, this planner knows %s", req.Version, KnownVersions())}
	case !slices.Contains([]string{VerbPlan, VerbApply, VerbHandover, VerbReport}, req.Verb):
		res.Error = &Error{Code: uint(fault.Internal), Msg: fmt.Sprintf(
			"planner request has verb %s, this planner knows %q, %q, %q and %q (protocol %s)",
			fault.Quote(req.Verb), VerbPlan, VerbApply, VerbHandover, VerbReport, KnownVersions())}
	case req.Verb == VerbPlan && req.Plan == nil, req.Verb == VerbApply && req.Apply == nil, req.Verb == VerbHandover && req.Handover == nil, req.Verb == VerbReport && req.Report == nil:
		res.Error = &Error{Code: uint(fault.Internal), Msg: fmt.Sprintf("planner request has verb %q and no body %q", req.Verb, req.Verb)}
	default:
		res = guard(req, answer)
	}
	res.RequestID = req.RequestID
	res.Version = req.Version
	if res.Version < oldestVersion || res.Version > Version {
		res.Version = Version
	}
	return res
}

// guard turns a panic of answer into an Error: one bad request never ends the planner.
func guard(req Request, answer func(Request) Response) (res Response) {
	defer func() {
		if p := recover(); p != nil {
			res = Response{Error: &Error{
				Code:    uint(fault.Internal),
				Msg:     fault.Bound(fmt.Sprintf("planner panicked: %v", p), maxMsg),
				Details: fault.Bound(string(debug.Stack()), maxDetails),
			}}
		}
	}()
	return answer(req)
}

// write sends res, or says why it cannot be sent.
func write(w io.Writer, res Response) error {
	err := writeResponse(w, res)
	if errors.Is(err, ErrTooLarge) {
		return Write(w, Response{Version: res.Version, RequestID: res.RequestID, Error: &Error{
			Code: uint(fault.Config), Msg: "planner answer: " + ErrTooLarge.Error(),
		}})
	}
	return err
}

// KnownVersions lists the protocol versions that are answered, for people: "versions 1".
func KnownVersions() string {
	var known []string
	for v := oldestVersion; v <= Version; v++ {
		known = append(known, strconv.Itoa(v))
	}
	return "versions " + strings.Join(known, ", ")
}

// NewError puts err on the wire: the first fault is the message, all others are
// the details, and after them the hints: what may explain the faults. The code is 7
// when any of them is (waiting does not mend it), else that of the first; an err
// without any fault is 100.
func NewError(err error, hints ...string) *Error {
	faults := fault.All(err)
	if len(faults) == 0 {
		faults = []*fault.Fault{{Code: fault.Internal, Text: err.Error()}}
	}
	e := &Error{Code: uint(faults[0].Code), Msg: fault.Bound(faults[0].Error(), maxMsg)}
	var rest []string
	for _, f := range faults {
		if f.Code == fault.Config {
			e.Code = uint(fault.Config)
		}
	}
	for _, f := range faults[1:] {
		rest = append(rest, f.Error())
	}
	e.Details = fault.Bound(strings.Join(append(rest, hints...), "; "), maxDetails)
	return e
}
