// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// frames makes a stream of frames with these bodies.
func frames(bodies ...string) string {
	var b strings.Builder
	for _, body := range bodies {
		n := len(body)
		b.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		b.WriteString(body)
	}
	return b.String()
}

// responses reads all frames of a stream.
func responses(t *testing.T, r io.Reader) []Response {
	t.Helper()
	var all []Response
	for {
		var res Response
		err := Read(r, &res)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("response %d: %v", len(all), err)
		}
		all = append(all, res)
	}
}

func answerPlan(req Request) Response {
	return Response{Plan: &plan.Plan{PodName: req.Plan.Sandbox.ContainerID}}
}

func TestServeRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		id      string
		code    fault.Code
		text    string
	}{
		"a later version": {
			`{"version":2,"requestID":"r","verb":"plan","plan":{}}`, "r", 11,
			"planner request has protocol version 2, this planner knows versions 1",
		},
		"no version": {
			`{"requestID":"r","verb":"plan","plan":{}}`, "r", 11,
			"planner request has protocol version 0, this planner knows versions 1",
		},
		"an unknown verb": {
			`{"version":1,"requestID":"r","verb":"dance"}`, "r", 100,
			`planner request has verb "dance", this planner knows "plan", "apply", "handover" and "report" (protocol versions 1)`,
		},
		"a hand-over without its body": {
			`{"version":1,"requestID":"r","verb":"handover"}`, "r", 100, `planner request has verb "handover" and no body "handover"`,
		},
		"a verb without its body": {
			`{"version":1,"requestID":"r","verb":"plan"}`, "r", 100, `planner request has verb "plan" and no body "plan"`,
		},
		"no JSON": {`{`, "", 100, "planner request: decode message: message is not of the planner protocol: unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			// The stream stays usable: a good request follows.
			in := frames(c.request, `{"version":1,"requestID":"next","verb":"plan","plan":{"sandbox":{"containerID":"c1"}}}`)
			if err := Serve(strings.NewReader(in), &out, answerPlan); err != nil {
				t.Fatal(err)
			}
			all := responses(t, &out)
			if len(all) != 2 {
				t.Fatalf("%d responses, want 2", len(all))
			}
			bad, good := all[0], all[1]
			if bad.Error == nil || bad.Error.Msg != c.text || bad.Error.Code != uint(c.code) {
				t.Errorf("error %+v, want code %d %q", bad.Error, c.code, c.text)
			}
			if bad.RequestID != c.id || bad.Version != 1 || bad.Plan != nil {
				t.Errorf("response %+v", bad)
			}
			if good.RequestID != "next" || good.Version != 1 || good.Plan == nil || good.Plan.PodName != "c1" {
				t.Errorf("next response %+v", good)
			}
		})
	}
}

func TestServeEndsWithTheStream(t *testing.T) {
	for name, c := range map[string]struct {
		in        string
		want      error
		responses int
	}{
		"empty":            {"", nil, 0},
		"inside a frame":   {"\x00\x00\x00\x09{", io.ErrUnexpectedEOF, 0},
		"too large, so it": {"\x7f\x00\x00\x00{", ErrTooLarge, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Serve(strings.NewReader(c.in), &out, answerPlan); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			all := responses(t, &out)
			if len(all) != c.responses {
				t.Fatalf("%d responses, want %d", len(all), c.responses)
			}
			for _, res := range all {
				if res.Error == nil || res.Error.Code != 7 || res.Error.Msg != "planner request: message is larger than 32 MiB" {
					t.Errorf("error %+v", res.Error)
				}
			}
		})
	}
}

func TestServeSurvivesAnswers(t *testing.T) {
	request := `{"version":1,"requestID":"r","verb":"plan","plan":{"sandbox":{"containerID":"%s"}}}`
	answer := func(req Request) Response {
		switch req.Plan.Sandbox.ContainerID {
		case "panic":
			panic("no such door")
		case "huge":
			conf := make([]byte, MaxMessage/4*3) // base64 makes four of three
			return Response{Plan: &plan.Plan{Attachments: []plan.Attachment{{Conf: netconf.Network{Plugins: []netconf.Plugin{{Conf: conf}}}}}}}
		}
		return answerPlan(req)
	}
	var out bytes.Buffer
	in := frames(fmt.Sprintf(request, "panic"), fmt.Sprintf(request, "huge"), fmt.Sprintf(request, "c1"))
	if err := Serve(strings.NewReader(in), &out, answer); err != nil {
		t.Fatal(err)
	}
	all := responses(t, &out)
	if len(all) != 3 {
		t.Fatalf("%d responses, want 3", len(all))
	}
	if e := all[0].Error; e == nil || e.Code != 100 || e.Msg != "planner panicked: no such door" || !strings.Contains(e.Details, "wire.TestServeSurvivesAnswers") {
		t.Errorf("panic gives %+v", e)
	}
	if e := all[1].Error; e == nil || e.Code != 7 || e.Msg != "planner answer: message is larger than 32 MiB" {
		t.Errorf("huge answer gives %+v", e)
	}
	if all[2].Plan == nil || all[2].Plan.PodName != "c1" {
		t.Errorf("response %+v", all[2])
	}
}

func TestNewError(t *testing.T) {
	later := fault.New(fault.TryLater, "pod default/a", "", "is not known yet")
	config := fault.New(fault.Config, "pod default/a", "annotation x[1].mac", "is wrong")
	for name, c := range map[string]struct {
		err   error
		hints []string
		want  Error
	}{
		"one fault":  {later, nil, Error{Code: 11, Msg: "pod default/a: is not known yet"}},
		"no fault":   {errors.New("odd"), nil, Error{Code: 100, Msg: "odd"}},
		"with hints": {later, []string{"file b: bad", "file c: bad"}, Error{Code: 11, Msg: "pod default/a: is not known yet", Details: "file b: bad; file c: bad"}},
		"several, one to mend": {
			errors.Join(later, fmt.Errorf("wrapped: %w", config)), nil,
			Error{Code: 7, Msg: "pod default/a: is not known yet", Details: "pod default/a: annotation x[1].mac: is wrong"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := NewError(c.err, c.hints...); *got != c.want {
				t.Errorf("%+v, want %+v", *got, c.want)
			}
		})
	}
	long := NewError(errors.Join(fault.New(7, "", "", "%s", strings.Repeat("ä", 9000)), fault.New(7, "", "", "%s", strings.Repeat("b\n", 9000))))
	if len(long.Msg) > maxMsg || len(long.Details) > maxDetails || strings.Contains(long.Details, "\n") {
		t.Errorf("texts of %d and %d bytes", len(long.Msg), len(long.Details))
	}
}

func FuzzServe(f *testing.F) {
	f.Add([]byte(frames(`{"version":1,"requestID":"r","verb":"plan","plan":{}}`, `{"version":0}`)))
	f.Add([]byte(frames(`null`, `[]`, `{"plan":null}`)))
	f.Add([]byte("\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		answered := 0
		err := Serve(bytes.NewReader(in), &out, func(req Request) Response {
			answered++
			return answerPlan(req)
		})
		if err == nil && len(in) > 0 && out.Len() == 0 {
			t.Fatal("a stream that ended well had no answer")
		}
		for _, res := range responses(t, &out) {
			if (res.Plan == nil) == (res.Error == nil) || len(res.Need) > 0 || res.Version != Version {
				t.Fatalf("response %+v", res)
			}
			if res.Plan != nil {
				answered--
			}
		}
		if answered != 0 {
			t.Fatalf("%d answers were not sent", answered)
		}
	})
}
