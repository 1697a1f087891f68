// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// shared is a source whose plans share room, and which counts how many NADs were asked for.
type shared struct {
	source
	room  *semaphore.Weighted
	known bool // sizes are known before
	asked *int
}

func (s shared) Size(ref plan.NADRef) int {
	if !s.known {
		return 0
	}
	return len(s.nads[ref].Config)
}

func (s shared) Hold(ctx context.Context, bytes int) error { return s.room.Acquire(ctx, int64(bytes)) }

func (s shared) Free(bytes int) { s.room.Release(int64(bytes)) }

func (s shared) NAD(ctx context.Context, ref plan.NADRef) (plan.NAD, error) {
	*s.asked++
	if s.nads[ref].ResourceName == "panics" {
		panic("on purpose")
	}
	return s.source.NAD(ctx, ref)
}

func sharing(known bool, asked string) shared {
	s := shared{room: semaphore.NewWeighted(plan.MaxConfs), known: known, asked: new(int)}
	s.pods, s.nads = networks("u1", asked), map[plan.NADRef]plan.NAD{}
	pad := func(name string, size int) {
		s.nads[plan.NADRef{Namespace: "default", Name: name}] = plan.NAD{
			Found: true, Config: `{"cniVersion":"1.0.0","type":"pb","pad":"` + strings.Repeat("x", size) + `"}`,
		}
	}
	pad("small", 100)
	pad("some", 10<<10)
	for i := range 6 {
		pad(fmt.Sprint("big", i), 1<<20)
	}
	pad("broken", 1<<20)
	broken := s.nads[plan.NADRef{Namespace: "default", Name: "broken"}]
	broken.ResourceName = "panics"
	s.nads[plan.NADRef{Namespace: "default", Name: "broken"}] = broken
	return s
}

// free is how much room nobody holds.
func (s shared) free() int64 {
	for n := int64(plan.MaxConfs); ; n -= 1 << 10 {
		if n <= 0 {
			return 0
		}
		if s.room.TryAcquire(n) {
			s.room.Release(n)
			return n
		}
	}
}

// TestRoom: a large plan has room until its answer is written, and no other way leaves any held.
func TestRoom(t *testing.T) {
	for _, known := range []bool{true, false} {
		for name, c := range map[string]struct {
			asked string
			held  int // KiB of the answer, about
			err   string
			reads int
		}{
			"small":           {asked: "small", reads: 1},
			"one":             {asked: "big0", held: 1 << 10, reads: 1},
			"the same thrice": {asked: "big0,big0,big0", held: 3 << 10, reads: 1},
			"a few of some":   {asked: "some,some,some", held: 30, reads: 1},
			"a fault":         {asked: "big0,none", err: "does not exist", reads: 2},
			"too often":       {asked: "big0,big0,big0,big0", err: "pod default/web: annotation k8s.v1.cni.cncf.io/networks: asks for networks whose configurations are of 4194526 bytes together, at most 4194304 are allowed", reads: 1},
			"too many":        {asked: "big0,big1,big2,big3,big4,big5", err: "at most 4194304 are allowed", reads: map[bool]int{true: 0, false: 4}[known]},
		} {
			t.Run(fmt.Sprint(name, known), func(t *testing.T) {
				s := sharing(known, c.asked)
				res := Answer(t.Context(), request(webArgs), func(*netconf.Conf) (Source, error) { return s, nil })
				if *s.asked != c.reads {
					t.Errorf("%d NADs were read, not %d", *s.asked, c.reads)
				}
				if c.err != "" {
					if res.Error == nil || res.Error.Code != 7 || !strings.Contains(res.Error.Msg, c.err) {
						t.Errorf("answer %+v", res.Error)
					}
				} else if res.Plan == nil {
					t.Fatalf("answer %+v", res.Error)
				}
				if held := int(plan.MaxConfs-s.free()) >> 10; held < c.held || held > c.held+c.held/10+1 {
					t.Errorf("%d KiB are held, not %d", held, c.held)
				}
				if res.Written != nil {
					res.Written()
				}
				if s.free() != plan.MaxConfs {
					t.Error("some room is held for ever")
				}
			})
		}
	}
}

// TestNoRoom: who finds none waits until its time is over, and is to try later; small plans
// do not wait.
func TestNoRoom(t *testing.T) {
	for name, asked := range map[string]string{"at once": "big0", "at the end": "some,some,some"} {
		s := sharing(true, asked)
		if !s.room.TryAcquire(plan.MaxConfs) {
			t.Fatal("no room")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		open := func(*netconf.Conf) (Source, error) { return s, nil }
		res := Answer(ctx, request(webArgs), open)
		if res.Error == nil || res.Error.Code != 11 || !strings.HasPrefix(res.Error.Msg, "pod default/web: there was no room in time") {
			t.Errorf("%s: answer %+v", name, res.Error)
		}
		s.pods = networks("u1", "small")
		if res := Answer(ctx, request(webArgs), open); res.Plan == nil {
			t.Errorf("%s: a small plan waits: %+v", name, res.Error)
		}
		s.pods = networks("u1", asked)
		s.room.Release(plan.MaxConfs)
		if res := Answer(t.Context(), request(webArgs), open); res.Plan == nil {
			t.Errorf("%s: answer %+v", name, res.Error)
		}
	}
}

func TestRoomOfAPanic(t *testing.T) {
	s := sharing(true, "broken")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it does not panic")
			}
		}()
		Answer(t.Context(), request(webArgs), func(*netconf.Conf) (Source, error) { return s, nil })
	}()
	if s.free() != plan.MaxConfs {
		t.Error("some room is held for ever")
	}
}
