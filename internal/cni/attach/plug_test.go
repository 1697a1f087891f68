// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/planner/plannertest"
)

// newPlugged is a rig with an agent whose pod asks for these networks, and has them.
func newPlugged(t *testing.T, asked string, broken map[string]map[string]any) (*rig, *plannertest.Agent) {
	t.Helper()
	r := newRig(t)
	socket := filepath.Join(r.dir, "agent.sock")
	a := plannertest.Listen(t, socket)
	a.Ask(asked)
	for name, kind := range map[string]string{"neta": "pb", "netb": "pc", "netf": "netf"} {
		conf := r.delegate(kind, "cniVersion", "1.0.0", "name", name, "result", result("1.0.0", "10.2.0.7/24"),
			"capabilities", map[string]any{"mac": true})
		maps.Copy(conf, broken[name])
		a.Network(name, r.json(conf))
	}
	r.conf["agentSocket"] = socket
	delete(r.conf, "manifests")
	r.ok("ADD")
	r.calls()
	return r, a
}

func TestPlug(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after              string
		calls                      []string
		attached, detached, change int
		del                        []string
	}{
		"the same":         {"neta", "neta", []string{}, 0, 0, 0, []string{"pb DEL net1", "pa DEL eth0"}},
		"one more":         {"neta", "neta,netb", []string{"pc ADD net2"}, 1, 0, 0, []string{"pc DEL net2", "pb DEL net1", "pa DEL eth0"}},
		"the first":        {"", "netb", []string{"pc ADD net1"}, 1, 0, 0, []string{"pc DEL net1", "pa DEL eth0"}},
		"one less":         {"neta,netb", "netb", []string{"pb DEL net1"}, 0, 1, 0, []string{"pc DEL net2", "pa DEL eth0"}},
		"none any more":    {"neta,netb", "", []string{"pc DEL net2", "pb DEL net1"}, 0, 2, 0, []string{"pa DEL eth0"}},
		"another":          {"neta", "netb", []string{"pb DEL net1", "pc ADD net1"}, 1, 1, 0, []string{"pc DEL net1", "pa DEL eth0"}},
		"in another order": {"neta,netb", "netb,neta", []string{}, 0, 0, 0, []string{"pc DEL net2", "pb DEL net1", "pa DEL eth0"}},
		"before the others": {
			"neta", "netb,neta",
			[]string{"pc ADD net2"},
			1, 0, 0,
			[]string{"pb DEL net1", "pc DEL net2", "pa DEL eth0"},
		},
		"a second time":          {"neta", "neta,neta", []string{"pb ADD net2"}, 1, 0, 0, []string{"pb DEL net2", "pb DEL net1", "pa DEL eth0"}},
		"one of two":             {"neta,neta", "neta", []string{"pb DEL net2"}, 0, 1, 0, []string{"pb DEL net1", "pa DEL eth0"}},
		"with a name now":        {"neta", "neta@foo", []string{"pb DEL net1", "pb ADD foo"}, 1, 1, 0, []string{"pb DEL foo", "pa DEL eth0"}},
		"with the name it had":   {"neta", "neta@net1", []string{"pb DEL net1", "pb ADD net1"}, 1, 1, 0, []string{"pb DEL net1", "pa DEL eth0"}},
		"another under its name": {"neta@foo", "netb@foo", []string{"pb DEL foo", "pc ADD foo"}, 1, 1, 0, []string{"pc DEL foo", "pa DEL eth0"}},
		"another MAC": {
			`[{"name":"neta","mac":"02:00:00:00:00:11"}]`, `[{"name":"neta","mac":"02:00:00:00:00:12"}]`,
			[]string{},
			0, 0, 1,
			[]string{"pb DEL net1", "pa DEL eth0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := newPlugged(t, tt.before, nil)
			first := r.begun()
			a.Ask(tt.after)
			answer := r.obeys(r.order(apply.Plug), apply.Done)
			r.wantCalls(tt.calls...)
			got := []int{len(answer.Attached), len(answer.Detached), len(answer.Changed), len(answer.Failed)}
			if diff := cmp.Diff([]int{tt.attached, tt.detached, tt.change, 0}, got); diff != "" {
				t.Error(diff, answer)
			}
			if now := r.begun(); !now.Equal(first) {
				t.Errorf("the record was begun %v, and now %v", first, now)
			}
			answer = r.obeys(r.order(apply.Plug), apply.Done)
			if len(answer.Attached)+len(answer.Detached)+len(answer.Failed) > 0 {
				t.Errorf("a second order does %v", answer)
			}
			r.wantCalls()
			r.ok("ADD") // of the runtime, once more: it is over, and answered from the record
			r.ok("CHECK")
			if checked := r.calls(); len(checked) != len(tt.del) {
				t.Errorf("CHECK called %v", checked)
			}
			r.ok("DEL")
			r.wantCalls(tt.del...)
			r.wantClean()
		})
	}
}

