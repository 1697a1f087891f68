// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package crash_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/planner/plannertest"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// The orders of an agent, among the calls of a walk.
const (
	applied = "apply" // bring the running pod to what it asks for
	undone  = "undo"  // undo the sandbox that is gone
)

// plug is the agent of a scene, and what its pod asks for.
type plug struct {
	agent         *plannertest.Agent
	before, after string // annotations
	// fails: what is asked for later cannot be attached.
	fails string
	// real: its delegates are real plugins, which keep no account of their calls.
	real  bool
	begun time.Time // the record's, once it is there
	asked string
}

func (p *plug) ask(annotation string) {
	p.asked = annotation
	p.agent.Ask(annotation)
}

func (p *plug) asks() { p.ask(p.after) }

// plugged makes a scene of recording delegates whose pod asks an agent.
func plugged(before, after string, extra map[string]map[string]any) func(t *testing.T, tl tools) *scene {
	return func(t *testing.T, tl tools) *scene {
		t.Helper()
		s := recording(t, tl, extra)
		s.listens(t, before, after)
		s.present = func(t *testing.T, s *scene) {
			t.Helper()
			if diff := cmp.Diff(s.plug.holds(), files(t, s.at("hold"))); diff != "" {
				t.Errorf("the delegates hold (-want +got):\n%s", diff)
			}
		}
		return s
	}
}

// listens gives a scene an agent in the place of its manifests.
func (s *scene) listens(t *testing.T, before, after string) {
	t.Helper()
	socket := s.at("agent.sock")
	s.plug = &plug{agent: plannertest.Listen(t, socket), before: before, after: after}
	s.plug.ask(before)
	s.conf["agentSocket"] = socket
	delete(s.conf, "manifests")
	s.announce(t)
}

// announce gives the agent the networks as the scene's confs have them.
func (s *scene) announce(t *testing.T) {
	t.Helper()
	for i, name := range []string{"neta", "netb"} {
		b, err := json.Marshal(s.confs[i+1])
		if err != nil {
			t.Fatal(err)
		}
		s.plug.agent.Network(name, string(b))
	}
}

// holds is what the delegates hold of a pod that has what it asks for.
func (p *plug) holds() []string {
	all := []string{container + "-eth0-pa"}
	for element := range strings.SplitSeq(p.asked, ",") {
		if name, ifName, ok := strings.Cut(element, "@"); ok && element != p.fails {
			all = append(all, container+"-"+ifName+"-"+map[string]string{"neta": "pb", "netb": "pc"}[name])
		}
	}
	slices.Sort(all)
	return all
}

// order is what the agent says to weft-cni.
func (s *scene) order(t *testing.T, verb string) apply.Order {
	t.Helper()
	const key = container + "-eth0"
	if s.plug.begun.IsZero() {
		store, err := journal.Open(s.at("state/attachments"), record.Kind)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		st, err := store.Read(key)
		if err != nil || len(st.Intents) == 0 {
			t.Fatalf("the record before an order: %v %+v", err, st)
		}
		s.plug.begun = st.Intents[0].Time
	}
	conf, err := json.Marshal(s.conf)
	if err != nil {
		t.Fatal(err)
	}
	task := map[string]apply.Task{applied: apply.Plug, undone: apply.Undo}[verb]
	return apply.Order{Version: apply.Version, Task: task, Conf: conf, Key: key, Begun: s.plug.begun}
}

// answered checks how an order was answered that nobody killed: it is carried out, and what could
// not be is what was meant not to be.
func (p *plug) answered(t *testing.T, s *scene, a answer) {
	t.Helper()
	if a.verb != applied && a.verb != undone {
		return
	}
	var got apply.Answer
	if err := json.Unmarshal([]byte(a.stdout), &got); err != nil || a.Status != 0 {
		t.Fatalf("%v: %s", err, a)
	}
	outcomes := []apply.Outcome{apply.Done}
	if a.verb == undone {
		outcomes = append(outcomes, apply.Gone) // the killed one was at its end
	}
	if !slices.Contains(outcomes, got.Outcome) || (len(got.Failed) > 0) != (p.fails != "") {
		t.Fatalf("want that all is done, or has failed as meant: %s", a)
	}
	if a.verb == applied {
		s.present(t, s)
	}
}

