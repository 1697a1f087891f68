// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package crash_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftnet/weft/test/binaries"
	"github.com/weftnet/weft/test/crash/ptrace"
)

// wanted is how many kill points a full run must have.
const wanted = 500

// freshEvery: at every so many kill points a new ADD and DEL follow.
const freshEvery = 4

// walk is a kill that goes over the calls of one run of weft-cni.
type walk struct {
	name   string
	scene  func(t *testing.T, tl tools) *scene
	before []string                      // calls that run to their end first
	kill   string                        // the call that is killed
	after  []string                      // what the runtime does then; nothing may be left
	every  int                           // which of the calls: every one, every second, …
	from   func(calls []ptrace.Call) int // the first call, nil = 1
	// stall: the run does not end by itself; it is killed when it has stopped moving.
	stall time.Duration
}

// What stands in walk.before and walk.after beside calls.
const (
	// newNetns: the sandbox gets another namespace under the old path.
	newNetns = "new namespace"
	// killedADD: an ADD is killed while its delegate sleeps.
	killedADD = "killed ADD"
	// byMultus: the ADD was Multus', before the node changed to Weft.
	byMultus = "ADD by Multus"
	// asks: the annotation of the pod that runs becomes another one.
	asks = "the pod asks for others"
	// asksBack: it becomes what it was before.
	asksBack = "the pod asks for what it had"
	// gone: the sandbox ends, and nobody says DEL.
	gone = "the sandbox is gone"
)

const stall = 300 * time.Millisecond

func walks() []walk {
	calm := func(t *testing.T, tl tools) *scene {
		t.Helper()
		return recording(t, tl, nil)
	}
	all := []walk{
		{name: "ADD then DEL", scene: calm, kill: "ADD", after: []string{"DEL"}, every: 1},
		{name: "ADD then GC", scene: calm, kill: "ADD", after: []string{"GC"}, every: 6},
		{name: "ADD then ADD and DEL", scene: calm, kill: "ADD", after: []string{"ADD", "DEL"}, every: 4},
		{name: "ADD that undoes then DEL", scene: failing, kill: "ADD", after: []string{"DEL"}, every: 4, from: secondHalf},
		{name: "ADD over an old one then DEL", scene: calm, before: []string{"ADD", newNetns}, kill: "ADD", after: []string{"DEL"}, every: 8},
		{name: "repeated ADD then DEL", scene: calm, before: []string{"ADD"}, kill: "ADD", after: []string{"DEL"}, every: 4},
		{name: "DEL then DEL", scene: calm, before: []string{"ADD"}, kill: "DEL", after: []string{"DEL"}, every: 2},
		{name: "DEL then GC", scene: calm, before: []string{"ADD"}, kill: "DEL", after: []string{"GC"}, every: 6},
		{name: "DEL then ADD and DEL", scene: calm, before: []string{"ADD"}, kill: "DEL", after: []string{"ADD", "DEL"}, every: 6},
		{name: "DEL that takes over then DEL", scene: calm, before: []string{byMultus}, kill: "DEL", after: []string{"DEL"}, every: 3},
		{name: "GC that takes over then GC", scene: calm, before: []string{byMultus}, kill: "GC", after: []string{"GC"}, every: 8},
		{name: "GC that takes over then DEL", scene: calm, before: []string{byMultus}, kill: "GC", after: []string{"DEL"}, every: 8},
		{name: "GC then GC", scene: calm, before: []string{"ADD"}, kill: "GC", after: []string{"GC"}, every: 8},
		{name: "GC then DEL", scene: calm, before: []string{"ADD"}, kill: "GC", after: []string{"DEL"}, every: 8},
	}
	all = append(all, walk{
		name: "DEL after a killed ADD then DEL", kill: "DEL", before: []string{killedADD}, after: []string{"DEL"}, every: 4,
		scene: func(t *testing.T, tl tools) *scene {
			t.Helper()
			return recording(t, tl, map[string]map[string]any{"pb": {"sleep": map[string]any{"ADD": "1m"}}})
		},
	}, walk{
		name: "DEL while pb sleeps then DEL", kill: "DEL", before: []string{"ADD"}, after: []string{"DEL"}, every: 1,
		scene: func(t *testing.T, tl tools) *scene {
			t.Helper()
			return recording(t, tl, map[string]map[string]any{"pb": {"sleep": map[string]any{"DEL": "1s"}}})
		},
		from: lastClone, stall: stall,
	})
	for _, kind := range []string{"pa", "pb", "pc"} {
		asleep := func(t *testing.T, tl tools) *scene {
			t.Helper()
			return recording(t, tl, map[string]map[string]any{kind: {
				"sleep": map[string]any{"ADD": "1m"}, "child": map[string]any{"ADD": "1m"}, "session": kind == "pb",
			}})
		}
		for i, after := range []string{"DEL", "GC"} {
			all = append(all, walk{
				name: "ADD while " + kind + " sleeps then " + after, scene: asleep, kill: "ADD",
				after: []string{after}, every: 1 + i, from: lastClone, stall: stall,
			})
		}
	}
	return all
}

// failing: the last delegate's ADD fails, so that the run ends with undoing.
func failing(t *testing.T, tl tools) *scene {
	t.Helper()
	s := recording(t, tl, map[string]map[string]any{
		"pc": {"fail": map[string]any{"ADD": map[string]any{"code": 11, "msg": "no"}}},
	})
	s.failing = true
	return s
}

