// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// TestRecordedHandover: this planner reads the hand-over of version 1, and these hands send it.
func TestRecordedHandover(t *testing.T) {
	body := HandoverRequest{
		Conf: []byte(recordedConf), Sandbox: recordedRequest().Sandbox,
		PodNamespace: "shop", PodName: "web", PodUID: recordedUID, IfNames: []string{"eth0", "data0"},
	}
	want := Request{Version: 1, RequestID: "0c6f53c1-eth0/handover", Verb: "handover", Handover: &body}
	var seen []Request
	var out bytes.Buffer
	err := Serve(bytes.NewReader(recorded(t, "handover.request")), &out, func(r Request) Response {
		seen = append(seen, r)
		return Response{Done: true}
	})
	if err != nil || len(seen) != 1 {
		t.Fatalf("%d requests, %v", len(seen), err)
	}
	if d := cmp.Diff(want, seen[0]); d != "" {
		t.Error(d)
	}
	if !bytes.Equal(out.Bytes(), recorded(t, "handover.response")) {
		t.Errorf("answered with %q", out.String())
	}
	var sent Request
	c := dial(t, func(conn net.Conn) {
		if Read(conn, &sent) == nil {
			_, _ = conn.Write(recorded(t, "handover.response"))
		}
	})
	if err := c.Handover(t.Context(), body); err != nil {
		t.Error(err)
	}
	c.Close()
	if d := cmp.Diff(want, sent); d != "" {
		t.Errorf("the request differs from the recorded one: %s", d)
	}
}

// TestHandover: it is wanted only where the planner says so, and its error is the planner's.
func TestHandover(t *testing.T) {
	wants := true
	c := dial(t, func(conn net.Conn) {
		_ = Serve(conn, conn, func(r Request) Response {
			if r.Verb == VerbPlan {
				return Response{Plan: &plan.Plan{}, Handover: wants}
			}
			return Response{Error: &Error{Code: 11, Msg: "device d: no"}}
		})
	})
	for range 2 {
		if _, err := c.Plan(t.Context(), testRequest, noFile(t)); err != nil || c.WantsHandover() != wants || c.WantsReport() {
			t.Errorf("wants a hand-over: %v, %v", c.WantsHandover(), err)
		}
		wants = false
	}
	if f, ok := errors.AsType[*fault.Fault](c.Handover(t.Context(), HandoverRequest{})); !ok || f.Code != 11 || f.Error() != "device d: no" {
		t.Errorf("error %v", f)
	}
	c.Close()
}
