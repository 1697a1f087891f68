// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSample: the real programs, one sample in each order. The raw client does to the
// API server what the subject does.
func TestSample(t *testing.T) {
	t.Chdir("../..")
	built, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(t.Context(), t.TempDir(), built)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if size, err := b.learn(t.Context()); err != nil || size < 100 {
		t.Fatalf("a record of %d bytes, %v", size, err)
	}
	for i := range 2 {
		s, err := b.sample(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		for name, took := range map[string]int64{
			"delegates": int64(s.delegates), "record": int64(s.record), "ADD": int64(s.add), "DEL": int64(s.del),
			"exchanges": int64(s.exchanges), "ADD with API": int64(s.apiAdd), "DEL with API": int64(s.apiDel),
			"ADD with agent": int64(s.agentAdd), "DEL with agent": int64(s.agentDel),
		} {
			if took <= 0 {
				t.Errorf("sample %d: %s took %d ns", i, name, took)
			}
		}
		if s.addRequests != 3 || s.delRequests != 0 || s.floorFirst != (i == 0) {
			t.Errorf("sample %d: %d requests on ADD, %d on DEL, floor first %t", i, s.addRequests, s.delRequests, s.floorFirst)
		}
	}

	wantAgentRequests(t, b)

	requests := func() (all []string) {
		for _, r := range b.api.server.Requests() {
			all = append(all, fmt.Sprintln(r.Verb, r.Resource, r.Namespace, r.Name, r.Subresource, r.Code, r.Body))
		}
		return all
	}
	status := func() string { return b.api.server.Annotation("default", "client", statusNote) }
	b.next()
	if err := b.apiSubject(t.Context(), &sample{}); err != nil {
		t.Fatal(err)
	}
	wantRequests, wantStatus := requests(), status()
	if err := b.exchange(t.Context(), &sample{}); err != nil {
		t.Fatal(err)
	}
	if got := requests(); !slices.Equal(got, wantRequests) {
		t.Errorf("the raw client sends\n%swant\n%s", got, wantRequests)
	}
	if got := status(); got != wantStatus || !strings.Contains(got, `"default/second"`) {
		t.Errorf("the raw client leaves the status %s, want %s", got, wantStatus)
	}
	// The patch is for a pod as it was: without a reset it must be refused, and told.
	if _, err := b.api.exchange(t.Context()); err == nil || !strings.Contains(err.Error(), "PATCH "+podPath+"/status HTTP/1.1: answer 422") {
		t.Errorf("a second patch: %v", err)
	}
}

// wantAgentRequests: with the agent, an ADD of the pod is one patch and nothing else, a
// DEL nothing at all.
func wantAgentRequests(t *testing.T, b *bench) {
	t.Helper()
	b.next()
	var s sample
	if err := b.agentSubject(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if s.agentAddWrites != 1 || s.agentAddRequests != 1 || s.agentDelRequests != 0 {
		t.Errorf("with the agent: %d writes of the pod on ADD, %d requests, %d on DEL", s.agentAddWrites, s.agentAddRequests, s.agentDelRequests)
		for _, r := range b.agent.api.server.Requests() {
			t.Log(r.Verb, r.Resource, r.Namespace, r.Name, r.Subresource, r.Code)
		}
	}
}

// TestAgentMemory holds what the report promises of it.
func TestAgentMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("adds two hundred pods")
	}
	t.Chdir("../..")
	built, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(t.Context(), t.TempDir(), built)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	r := &report{}
	if r.memories, err = b.memories(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, target := range r.memoryTargets() {
		t.Logf("%s: %s", target.what, target.found)
		if !target.reached {
			t.Errorf("%s: %s, the limit is %s", target.what, target.found, target.limit)
		}
	}
}

func TestAgentThatEnds(t *testing.T) {
	dir := t.TempDir()
	// A weft-agent that does not know its flags.
	if err := os.Symlink("/bin/false", filepath.Join(dir, "weft-agent")); err != nil {
		t.Fatal(err)
	}
	if _, err := startAgent(t.Context(), filepath.Join(dir, "node"), dir, manifests); err == nil || !strings.Contains(err.Error(), "it is ready: it ended with 1") {
		t.Errorf("got %v", err)
	}
}

func TestLearnNeedsAPatch(t *testing.T) {
	a, err := startAPI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.stop()
	if err := a.learn(); err == nil || !strings.Contains(err.Error(), "none patches pods/status") {
		t.Errorf("without an ADD: %v", err)
	}
}

func TestServerThatCannotStart(t *testing.T) {
	if _, err := startAPI(t.TempDir() + "/nowhere"); err == nil || !strings.Contains(err.Error(), "serve the API: ") {
		t.Errorf("without a folder: %v", err)
	}
}

// TestPromisedBenchmarks: the rooms whose own benchmarks the issue asks for have some.
func TestPromisedBenchmarks(t *testing.T) {
	t.Chdir("../..")
	rooms, err := roomsWithBenchmarks("internal")
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []string{"selection", "plan", "netstatus"} {
		if !slices.Contains(rooms, "./internal/cni/"+room) {
			t.Errorf("%s has no benchmark among %s", room, rooms)
		}
	}
}
