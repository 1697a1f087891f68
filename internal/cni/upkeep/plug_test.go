// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package upkeep_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/upkeep"
)

// runner is one pod that runs with the network ns/neta, what its annotation asks for, and hands that answer.
type runner struct {
	begin time.Time

	mu      sync.Mutex // guards what follows
	sandbox *observe.Sandbox
	others  []*observe.Sandbox
	asked   string
	ends    bool // the pod has ended, or is about to
	answer  func() (apply.Answer, error)
	orders  []string // task and time
	told    []string // reason and message
}

func newRunner(asked string) *runner {
	return &runner{
		asked: asked, answer: func() (apply.Answer, error) { return apply.Answer{Outcome: apply.Done}, nil },
		sandbox: &observe.Sandbox{
			Sandbox: &record.Sandbox{
				Key: "c-eth0", Finished: true, Body: record.Body{Host: "host"},
				Attachments: []record.Attachment{
					{Attachment: plan.Attachment{Network: "pods", IfName: "eth0", Default: true}, Attempted: true, Done: true},
					{Attachment: plan.Attachment{Network: "ns/neta", IfName: "net1", Selected: true}, Attempted: true, Done: true},
				},
			},
			PodNamespace: "ns", PodName: "p", PodUID: "u", Begun: time.Unix(1, 0),
		},
	}
}

func (r *runner) Synced() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (r *runner) Sandboxes() []*observe.Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*observe.Sandbox{r.sandbox}, r.others...)
}

func (r *runner) Do(_ context.Context, host string, o apply.Order) (apply.Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := string(o.Task) + " " + time.Since(r.begin).String()
	if host != "host" || o.Key != "c-eth0" || !o.Begun.Equal(time.Unix(1, 0)) {
		at += " of another"
	}
	r.orders = append(r.orders, at)
	return r.answer()
}

// has makes the record another one, of these networks and the interfaces that were asked for.
func (r *runner) has(pairs ...string) {
	now := *r.sandbox
	inner := *now.Sandbox
	now.Sandbox, inner.Attachments = &inner, inner.Attachments[:1:1]
	for i := 0; i < len(pairs); i += 2 {
		inner.Attachments = append(inner.Attachments, record.Attachment{
			Attachment: plan.Attachment{Network: pairs[i], Asked: pairs[i+1], Selected: true}, Attempted: true, Done: true,
		})
	}
	r.sandbox = &now
}

func (r *runner) ask(networks string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = networks
}

// follow runs a Keeper for the pod for a time; steps are called with it one after the other.
func (r *runner) follow(t *testing.T, d time.Duration, steps ...func(*upkeep.Keeper)) map[string]uint64 {
	t.Helper()
	r.begin = time.Now()
	k := upkeep.New(upkeep.Options{
		Hands: r, Records: r,
		Asked: func(ref planner.PodRef) (string, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.asked, !r.ends && ref == planner.PodRef{Namespace: "ns", Name: "p", UID: "u"}
		},
		Tell: func(_ planner.PodRef, e planner.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, e.Reason+": "+e.Message)
		},
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := k.RunPlug(ctx); err != nil {
			t.Error(err)
		}
	})
	for _, step := range steps {
		time.Sleep(d) //nolint:forbidigo // the bubble's clock
		step(k)
	}
	time.Sleep(d) //nolint:forbidigo // the bubble's clock
	cancel()
	wg.Wait()
	return k.Plugs()
}

func (r *runner) want(t *testing.T, orders, told []string) {
	t.Helper()
	if diff := cmp.Diff(orders, r.orders); diff != "" {
		t.Errorf("orders (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(told, r.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// Who has what is asked for is left alone, and so is a pod that is not to be changed now.
func TestNobodyIsChanged(t *testing.T) {
	for name, edit := range map[string]func(*runner){
		"has what it asks for": func(*runner) {},
		"asks by another form": func(r *runner) { r.asked = `[{"name":"neta","namespace":"ns","mac":"02:00:00:00:00:07"}]` },
		"ends":                 func(r *runner) { r.asked, r.ends = "netb", true },
		"its ADD is not over":  func(r *runner) { r.asked, r.sandbox.Finished = "netb", false },
		"is being undone":      func(r *runner) { r.asked, r.sandbox.Undoing = "netb", true },
		"of another boot":      func(r *runner) { r.asked, r.sandbox.Dead = "netb", true },
		"before hot-plug":      func(r *runner) { r.asked, r.sandbox.Body.Host = "netb", "" },
		"of no pod":            func(r *runner) { r.asked, r.sandbox.PodName = "netb", "" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRunner("neta")
				edit(r)
				r.follow(t, time.Hour)
				r.want(t, nil, nil)
			})
		})
	}
}

