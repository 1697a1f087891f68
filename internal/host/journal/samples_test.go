// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The files of testdata/journal/v1 were recorded when version 1 was made, and are never
// written again: every later version has to read them to these values.
func TestRecordsOfVersion1(t *testing.T) {
	const (
		dir  = "testdata/journal/v1"
		uid  = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
		boot = "0b5e3a5e-6a43-4f05-9a86-1b7a3c1f2d10"
	)
	began := time.Date(2026, 11, 29, 22, 0, 0, 123456789, time.UTC)
	eth0 := json.RawMessage(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:09","sandbox":"/var/run/netns/x"}],` +
		`"ips":[{"interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"dns":{},"note":"<é&>"}`)
	net1 := json.RawMessage(`{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:09","sandbox":"/var/run/netns/x"}],` +
		`"ips":[{"interface":0,"address":"10.2.0.2/24","gateway":"10.1.0.1"}],"dns":{},"note":"<é&>"}`)
	intent := func(key Key) Intent {
		return Intent{
			Version: 1, Kind: "attachment", Key: key, PodUID: uid, Boot: boot,
			Owner: Process{PID: 4711, Start: 123456}, Time: began,
		}
	}
	later := intent("extended-eth0")
	later.Owner, later.Time = Process{PID: 5000, Start: 200000}, began.Add(time.Hour)

	for key, sample := range map[Key]struct {
		sum  string
		want State
	}{
		"whole-eth0": {"9f84fa8a6971e5c973f2404ad2a841be06292a9489796b3e23f376291a9647dd", State{
			Intents: []Intent{intent("whole-eth0")},
			Phases: []Phase{
				{Phase: "attempting"},
				{Phase: "started", Group: 4712, Start: 123460},
				{Phase: "done", Result: eth0},
				{Phase: "attempting", Item: 1},
				{Phase: "started", Item: 1, Group: 4713, Start: 123461},
				{Phase: "done", Item: 1, Result: net1},
				{Phase: "done", Item: -1},
			},
		}},
		"half-eth0": {"7f620e1413b65b1e3d2c15817e17530649ecaacc60a5c4cf91304d231683ca91", State{
			Intents: []Intent{intent("half-eth0")},
			Phases: []Phase{
				{Phase: "attempting"},
				{Phase: "started", Group: 4712, Start: 123460},
				{Phase: "done", Result: eth0},
				{Phase: "attempting", Item: 1},
				{Phase: "started", Item: 1, Group: 4713, Start: 123461},
				{Phase: "undoing", Item: 1, Error: `plugin pb: code 11: "try later"`},
				{Phase: "started", Item: 1, Group: 4720, Start: 123499},
				{Phase: "undone", Item: 1},
			},
		}},
		"torn-eth0": {"3e056f9be2f43d53634140338db70f1f295b8df7e01f75e9afc26f4c178c146c", State{
			Intents: []Intent{intent("torn-eth0")},
			Phases:  []Phase{{Phase: "attempting"}},
		}},
		"extended-eth0": {"8d856366ca7b6d5c5424f8a3defd71062993f7703640d09027396243ec518d11", State{
			Intents: []Intent{intent("extended-eth0"), later},
			Phases: []Phase{
				{Phase: "attempting"}, {Phase: "done", Result: eth0}, {Phase: "done", Item: -1}, {Phase: "attempting", Item: 2},
			},
		}},
	} {
		t.Run(string(key), func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(dir, string(key)+".jsonl"))
			must(t, err)
			if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != sample.sum {
				t.Fatal("the sample was changed")
			}
			s := newStore(t)
			must(t, os.WriteFile(s.Path(key), data, 0o600))
			got := acquire(t, s, key).State()
			diff := cmp.Diff(sample.want, got, cmpopts.IgnoreFields(Intent{}, "Body"), cmpopts.IgnoreFields(Phase{}, "Time"))
			if diff != "" {
				t.Error(diff)
			}
			for i, p := range got.Phases {
				if p.Time.Before(began) || p.Time.After(began.Add(time.Second)) || i > 0 && !p.Time.After(got.Phases[i-1].Time) {
					t.Errorf("phase %d is of %v", i, p.Time)
				}
			}
			wantBody(t, got, key)
			if uid2, err := PodUID(s.dir, key); err != nil || uid2 != uid {
				t.Errorf("pod UID %q, %v", uid2, err)
			}
		})
	}
}

// wantBody looks into the bodies, which are not the journal's: one value that JSON numbers
// and HTML escapes would spoil, and one of the further intent.
func wantBody(t *testing.T, st State, key Key) {
	t.Helper()
	var body struct {
		Sandbox struct{ ContainerID string }
		Plan    struct {
			Attachments []struct {
				IfName string
				Conf   struct{ Plugins []struct{ Conf []byte } }
			}
		}
	}
	must(t, json.Unmarshal(st.Intents[0].Body, &body))
	if body.Sandbox.ContainerID+"-eth0" != string(key) || len(body.Plan.Attachments) != 2 {
		t.Fatalf("body is %+v", body)
	}
	for i, want := range []string{
		`{"cniVersion":"1.0.0","name":"defnet","type":"pa","mtu":12345678901234567890}`,
		`{"cniVersion":"1.0.0","type":"pb","capabilities":{"mac":true},"note":"<&>"}`,
	} {
		if got := string(body.Plan.Attachments[i].Conf.Plugins[0].Conf); got != want {
			t.Errorf("conf %d is %s", i, got)
		}
	}
	if len(st.Intents) > 1 {
		must(t, json.Unmarshal(st.Intents[1].Body, &body))
		if got := body.Plan.Attachments[0].IfName; got != "net2" {
			t.Errorf("further intent is for %q", got)
		}
	}
}
