// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// recordedReport is what the recorded report says.
func recordedReport() ReportRequest {
	return ReportRequest{
		Conf: []byte(recordedConf), Sandbox: recordedRequest().Sandbox,
		PodNamespace: "shop", PodName: "web", PodUID: recordedUID,
		Attachments: []ReportAttachment{
			{
				Network: "main", IfName: "eth0", Default: true, CNIVersion: "1.0.0",
				Result: []byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/var/run/netns/cni-1"}],"ips":[{"address":"10.1.0.7/24","interface":0}]}`),
			},
			{
				Network: "default/neta", IfName: "data0", CNIVersion: "1.0.0", Result: []byte(`{"cniVersion":"1.0.0"}`),
				DeviceInfo: json.RawMessage(`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:03:02.0"}}`),
			},
		},
	}
}

func recordedFailure() ReportRequest {
	r := recordedReport()
	r.Attachments = nil
	r.Error = &Error{Code: 11, Msg: "network default/neta, interface data0: no addresses left", Details: "range 10.2.0.0/24"}
	return r
}

// TestRecordedReports: this planner reads the reports of version 1, and these hands send
// those and read the answers.
func TestRecordedReports(t *testing.T) {
	for name, report := range map[string]ReportRequest{"report": recordedReport(), "failure": recordedFailure()} {
		want := Request{Version: 1, RequestID: "0c6f53c1-eth0/report", Verb: "report", Report: &report}
		var seen []Request
		var out bytes.Buffer
		err := Serve(bytes.NewReader(recorded(t, name+".request")), &out, func(r Request) Response {
			seen = append(seen, r)
			return Response{Done: true}
		})
		if err != nil || len(seen) != 1 {
			t.Fatalf("%s: %d requests, %v", name, len(seen), err)
		}
		if d := cmp.Diff(want, seen[0]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if !bytes.Equal(out.Bytes(), recorded(t, "report.response")) {
			t.Errorf("%s: answered with %q", name, out.String())
		}
		var sent Request
		c := dial(t, func(conn net.Conn) {
			if Read(conn, &sent) == nil {
				_, _ = conn.Write(recorded(t, "report.response"))
			}
		})
		if err := c.Report(t.Context(), report); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
		if d := cmp.Diff(want, sent); d != "" {
			t.Errorf("%s: the request differs from the recorded one: %s", name, d)
		}
	}
}

// TestReport: plan and report go over one connection, and the planner is told how long
// the hands wait.
func TestReport(t *testing.T) {
	var seen []Request
	wants := true
	c := dial(t, func(conn net.Conn) {
		_ = Serve(conn, conn, func(r Request) Response {
			seen = append(seen, r)
			switch {
			case r.Verb == VerbPlan:
				return Response{Plan: &plan.Plan{}, Report: wants}
			case r.Report.Error != nil:
				return Response{Error: &Error{Code: 7, Msg: "no"}}
			}
			return Response{Done: true}
		})
	})
	for range 2 {
		if _, err := c.Plan(t.Context(), testRequest, noFile(t)); err != nil || c.WantsReport() != wants {
			t.Errorf("wants report: %v, %v", c.WantsReport(), err)
		}
		wants = false
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Report(ctx, ReportRequest{PodName: "web"}); err != nil {
		t.Error(err)
	}
	if f, ok := errors.AsType[*fault.Fault](c.Report(ctx, ReportRequest{Error: &Error{}})); !ok || f.Code != 7 || f.Error() != "no" {
		t.Errorf("error %v", f)
	}
	c.Close()
	if len(seen) != 4 || seen[0].TimeoutMS != 0 || seen[2].Report.PodName != "web" {
		t.Fatalf("requests %+v", seen)
	}
	if ms := seen[2].TimeoutMS; ms < 30_000 || ms > 60_000 {
		t.Errorf("says that it waits %d ms", ms)
	}
}

// TestReportFaults has answers that are none to a report, or none to a plan.
func TestReportFaults(t *testing.T) {
	const nonsense = ": answers with other than one of done and error"
	for name, c := range map[string]struct{ answer, text string }{
		"a plan":         {`{"version":1,"requestID":"-/report","plan":{}}`, nonsense},
		"a need":         {`{"version":1,"requestID":"-/report","need":["confDir/a"]}`, nonsense},
		"nothing":        {`{"version":1,"requestID":"-/report"}`, nonsense},
		"done and error": {`{"version":1,"requestID":"-/report","done":true,"error":{"code":7,"msg":"x"}}`, nonsense},
		"another's":      {`{"version":1,"requestID":"-/0","done":true}`, `: answers request "-/0", asked was "-/report"`},
	} {
		t.Run(name, func(t *testing.T) {
			cl := dial(t, func(conn net.Conn) {
				var r Request
				if Read(conn, &r) == nil {
					_ = Write(conn, json.RawMessage(c.answer))
				}
			})
			f, ok := errors.AsType[*fault.Fault](cl.Report(t.Context(), ReportRequest{}))
			if !ok || f.Code != fault.Internal || f.Error() != cl.name+c.text {
				t.Errorf("error %v, want %s", f, c.text)
			}
		})
	}
	cl := dial(t, func(conn net.Conn) {
		var r Request
		if Read(conn, &r) == nil {
			_ = Write(conn, Response{Version: 1, RequestID: r.RequestID, Done: true})
		}
	})
	_, err := cl.Plan(t.Context(), testRequest, noFile(t))
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Text != "answers with other than one of plan, need and error" {
		t.Errorf("error %v", err)
	}
}