// A sandbox that is being deleted was begun later, by a clock that was set back.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner("netb")
		was, inner := *r.sandbox, *r.sandbox.Sandbox
		was.Sandbox, was.Begun, was.Undoing = &inner, time.Unix(2, 0), true
		inner.Key, inner.Finished, inner.Deletes = "old-eth0", false, 1
		r.others = append(r.others, &was)
		r.follow(t, time.Minute)
		if len(r.orders) == 0 {
			t.Error("no order is given")
		}
	})
}

// Whoever asks for something else gets it, and an order that was carried out is not given again.
func TestChangedOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		asked string
		gets  []string // network and asked interface
	}{
		"one more":             {"neta,netb", []string{"ns/neta", "", "ns/netb", ""}},
		"a second time":        {"neta,neta", []string{"ns/neta", "", "ns/neta", ""}},
		"another name":         {"neta@x", []string{"ns/neta", "x"}},
		"of another namespace": {"other/neta", []string{"other/neta", ""}},
		"none":                 {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRunner(tt.asked)
				r.answer = func() (apply.Answer, error) {
					r.has(tt.gets...)
					return apply.Answer{Outcome: apply.Done, Attached: []string{"x"}}, nil
				}
				if diff := cmp.Diff(map[string]uint64{"done": 1}, r.follow(t, time.Minute)); diff != "" {
					t.Error(diff)
				}
				r.want(t, []string{"plug 0s"}, nil)
			})
		})
	}
}

// Several changes at once are one order, half a second after the last.
func TestChangesSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner("neta")
		change := func(to string) func(*upkeep.Keeper) {
			return func(k *upkeep.Keeper) { r.ask(to); k.Wake() }
		}
		r.follow(t, 300*time.Millisecond, change("netb"), change("netc"), change("netd"), func(*upkeep.Keeper) {}, func(*upkeep.Keeper) {})
		r.want(t, []string{"plug 1.4s"}, nil)
	})
}

// Changes that never end, of this pod or of others, keep nobody waiting.
func TestChangesThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner("neta")
		steps := []func(*upkeep.Keeper){func(k *upkeep.Keeper) { r.ask("netb"); k.Wake() }}
		for range 30 {
			steps = append(steps, (*upkeep.Keeper).Wake)
		}
		r.follow(t, 300*time.Millisecond, steps...)
		if len(r.orders) == 0 || r.orders[0] != "plug 2.3s" {
			t.Errorf("orders %q", r.orders)
		}
	})
}

// What fails is told to the pod's owner and tried again with pauses that grow; a new annotation is tried at once.
func TestFailuresAreToldAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner("neta,netb")
		r.answer = func() (apply.Answer, error) {
			return apply.Answer{Outcome: apply.Done, Failed: []string{"network ns/netb: is not attached: no"}}, nil
		}
		counts := r.follow(t, 55*time.Second, func(k *upkeep.Keeper) {
			r.ask(",,@")
			r.answer = func() (apply.Answer, error) { return apply.Answer{}, errors.New("annotation is invalid (code 7)") }
			k.Wake()
		})
		const failed, invalid = "FailedAddInterface: network ns/netb: is not attached: no", "FailedAddInterface: annotation is invalid (code 7)"
		r.want(t, []string{"plug 0s", "plug 10s", "plug 30s", "plug 55.5s", "plug 1m10s", "plug 1m30s"},
			[]string{failed, failed, failed, invalid, invalid, invalid})
		if diff := cmp.Diff(map[string]uint64{"failed": 6}, counts); diff != "" {
			t.Error(diff)
		}
	})
}

// A changed MAC or address is told once, and nothing is done about it (spec/cni.md rule 12).
func TestWhatCannotChangeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner("neta")
		r.answer = func() (apply.Answer, error) {
			return apply.Answer{Outcome: apply.Done, Changed: []string{"mac stays"}}, nil
		}
		r.follow(t, 55*time.Second, func(k *upkeep.Keeper) {
			r.ask(`[{"name":"neta","mac":"02:00:00:00:00:07"}]`)
			k.Wake()
		})
		r.want(t, []string{"plug 55.5s"}, []string{"QuestionableNetworks: mac stays"})
	})
}

// Orders that cannot be decided on are no fault of the pod's owner: they are tried again and not told.
func TestUnsureIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner("netb")
		r.answer = func() (apply.Answer, error) { return apply.Answer{Outcome: apply.Unsure, Reason: "elsewhere"}, nil }
		counts := r.follow(t, 31*time.Second)
		r.want(t, []string{"plug 0s", "plug 10s", "plug 30s"}, nil)
		if diff := cmp.Diff(map[string]uint64{"unsure": 3}, counts); diff != "" {
			t.Error(diff)
		}
	})
}
