// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
)

// reporter is a source that remembers what it is told.
type reporter struct {
	source
	told *[]Event
}

func newReporter(src source) reporter { return reporter{src, new([]Event)} }

func (r reporter) Annotate(context.Context, PodRef, string, func(string) string) error {
	return fault.New(fault.Internal, "test", "", "a plan annotates nothing")
}

func (r reporter) Tell(_ PodRef, e Event) { *r.told = append(*r.told, e) }

func (r reporter) open(*netconf.Conf) (Source, error) { return r, nil }

// TestHandleReports: a report has nearly all of the hands' time, and no taker in a
// planner that writes nothing.
func TestHandleReports(t *testing.T) {
	req := wire.Request{Verb: wire.VerbReport, TimeoutMS: 10_000, Report: &wire.ReportRequest{PodName: "web"}}
	var left time.Duration
	res := Handle(t.Context(), req, nil, func(ctx context.Context, r wire.ReportRequest, _ Open) wire.Response {
		d, _ := ctx.Deadline()
		left = time.Until(d)
		return wire.Response{Done: r.PodName == "web"}
	})
	if !res.Done || left < 5*time.Second || left > 9500*time.Millisecond {
		t.Errorf("answer %+v with %v left", res, left)
	}
	res = Handle(t.Context(), req, nil, nil)
	want := wire.Error{Code: 100, Msg: `planner: answers no verb "report": there is nowhere to write to`}
	if res.Done || res.Error == nil || *res.Error != want {
		t.Errorf("answer %+v", res.Error)
	}
}

// TestAnswerTells: faults and oddities of the pod are told to its owner, others are not.
func TestAnswerTells(t *testing.T) {
	neta := map[plan.NADRef]plan.NAD{{Namespace: "default", Name: "neta"}: {Found: true, Config: `{"cniVersion":"1.0.0","type":"pb"}`}}
	for name, c := range map[string]struct {
		src    source
		reason string // "" = nothing is told
	}{
		"all is well":   {source{pods: networks("u1", "neta"), nads: neta}, ""},
		"no NAD":        {source{pods: networks("u1", "netz")}, "NoNetworkFound"},
		"no annotation": {source{pods: networks("u1", "{}")}, "InvalidNetworks"},
		"odd":           {source{pods: networks("u1", `[{"name":"neta","x":1}]`), nads: neta}, "QuestionableNetworks"},
		"another pod":   {source{pods: networks("u2", "neta"), nads: neta}, ""},
		"no pod":        {source{}, ""},
		"a source away": {source{pods: networks("u1", "neta"), nadErr: fault.New(fault.TryLater, "x", "", "y")}, ""},
	} {
		r := newReporter(c.src)
		req := request(webArgs)
		res := Handle(t.Context(), wire.Request{Verb: wire.VerbPlan, Plan: &req}, r.open, nil)
		if res.Report != (res.Plan != nil) {
			t.Errorf("%s: wants a report: %v", name, res.Report)
		}
		var reason string
		if len(*r.told) == 1 {
			reason = (*r.told)[0].Reason
		}
		if reason != c.reason || len(*r.told) > 1 {
			t.Errorf("%s: told %+v, want %q", name, *r.told, c.reason)
		}
	}
	r := newReporter(source{})
	req := request("FOO=bar") // no pod of Kubernetes: nobody to report to
	if res := Handle(t.Context(), wire.Request{Verb: wire.VerbPlan, Plan: &req}, r.open, nil); res.Plan == nil || res.Report {
		t.Errorf("answer %+v", res)
	}
}
