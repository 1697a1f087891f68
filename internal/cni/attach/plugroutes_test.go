// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/planner/plannertest"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// newRouted is a real pod with both default routes on eth0, and an agent that knows the networks
// b2 and b3, which have none of their own.
func newRouted(t *testing.T, asked string) (*real, *plannertest.Agent) {
	t.Helper()
	r := newReal(t)
	socket := filepath.Join(r.dir, "agent.sock")
	a := plannertest.Listen(t, socket)
	a.Ask(asked)
	for i, name := range []string{"b2", "b3"} {
		conf := r.bridge(name, "br"+name, fmt.Sprintf("10.%d.0.0/24", i+2), fmt.Sprintf("fd0%d::/64", i+2))
		delete(conf["ipam"].(map[string]any), "routes")
		a.Network(name, r.json(conf))
	}
	r.conf["agentSocket"] = socket
	delete(r.conf, "manifests")
	r.ok("ADD")
	return r, a
}

// plugs has the pod changed to what it asks for; so many attachments fail.
func (r *real) plugs(a *plannertest.Agent, asked string, failed int) {
	r.t.Helper()
	a.Ask(asked)
	if answer := r.obeys(r.order(apply.Plug), apply.Done); len(answer.Failed) != failed {
		r.t.Fatalf("%s: %+v", asked, answer)
	}
}

// wantDefaults checks the kernel, the recorded results and what the agent makes of them.
func (r *real) wantDefaults(v4, v6 string) {
	r.t.Helper()
	r.wantDefault(kernel.IPv4, v4)
	r.wantDefault(kernel.IPv6, v6)
	s, err := record.Decode(r.journaled(), journal.BootID())
	if err != nil {
		r.t.Fatal(err)
	}
	got := map[bool][]string{}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		if !a.Present(s.Body.Plugged) {
			continue
		}
		res, err := results.Parse(a.Result, a.Conf.CNIVersion)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range netstatus.Entries(a.Attachment, res, nil) {
			for _, gw := range e.Gateway {
				is6 := strings.Contains(gw, ":")
				if len(e.IPs) > 0 { // the entry of the pod's side
					got[is6] = append(got[is6], gw+" "+a.IfName)
				}
			}
		}
	}
	if four, six := strings.Join(got[false], ","), strings.Join(got[true], ","); four != v4 || six != v6 {
		r.t.Errorf("results tell %q and %q, want %q and %q", four, six, v4, v6)
	}
	if r.ok("CHECK"); r.t.Failed() {
		r.t.FailNow()
	}
}

const (
	eth4, eth6   = "10.1.0.1 eth0", "fd01::1 eth0"
	asks2        = `[{"name":"b2","interface":"two","default-route":["10.2.0.1"]}]`
	asks2both    = `[{"name":"b2","interface":"two","default-route":["10.2.0.1","fd02::1"]}]`
	asks3        = `[{"name":"b3","interface":"three","default-route":["10.3.0.1"]}]`
	asks2then3   = `[{"name":"b2","interface":"two"},{"name":"b3","interface":"three","default-route":["10.3.0.1"]}]`
	asks2bad6    = `[{"name":"b2","interface":"two","default-route":["10.2.0.1","fd99::1"]}]`
	asks2then36  = `[{"name":"b2","interface":"two","default-route":["10.2.0.1"]},{"name":"b3","interface":"three","default-route":["fd03::1"]}]`
	asks2then3no = `[{"name":"b2","interface":"two"},{"name":"b3","interface":"three","default-route":["10.99.0.1"]}]`
)

// Rule 8: whatever comes and goes, each family that had a default route has one, and what is
// told of it is true.
func TestPlugDefaultRoutes(t *testing.T) {
	type step struct {
		asked  string
		failed int
		v4, v6 string
	}
	for name, steps := range map[string][]step{
		"it comes and goes":                {{"", 0, eth4, eth6}, {asks2, 0, "10.2.0.1 two", eth6}, {"", 0, eth4, eth6}},
		"both families come and go":        {{"", 0, eth4, eth6}, {asks2both, 0, "10.2.0.1 two", "fd02::1 two"}, {"", 0, eth4, eth6}},
		"set at ADD, it goes":              {{asks2both, 0, "10.2.0.1 two", "fd02::1 two"}, {"", 0, eth4, eth6}, {asks2, 0, "10.2.0.1 two", eth6}},
		"half of it fails":                 {{"", 0, eth4, eth6}, {asks2bad6, 1, eth4, eth6}, {asks2, 0, "10.2.0.1 two", eth6}},
		"another takes over":               {{asks2, 0, "10.2.0.1 two", eth6}, {asks3, 0, "10.3.0.1 three", eth6}, {"", 0, eth4, eth6}},
		"another takes it, and goes first": {{asks2, 0, "10.2.0.1 two", eth6}, {asks2then3, 0, "10.3.0.1 three", eth6}, {asks2, 0, "10.2.0.1 two", eth6}, {"", 0, eth4, eth6}},
		"another takes it, and goes last":  {{asks2, 0, "10.2.0.1 two", eth6}, {asks2then3, 0, "10.3.0.1 three", eth6}, {asks3, 0, "10.3.0.1 three", eth6}, {"", 0, eth4, eth6}},
		"another takes it, and both go":    {{asks2, 0, "10.2.0.1 two", eth6}, {asks2then3, 0, "10.3.0.1 three", eth6}, {"", 0, eth4, eth6}},
		"another cannot take it":           {{asks2, 0, "10.2.0.1 two", eth6}, {asks2then3no, 1, "10.2.0.1 two", eth6}, {"", 0, eth4, eth6}},
		"a family each":                    {{asks2then36, 0, "10.2.0.1 two", "fd03::1 three"}, {asks2, 0, "10.2.0.1 two", eth6}, {"", 0, eth4, eth6}},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := newRouted(t, steps[0].asked)
			r.wantDefaults(steps[0].v4, steps[0].v6)
			for _, s := range steps[1:] {
				r.plugs(a, s.asked, s.failed)
				r.wantDefaults(s.v4, s.v6)
			}
			r.ok("DEL")
			r.wantGone()
		})
	}
}