// obeyed gives an order until nobody is at work on the record any more: the agent does the same.
func (s *scene) obeyed(t *testing.T, verb string) answer {
	t.Helper()
	for end := time.Now().Add(callLimit); ; <-time.After(20 * time.Millisecond) {
		a := s.call(t, verb, plain)
		if strings.Contains(a.stdout, `"`+string(apply.Busy)+`"`) && time.Now().Before(end) {
			continue
		}
		s.plug.answered(t, s, a)
		return a
	}
}

// untouched checks that nobody has called a delegate of a network that the pod keeps: it was attached,
// once, and that is all.
func (s *scene) untouched(t *testing.T) {
	t.Helper()
	if s.plug.real {
		return
	}
	kept := []string{"eth0"}
	for element := range strings.SplitSeq(s.plug.before, ",") {
		if _, ifName, ok := strings.Cut(element, "@"); ok && slices.Contains(strings.Split(s.plug.after, ","), element) {
			kept = append(kept, ifName)
		}
	}
	calls := map[string][]string{}
	for _, e := range s.events(t) {
		if slices.Contains(kept, e.IfName) && !e.End && e.Command != "CHECK" {
			calls[e.IfName] = append(calls[e.IfName], e.Command)
		}
	}
	for _, ifName := range kept {
		if got := calls[ifName]; !slices.Equal(got, []string{"ADD"}) {
			t.Errorf("the pod keeps %s, and its delegate was called for %v", ifName, got)
		}
	}
}

// plugWalks kill orders of an agent: a running pod gets a network, loses one, gets one in the place
// of another, and does not get one; a sandbox that is gone is undone. Then the next order, or the
// runtime's DEL or GC, ends right.
func plugWalks() []walk {
	const one, two, other = "neta@a", "neta@a,netb@b", "netb@a"
	change := []string{"ADD", asks}
	attach, detach, exchange := plugged(one, two, nil), plugged(two, one, nil), plugged(one, other, nil)
	broken := func(t *testing.T, tl tools) *scene {
		t.Helper()
		s := plugged(one, two, map[string]map[string]any{"pc": {"fail": map[string]any{"ADD": map[string]any{"code": 11, "msg": "no"}}}})(t, tl)
		s.plug.fails = "netb@b"
		return s
	}
	asleep := func(before, after, command string) func(t *testing.T, tl tools) *scene {
		return plugged(before, after, map[string]map[string]any{"pc": {
			"sleep": map[string]any{command: "1m"}, "child": map[string]any{command: "1m"},
		}})
	}
	lost := []string{"ADD", gone}
	return []walk{
		{name: "attach then apply", scene: attach, before: change, kill: applied, after: []string{applied, "CHECK", "DEL"}, every: 5},
		{name: "attach then DEL", scene: attach, before: change, kill: applied, after: []string{"DEL"}, every: 7},
		{name: "attach then GC", scene: attach, before: change, kill: applied, after: []string{"GC"}, every: 20},
		{name: "detach then apply", scene: detach, before: change, kill: applied, after: []string{applied, "CHECK", "DEL"}, every: 7},
		{name: "detach then DEL", scene: detach, before: change, kill: applied, after: []string{"DEL"}, every: 10},
		{name: "exchange then apply", scene: exchange, before: change, kill: applied, after: []string{applied, "CHECK", "DEL"}, every: 8},
		{name: "exchange then DEL", scene: exchange, before: change, kill: applied, after: []string{"DEL"}, every: 14},
		{name: "broken then apply", scene: broken, before: change, kill: applied, after: []string{applied, "DEL"}, every: 9, from: secondHalf},
		{name: "asleep then apply", scene: asleep(one, two, "ADD"), before: change, kill: applied, after: []string{applied, "DEL"}, every: 2, from: lastClone, stall: stall},
		{name: "asleep then DEL", scene: asleep(one, two, "ADD"), before: change, kill: applied, after: []string{"DEL"}, every: 2, from: lastClone, stall: stall},
		{name: "orphan then undo", scene: plugged(two, two, nil), before: lost, kill: undone, after: []string{undone}, every: 7},
		{name: "orphan then DEL", scene: plugged(two, two, nil), before: lost, kill: undone, after: []string{"DEL"}, every: 8},
	}
}

// plugWanted is how many kill points of orders a full run must have.
const plugWanted = 90

func TestCrashOfOrders(t *testing.T) {
	runWalks(t, newTools(t), plugWalks(), plugWanted)
}
