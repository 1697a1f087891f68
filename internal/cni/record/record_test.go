// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

const boot = "this-boot"

func state(t *testing.T, in journal.Intent, phases ...journal.Phase) journal.State {
	t.Helper()
	body, err := json.Marshal(record.Body{
		Sandbox: plan.Sandbox{ContainerID: "c1", IfName: "eth0"},
		Plan:    plan.Plan{Attachments: []plan.Attachment{{IfName: "eth0"}, {IfName: "net1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	in.Body = body
	return journal.State{Intents: []journal.Intent{in}, Phases: phases}
}

func TestDecode(t *testing.T) {
	phase := func(op journal.Op, item int) journal.Phase { return journal.Phase{Phase: op, Item: item} }
	done := journal.Phase{Phase: journal.Done, Item: 0, Result: json.RawMessage(`{"a":1}`)}
	done1 := journal.Phase{Phase: journal.Done, Item: 1, Result: json.RawMessage(`{}`)}
	del := record.UndoPhase(true)
	type view struct {
		Pending  [2]bool
		Result0  string
		Finished bool
		Undone   bool
		Deletes  int
	}
	for name, c := range map[string]struct {
		boot   string
		phases []journal.Phase
		want   view
	}{
		"nothing attempted": {boot: boot, want: view{Undone: true}},
		"of another boot":   {boot: "old", want: view{Pending: [2]bool{true, true}}},
		"attempting": {
			boot: boot, phases: []journal.Phase{phase(journal.Attempting, 0)},
			want: view{Pending: [2]bool{true, false}},
		},
		"finished": {
			boot: boot, phases: []journal.Phase{done, done1, phase(journal.Done, journal.WholeCall)},
			want: view{Pending: [2]bool{true, true}, Result0: `{"a":1}`, Finished: true},
		},
		"finished, with a line missing": {
			boot: boot, phases: []journal.Phase{done, phase(journal.Attempting, 1), phase(journal.Done, journal.WholeCall)},
			want: view{Pending: [2]bool{true, true}, Result0: `{"a":1}`},
		},
		"edited result wins": {
			boot: boot, phases: []journal.Phase{done, {Phase: journal.Done, Item: 0, Result: json.RawMessage(`{"a":2}`)}},
			want: view{Pending: [2]bool{true, false}, Result0: `{"a":2}`},
		},
		"about to take what was there": {
			boot: boot, phases: []journal.Phase{
				done, phase(journal.Attempting, 1),
				{Phase: journal.Displacing, Item: 0, Result: json.RawMessage(`{"result":{"a":3},"defaults":[]}`)},
				{Phase: journal.Displacing, Item: 1, Result: json.RawMessage(`"what a later version writes"`)},
			},
			want: view{Pending: [2]bool{true, true}, Result0: `{"a":3}`},
		},
		"half undone, twice asked": {
			boot: boot, phases: []journal.Phase{
				done, phase(journal.Done, 1), phase(journal.Done, journal.WholeCall),
				del, phase(journal.Undoing, 1), phase(journal.Undone, 1), phase(journal.Undoing, 0), del,
			},
			want: view{Pending: [2]bool{true, false}, Result0: `{"a":1}`, Deletes: 2},
		},
		"undone by a failed ADD": {
			boot: boot, phases: []journal.Phase{done, record.UndoPhase(false), phase(journal.Undone, 0)},
			want: view{Result0: `{"a":1}`, Undone: true},
		},
		"undone in an earlier boot": {
			boot: "old", phases: []journal.Phase{phase(journal.Undone, 0), phase(journal.Undone, 1)},
			want: view{Undone: true},
		},
		"items that are not planned": {
			boot: boot, phases: []journal.Phase{phase(journal.Attempting, 7), phase(journal.Attempting, -9)},
			want: view{Undone: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := record.Decode(state(t, journal.Intent{Key: "c1-eth0", Boot: c.boot}, c.phases...), boot)
			if err != nil {
				t.Fatal(err)
			}
			got := view{Finished: s.Finished, Undone: true, Deletes: s.Deletes, Result0: string(s.Attachments[0].Result)}
			for i := range got.Pending {
				got.Pending[i] = s.Attachments[i].Pending()
				got.Undone = got.Undone && !got.Pending[i]
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// Any body gives a sandbox or an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"plan":{"attachments":[{"ifName":"eth0"}]}}`), 0, "done")
	f.Add([]byte(`{"plan":{"attachments":[{}],"podName":1}}`), -1, "undoing")
	f.Add([]byte(`null`), 1<<40, "")
	f.Add([]byte(`{"plan":{"attachments":[null,{"gateways":["x"]}]}}`), 1, "attempting")
	f.Fuzz(func(t *testing.T, body []byte, item int, op string) {
		st := journal.State{
			Intents: []journal.Intent{{Key: "k", Boot: boot, Body: body}},
			Phases:  []journal.Phase{{Phase: journal.Op(op), Item: item}},
		}
		s, err := record.Decode(st, boot)
		if err == nil && len(s.Attachments) != len(s.Body.Plan.Attachments) {
			t.Errorf("%d attachments of %d planned", len(s.Attachments), len(s.Body.Plan.Attachments))
		}
	})
}

// TestDecodeTakenOver: what Multus attached counts as attempted from the intent on.
func TestDecodeTakenOver(t *testing.T) {
	body, err := json.Marshal(record.Body{
		Scratch: "/multus", Taken: []json.RawMessage{json.RawMessage(`{"a":1}`), nil},
		Plan: plan.Plan{Attachments: []plan.Attachment{{IfName: "eth0"}, {IfName: "net1"}, {IfName: "net2"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := record.Decode(journal.State{Intents: []journal.Intent{{Key: "c1-eth0", Boot: boot, Body: body}}}, boot)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{`{"a":1}`, "", ""} {
		if a := s.Attachments[i]; !a.Pending() || string(a.Result) != want || a.Done != (want != "") {
			t.Errorf("attachment %d: pending %t, done %t, result %q, want %q", i, a.Pending(), a.Done, a.Result, want)
		}
	}
}