// The routes of the pod network come back with what they had besides a gateway.
func TestPlugPutsRoutesBackExactly(t *testing.T) {
	r, a := newRouted(t, "")
	before, err := r.ns.SaveDefaultRoutes(kernel.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	before[0].Metric, before[0].MTU = 77, 1300
	if err := r.ns.RestoreDefaultRoutes(kernel.IPv4, before, "eth1"); err != nil {
		t.Fatal(err)
	}
	want, err := r.ns.DefaultRoutes(kernel.IPv4)
	if err != nil || len(want) != 2 {
		t.Fatal(want, err)
	}
	r.plugs(a, asks2, 0)
	r.plugs(a, "", 0)
	got, err := r.ns.SaveDefaultRoutes(kernel.IPv4)
	if err != nil || len(got) != 2 || got[1].Metric != 77 || got[1].MTU != 1300 {
		t.Errorf("%+v, %v: want %v", got, err, want)
	}
}

// Records from before the routes were remembered: the pod network has its gateway again.
func TestPlugOfAnOlderRecord(t *testing.T) {
	r, a := newRouted(t, asks2both)
	r.keepLines(func(line string) bool { return !strings.Contains(line, `"phase":"displacing"`) })
	r.plugs(a, "", 0)
	r.wantDefaults(eth4, eth6)
}

// keepLines has the record lose lines.
func (r *rig) keepLines(keep func(string) bool) {
	r.t.Helper()
	b, err := os.ReadFile(r.record())
	if err != nil {
		r.t.Fatal(err)
	}
	var kept bytes.Buffer
	for line := range strings.Lines(string(b)) {
		if keep(line) {
			kept.WriteString(line)
		}
	}
	if err := os.WriteFile(r.record(), kept.Bytes(), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// Killed at any line of its record after the last thing that was done, the next order brings the
// pod to what it asks for, and DEL undoes it.
func TestPlugWithRoutesIsKilled(t *testing.T) {
	for name, from := range map[string]struct{ before, after, acts string }{
		"it comes":      {"", asks2both, `"phase":"displacing"`},
		"it goes":       {asks2both, "", `"phase":"undoing"`},
		"another comes": {asks2, asks3, `"result":{"result":`},
	} {
		t.Run(name, func(t *testing.T) {
			thens := []struct{ asked, v4, v6 string }{{"", eth4, eth6}, {asks3, "10.3.0.1 three", eth6}, {asks2both, "10.2.0.1 two", "fd02::1 two"}}
			tried := 0
			for more := true; more; tried++ {
				r, a := newRouted(t, from.before)
				r.plugs(a, from.after, 0)
				more = r.losesAfter(from.acts, tried)
				then := thens[(tried+len(name))%len(thens)]
				r.plugs(a, then.asked, 0)
				r.wantDefaults(then.v4, then.v6)
				r.ok("DEL")
				r.wantGone()
			}
			if tried < 3 {
				t.Errorf("%d places to be killed at", tried)
			}
		})
	}
}

// losesAfter has the record lose what comes after so many lines behind the first with a text, and
// says whether that was anything.
func (r *rig) losesAfter(text string, lines int) (lost bool) {
	r.t.Helper()
	behind := -1
	r.keepLines(func(line string) bool {
		if behind >= 0 || strings.Contains(line, text) {
			behind++
		}
		lost = behind > lines
		return !lost
	})
	if behind < 0 {
		r.t.Fatalf("no line of the record has %s", text)
	}
	return lost
}

// While it takes routes the record says that the attachment is not made, and what it was.
func TestDisplacedIsRecorded(t *testing.T) {
	r, a := newRouted(t, "")
	r.plugs(a, asks2, 0)
	b, err := os.ReadFile(r.record())
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for line := range strings.Lines(string(b)) {
		var l struct{ Body journal.Phase }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if op := l.Body.Phase; op != "" && op != journal.Started {
			seen = append(seen, fmt.Sprint(op, l.Body.Item))
		}
	}
	if got := strings.Join(seen, " "); got != "attempting1 displacing1 done0 done1 done-1" {
		t.Error(got)
	}
	if !bytes.Contains(b, []byte(netip.MustParseAddr("10.1.0.1").String())) {
		t.Error("the record does not tell the gateway that was there")
	}
}