// Without a plan everything stays as it is.
func TestPlugWithoutAPlan(t *testing.T) {
	for name, asked := range map[string]string{
		"invalid": "neta,,@", "no such network": "neta,none", "a taken name": "neta,netb@net1", "eth0": "netb@eth0", "no JSON": "[{]",
	} {
		t.Run(name, func(t *testing.T) {
			r, a := newPlugged(t, "neta", nil)
			before, err := os.ReadFile(r.record())
			if err != nil {
				t.Fatal(err)
			}
			a.Ask(asked)
			if ans := r.finish(r.order(apply.Plug)); ans.status != 1 || !strings.Contains(ans.stdout, `"code": 7`) {
				t.Errorf("exit %d\n%s", ans.status, ans.stdout)
			}
			r.wantCalls()
			if after, err := os.ReadFile(r.record()); err != nil || string(after) != string(before) {
				t.Errorf("the record was changed: %v", err)
			}
		})
	}
}

// What fails is undone, stops no other, and is tried again by the next order.
func TestPlugFails(t *testing.T) {
	fails := map[string]any{"fail": map[string]any{"ADD": map[string]any{"code": 11, "msg": "no", "times": 1}}}
	r, a := newPlugged(t, "neta", map[string]map[string]any{"netf": fails})
	a.Ask("neta,netf,netb")
	answer := r.obeys(r.order(apply.Plug), apply.Done)
	r.wantCalls("netf ADD net2", "netf DEL net2", "pc ADD net3")
	if len(answer.Failed) != 1 || !strings.Contains(answer.Failed[0], "default/netf") || len(answer.Attached) != 1 {
		t.Errorf("%+v", answer)
	}
	r.ok("CHECK")
	r.calls()
	r.obeys(r.order(apply.Plug), apply.Done)
	r.wantCalls("netf ADD net2")
	r.ok("DEL")
	r.wantCalls("pc DEL net3", "netf DEL net2", "pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// What cannot be detached keeps its interface from others, and is undone by DEL.
func TestPlugCannotDetach(t *testing.T) {
	fails := map[string]any{"fail": map[string]any{"DEL": map[string]any{"code": 16, "msg": "busy", "times": 1}}}
	r, a := newPlugged(t, "netf@foo", map[string]map[string]any{"netf": fails})
	a.Ask("netb@foo,neta")
	answer := r.obeys(r.order(apply.Plug), apply.Done)
	r.wantCalls("netf DEL foo", "pb ADD net2")
	if len(answer.Failed) != 2 {
		t.Errorf("%+v", answer)
	}
	r.obeys(r.order(apply.Plug), apply.Done)
	r.wantCalls("netf DEL foo", "pc ADD foo")
	r.ok("DEL")
	r.wantCalls("pb DEL net2", "pc DEL foo", "pa DEL eth0")
	r.wantClean()
}

// Killed at any step, the record undoes all that there is, and the next order goes on.
func TestPlugIsKilled(t *testing.T) {
	slow := func(command string) map[string]map[string]any {
		return map[string]map[string]any{"netf": {"sleep": map[string]any{command: "30s"}}}
	}
	for name, tt := range map[string]struct{ before, after, during, call string }{
		"while it attaches": {"neta", "neta,netb,netf", "ADD", "netf ADD net3"},
		"while it detaches": {"neta,netf", "neta,netb", "DEL", "netf DEL net2"},
	} {
		for _, then := range []string{"DEL", "an order and DEL", "DEL without waiting for the end"} {
			t.Run(name+", then "+then, func(t *testing.T) {
				r, a := newPlugged(t, tt.before, slow(tt.during))
				a.Ask(tt.after)
				cmd := r.order(apply.Plug)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				r.await(tt.call, func() bool {
					return slices.ContainsFunc(r.started(), func(e event) bool { return e.Type+" "+e.Command+" "+e.IfName == tt.call })
				})
				if then != "DEL without waiting for the end" {
					if err := cmd.Process.Kill(); err != nil {
						t.Fatal(err)
					}
					<-ended
				}
				if then == "an order and DEL" {
					a.Ask("neta,netb")
					if tt.during == "ADD" {
						r.obeys(r.order(apply.Plug), apply.Done)
						r.ok("CHECK")
					}
				}
				// The plugin that was ended sleeps again in DEL where that is what is slow: end it.
				if tt.during == "DEL" {
					del := r.command("DEL")
					if err := del.Start(); err != nil {
						t.Fatal(err)
					}
					r.await("DEL of the same", func() bool {
						n := 0
						for _, e := range r.started() {
							if e.Type+" "+e.Command+" "+e.IfName == tt.call {
								n++
							}
						}
						return n == 2
					})
					_ = syscall.Kill(del.Process.Pid, syscall.SIGKILL)
					_ = del.Wait()
					return
				}
				r.ok("DEL")
				if then == "DEL without waiting for the end" {
					if err := <-ended; err == nil {
						t.Error("the order was carried out to its end, though the pod ended")
					}
				}
				r.wantClean()
			})
		}
	}
}

// A repeated change does not make the record grow.
func TestPlugManyTimes(t *testing.T) {
	r, a := newPlugged(t, "neta", nil)
	size := func() int64 {
		info, err := os.Stat(r.record())
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	var first int64
	for i := range 6 {
		a.Ask("neta,netb")
		r.obeys(r.order(apply.Plug), apply.Done)
		if i == 0 {
			first = size()
		}
		if now := size(); now > first+512 {
			t.Fatalf("after %d changes the record has %d bytes, after the first %d", i, now, first)
		}
		a.Ask("neta")
		r.obeys(r.order(apply.Plug), apply.Done)
	}
	r.ok("DEL")
	r.wantClean()
}
