// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
)

// reporter is a source that remembers what it is told.
type reporter struct {
	planner.Source
	annotation *string // of the pod
	told       *[]planner.Event
	deadline   *time.Duration
	err        error
}

func newReporter() reporter {
	return reporter{annotation: new(string), told: new([]planner.Event), deadline: new(time.Duration)}
}

func (r reporter) Annotate(ctx context.Context, pod planner.PodRef, annotation string, value func(string) string) error {
	if pod != (planner.PodRef{Namespace: "default", Name: "web", UID: "u1"}) || annotation != plan.StatusAnnotation {
		return fault.New(fault.Internal, "test", "", "annotates %s of %+v", annotation, pod)
	}
	if d, ok := ctx.Deadline(); ok {
		*r.deadline = time.Until(d)
	}
	*r.annotation = value(*r.annotation)
	return r.err
}

func (r reporter) Tell(_ planner.PodRef, e planner.Event) { *r.told = append(*r.told, e) }

func (r reporter) open(*netconf.Conf) (planner.Source, error) { return r, nil }

var made = []wire.ReportAttachment{
	{Network: "defnet", IfName: "eth0", Default: true, CNIVersion: "1.0.0", Result: []byte(
		`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`)},
	{Network: "default/neta", IfName: "net1", CNIVersion: "1.0.0", DeviceInfo: json.RawMessage(`{"type":"pci","n":9007199254740993}`)},
}

const ownStatus = `[
    {
        "name": "defnet",
        "interface": "eth0",
        "ips": [
            "10.1.0.2"
        ],
        "default": true
    },
    {
        "name": "default/neta",
        "device-info": {
            "type": "pci",
            "n": 9007199254740993
        }
    }
]`

func report1(errorOf *wire.Error, attachments ...wire.ReportAttachment) wire.Request {
	return wire.Request{Verb: wire.VerbReport, TimeoutMS: 10_000, Report: &wire.ReportRequest{
		Conf: []byte(`{"cniVersion":"1.0.0","name":"m","type":"weft-cni","delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]}`), PodNamespace: "default", PodName: "web", PodUID: "u1", Attachments: attachments, Error: errorOf,
	}}
}

func TestReport(t *testing.T) {
	r := newReporter()
	if d := cmp.Diff(wire.Response{Done: true}, planner.Handle(t.Context(), report1(nil, made...), r.open, Answer)); d != "" {
		t.Fatal(d)
	}
	if d := cmp.Diff(ownStatus, *r.annotation); d != "" {
		t.Error(d)
	}
	if *r.deadline < 5*time.Second || *r.deadline > 9500*time.Millisecond || len(*r.told) != 0 {
		t.Errorf("had %v, told %+v", *r.deadline, *r.told)
	}
	if res := planner.Handle(t.Context(), report1(&wire.Error{Code: 7, Msg: "a\nb", Details: "c"}), r.open, Answer); !res.Done {
		t.Errorf("answer %+v", res.Error)
	}
	if d := cmp.Diff([]planner.Event{{Reason: "FailedAddInterface", Message: "a b; c"}}, *r.told); d != "" {
		t.Error(d)
	}
}

func TestReportRefusals(t *testing.T) {
	broken := made[0]
	broken.Result = []byte(`{"cniVersion":"9.9"}`)
	nobody := report1(nil)
	nobody.Report.PodName = ""
	noConf := report1(nil)
	noConf.Report.Conf = nil
	later := newReporter()
	later.err = fault.New(fault.TryLater, "pod default/web", "", "is gone")
	for name, c := range map[string]struct {
		req  wire.Request
		src  planner.Source
		code fault.Code
		msg  string // "" = whatever it says
	}{
		"a result of another world": {report1(nil, broken), newReporter(), fault.Result, ""},
		"no pod":                    {nobody, newReporter(), fault.Internal, "report: names no pod"},
		"no conf":                   {noConf, newReporter(), fault.Config, ""},
		"a source of plans only":    {report1(nil), plansOnly{}, fault.Internal, "configuration m: names a source that takes no reports"},
		"a write that fails":        {report1(nil, made...), later, fault.TryLater, "pod default/web: is gone"},
	} {
		res := planner.Handle(t.Context(), c.req, func(*netconf.Conf) (planner.Source, error) { return c.src, nil }, Answer)
		if res.Done || res.Error == nil || res.Error.Code != uint(c.code) || c.msg != "" && res.Error.Msg != c.msg {
			t.Errorf("%s: answer %+v", name, res.Error)
		}
	}
}