func secondHalf(calls []ptrace.Call) int { return len(calls) / 2 }

// lastClone is a few calls before the last start of a process.
func lastClone(calls []ptrace.Call) int {
	n := 1
	for i, c := range calls {
		if c.Name == "clone" || c.Name == "clone3" {
			n = i + 1
		}
	}
	return max(1, n-5)
}

func TestCrash(t *testing.T) {
	runWalks(t, newTools(t), walks(), wanted)
}

// newTools builds the tools, and skips where they cannot be traced.
func newTools(t *testing.T) tools {
	t.Helper()
	weft := binaries.Weft(t)
	tl := tools{
		weft: filepath.Join(weft, "weft-cni"),
		path: weft + ":" + binaries.Delegate(t, "pa", "pb", "pc"),
	}
	needPtrace(t, tl)
	return tl
}

// needPtrace skips where the kernel does not let a process trace its child.
func needPtrace(t *testing.T, tl tools) {
	t.Helper()
	err := ptrace.Probe(t.Context(), tl.weft, []string{"weft-cni"})
	if err == nil {
		return
	}
	if os.Getenv("WEFT_CI") == "1" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// runWalks runs every walk, and counts the kills.
func runWalks(t *testing.T, tl tools, all []walk, least int64) {
	t.Helper()
	var killed atomic.Int64
	for _, w := range all {
		t.Run(w.name, func(t *testing.T) { w.run(t, tl, &killed) })
	}
	t.Logf("%d kill points", killed.Load())
	if only := flag.Lookup("test.run").Value.String(); !testing.Short() && !strings.Contains(only, "/") && killed.Load() < least {
		t.Errorf("%d kill points, want at least %d", killed.Load(), least)
	}
}

func (w walk) run(t *testing.T, tl tools, killed *atomic.Int64) {
	t.Helper()
	s := w.prepare(t, tl)
	// A slow machine must not look like one that waits, or the walk is too short.
	whole := s.kill(t, w.kill, ptrace.Command{Stall: 10 * w.stall})
	if w.stall == 0 && s.plug != nil {
		s.plug.answered(t, s, whole) // or what is walked over is not what the walk is called
	}
	calls := whole.Calls
	s.complete(t, "DEL") // ends the delegate that sleeps, too
	first, step := 1, w.every
	if w.from != nil {
		first = w.from(calls)
	}
	if testing.Short() {
		step *= 5
	}
	if len(calls) < 10 {
		t.Fatalf("a whole %s makes only %d calls: %v", w.kill, len(calls), calls)
	}
	last := len(calls)
	if w.stall > 0 {
		last++ // a number that is not reached: killed while everybody waits
	}
	for n := first; n <= last; n += step {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			w.point(t, tl, n, (n-first)/step%freshEvery == 0, killed)
		})
	}
}

// prepare makes a scene and runs what comes before.
func (w walk) prepare(t *testing.T, tl tools) *scene {
	t.Helper()
	s := w.scene(t, tl)
	for _, step := range w.before {
		switch step {
		case newNetns:
			s.write(t, "other", "")
			if err := os.Rename(s.at("other"), s.netns); err != nil {
				t.Fatal(err)
			}
		case killedADD:
			s.kill(t, "ADD", ptrace.Command{Stall: stall})
			s.delegates(t, nil) // a later ADD is not to sleep
		case byMultus:
			s.byMultus(t)
		case asks:
			s.plug.asks()
		case gone:
			if err := os.Remove(s.netns); err != nil {
				t.Fatal(err)
			}
		default:
			s.complete(t, step)
		}
	}
	return s
}

// point is one kill, and everything that must be true after it.
func (w walk) point(t *testing.T, tl tools, n int, fresh bool, killed *atomic.Int64) {
	t.Helper()
	s := w.prepare(t, tl)
	a := s.kill(t, w.kill, ptrace.Command{KillAt: n, Stall: w.stall})
	// A run that had fewer calls this time ended by itself: that is no kill point.
	if a.Status.Signaled() {
		killed.Add(1)
	}
	record := s.record(t)
	defer func() {
		if t.Failed() {
			at := "between two calls"
			if a.Killed {
				at = a.Calls[len(a.Calls)-1].String()
			}
			t.Logf("killed %s at call %d: %s\nrecord then:\n%sdelegates: %+v\n%s", w.kill, n, at, record, s.events(t), a)
		}
	}()
	if w.kill == applied {
		s.untouched(t)
	}
	for _, verb := range w.after {
		if verb == asksBack {
			s.plug.ask(s.plug.before)
			continue
		}
		if (verb == "ADD" || verb == applied) && w.stall > 0 {
			s.delegates(t, nil)
		}
		s.complete(t, verb)
		if verb == applied {
			s.untouched(t)
		}
	}
	s.nothingLeft(t)
	// A clean slate is one to start from. That costs as much as the kill point itself, so
	// it is shown at some of them.
	if !fresh || s.plug != nil {
		return
	}
	if w.stall > 0 {
		s.delegates(t, nil)
	}
	s.complete(t, "ADD")
	s.complete(t, "DEL")
	s.nothingLeft(t)
}