// plansOnly is a source that takes no reports.
type plansOnly struct{ planner.Source }

// TestMergeStatus: what stays of the annotation that is there.
func TestMergeStatus(t *testing.T) {
	own := []netstatus.Entry{{Name: "defnet", Interface: "eth0", Default: true}, {Name: "default/neta", Interface: "extra0"}}
	attachments := []wire.ReportAttachment{{Network: "defnet", IfName: "eth0"}, {Network: "default/neta", IfName: "net1"}}
	alone := netstatus.Encode(own)
	kept := func(raw ...string) string {
		all := []json.RawMessage{}
		for _, e := range own {
			b, _ := json.Marshal(e)
			all = append(all, b)
		}
		for _, s := range raw {
			all = append(all, json.RawMessage(s))
		}
		b, _ := json.MarshalIndent(all, "", "    ")
		return string(b)
	}
	const hot = `{"name": "x/hot", "interface": "hot0", "n": 9007199254740993, "z": [1.50]}`
	for name, c := range map[string]struct{ old, want string }{
		"nothing":                      {"", alone},
		"ours":                         {alone, alone},
		"another's":                    {"[" + hot + "]", kept(hot)},
		"another's without interface":  {`[{"name":"x/hot"},` + hot + `]`, kept(`{"name":"x/hot"}`, hot)},
		"our network, older interface": {`[{"name":"default/neta","interface":"net7"}]`, alone},
		"our interface, older network": {`[{"name":"old","interface":"net1"},{"name":"old","interface":"extra0"}]`, alone},
		"no names":                     {`[{"interface":"x0"},7,null,"x",[]]`, alone},
		"an object":                    {`{"name":"x/hot"}`, alone},
		"nonsense":                     {"[{", alone},
		"null":                         {"null", alone},
	} {
		status := statusOf(attachments, own)
		got := status.Merge(c.old)
		if got != c.want {
			t.Errorf("%s: got %s\nwant %s", name, got, c.want)
		}
		if again := status.Merge(got); again != got || !status.In(got) {
			t.Errorf("%s: a second merge gives %s", name, again)
		}
		if status.In(c.old) != (c.old == got) {
			t.Errorf("%s: in the old value: %v", name, status.In(c.old))
		}
	}
}

// TestStatusIn: what makes a difference, and what does not.
func TestStatusIn(t *testing.T) {
	status := statusOf([]wire.ReportAttachment{{Network: "defnet", IfName: "eth0"}, {Network: "default/neta", IfName: "net1"}},
		[]netstatus.Entry{{Name: "defnet", Interface: "eth0", Default: true}, {Name: "default/neta", DeviceInfo: json.RawMessage(`{"n":9007199254740993}`)}})
	const eth0, net1, hot = `{"name":"defnet","interface":"eth0","default":true}`, `{"name":"default/neta","device-info":{"n":9007199254740993}}`, `{"name":"x/hot"}`
	for annotation, want := range map[string]bool{
		"[" + eth0 + "," + net1 + "]":                                          true,
		`[{"default": true,"interface":"eth0", "name":"defnet"},` + net1 + "]": true,
		"[" + hot + "," + eth0 + "," + hot + "," + net1 + "]":                  true,
		"[" + net1 + "," + eth0 + "]":                                          false,
		"[" + eth0 + "," + net1 + "," + net1 + "]":                             false,
		"[" + eth0 + "]":                false,
		"[" + eth0 + "," + net1 + ",7]": false,
		"[" + eth0 + `,{"name":"default/neta","device-info":{"n":9007199254740992}}]`:         false,
		"[" + eth0 + `,{"name":"default/neta","mtu":1,"device-info":{"n":9007199254740993}}]`: false,
		"[" + eth0 + "," + net1 + `,{"name":"older","interface":"net1"}]`:                     false,
		"":     false,
		"null": false,
		"[]":   false,
	} {
		if status.In(annotation) != want {
			t.Errorf("in %s: %v", annotation, !want)
		}
		if merged := status.Merge(annotation); !status.In(merged) || want && merged != annotation {
			t.Errorf("%s becomes %s", annotation, merged)
		}
	}
	if none := statusOf(nil, nil); none.In("") || !none.In("[]") || none.Merge("") != "[]" {
		t.Error("the status of nothing is an empty list")
	}
}

// TestStatusOfEarlierSandboxes: their entries go, by both names; with no sandbox nothing else is
// touched.
func TestStatusOfEarlierSandboxes(t *testing.T) {
	attached := []wire.ReportAttachment{
		{Network: "default/netb", IfName: "net2", CNIVersion: "1.0.0", Result: []byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"in0","sandbox":"/n"},{"name":"in1","sandbox":"/n"}]}`)},
		{Network: "default/netc", IfName: "net3", CNIVersion: "1.0.0", Result: []byte("nonsense")},
	}
	gone := NamesOf(attached)
	want := []Name{{"default/netb", "net2"}, {"default/netb", "in0"}, {"default/netb", "in1"}, {"default/netc", "net3"}}
	if d := cmp.Diff(want, gone); d != "" {
		t.Fatal(d)
	}
	own, err := StatusOf([]wire.ReportAttachment{{Network: "default/neta", IfName: "net1"}})
	if err != nil {
		t.Fatal(err)
	}
	const neta, old = `{"name":"default/neta"}`, `{"name":"default/netb","interface":"in1"},{"name":"default/netc","interface":"net3"}`
	const others = `{"name":"default/netb","interface":"hot0"},{"name":"x/hot","interface":"in1"}`
	for name, c := range map[string]struct {
		status    *Status
		old, want string
	}{
		"a later sandbox":          {own.Without(gone), "[" + old + "," + others + "]", "[" + neta + "," + others + "]"},
		"none":                     {Withdrawn(gone), "[" + old + "," + others + "]", "[" + others + "]"},
		"none, and none but those": {Withdrawn(gone), "[" + old + "]", "[]"},
		"none, nothing to do":      {Withdrawn(gone), "[" + others + ",7]", "[" + others + ",7]"},
		"none, no annotation":      {Withdrawn(gone), "", ""},
		"none, nonsense":           {Withdrawn(gone), "[{", "[{"},
	} {
		got := c.status.Merge(c.old)
		if d := cmp.Diff(decoded([]byte(c.want)), decoded([]byte(got))); d != "" || c.want == c.old && got != c.old {
			t.Errorf("%s: got %s: %s", name, got, d)
		}
		if !c.status.In(got) || c.status.In(c.old) != (c.old == got) {
			t.Errorf("%s: in %s: %v, in the old value: %v", name, got, c.status.In(got), c.status.In(c.old))
		}
	}
}

// FuzzMerge: whatever stands in the annotation, a merge says what it should, keeps what is
// another's, and is at rest.
func FuzzMerge(f *testing.F) {
	status := statusOf([]wire.ReportAttachment{{Network: "defnet", IfName: "eth0"}}, []netstatus.Entry{{Name: "defnet", Interface: "eth0", Default: true}})
	for _, old := range []string{"", "[]", "[{", `[{"name":"x"},7,{"name":"defnet"},{"interface":"eth0","name":"y"}]`} {
		f.Add(old)
	}
	f.Fuzz(func(t *testing.T, old string) {
		merged := status.Merge(old)
		if !status.In(merged) || status.Merge(merged) != merged {
			t.Errorf("%q becomes %q", old, merged)
		}
		_, before, _ := status.split(old)
		_, after, _ := status.split(merged)
		if len(before) != len(after) {
			t.Errorf("%q becomes %q: others' entries", old, merged)
		}
	})
}
