// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/internal/cni/observe"
)

// TestEntriesOfASandboxThatIsGone: a pod has a sandbox of three networks, and then one of two.
// Whatever comes between, nothing is left of the third; what others wrote is left.
func TestEntriesOfASandboxThatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		writes  int
		between func(r *rigged)
	}{
		"deleted before":                            {3, func(r *rigged) { r.del(); r.add() }},
		"deleted before, and quickly":               {2, func(r *rigged) { r.drop(r.old); r.put(finished(r.new)) }},
		"deleted before, the agent is replaced":     {3, func(r *rigged) { r.del(); r.replace(); r.add() }},
		"deleted while the new one is begun":        {2, func(r *rigged) { r.put(r.new); r.del(); r.add() }},
		"deleted after":                             {2, func(r *rigged) { r.add(); r.del() }},
		"deleted after, the agent is replaced":      {2, func(r *rigged) { r.add(); r.replace(); r.del() }},
		"added and deleted while the agent is away": {2, func(r *rigged) { r.away(); r.put(finished(r.new)); r.back(); r.del() }},
		"rebooted, deleted after":                   {2, func(r *rigged) { r.away(); r.put(dead(r.old)); r.put(finished(r.new)); r.back(); r.del() }},
		"rebooted, deleted before":                  {3, func(r *rigged) { r.away(); r.put(dead(r.old)); r.back(); r.del(); r.add() }},
		"rebooted, the agent is replaced": {3, func(r *rigged) {
			r.away()
			r.put(dead(r.old))
			r.back()
			r.replace()
			r.del()
			r.replace()
			r.add()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rigged{rig: newRig(t)}
				r.back()
				defer func() { r.away() }()
				r.pod("a")
				r.set("a", func(p *pod) { p.annotation = "[" + foreignText + "]" })
				r.old = finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24", "default/netb"))
				r.put(r.old)
				r.want("a", 1, append(statusOf(r.old, "10.0.0.2"), foreign)...)
				r.pass(time.Second)
				r.new = sandbox("c2", "a", "uid-a", "10.0.0.3/24")
				c.between(r)
				r.pass(time.Hour)
				r.want("a", c.writes, append(statusOf(r.new, "10.0.0.3"), foreign)...)
				if s := r.State("uid-a"); !s.Right {
					t.Errorf("state %+v", s)
				}

				// What another writer makes of the networks that were once ours is its own.
				r.drop(r.old)
				hot := `{"name":"default/netb","interface":"eth2"}`
				r.set("a", func(p *pod) { p.annotation = p.annotation[:len(p.annotation)-1] + "," + hot + "]" })
				r.pass(time.Hour)
				r.want("a", c.writes, append(statusOf(r.new, "10.0.0.3"), foreign, parsed(t, "["+hot+"]")[0])...)
			})
		})
	}
}

// rigged is a rig with two sandboxes of one pod.
type rigged struct {
	*rig
	old, new *observe.Sandbox
	stop     func()
}

func (r *rigged) del() {
	r.put(undone(r.old))
	r.drop(r.old)
	r.pass(time.Minute)
}

func (r *rigged) add() {
	r.put(r.new)
	r.put(finished(r.new))
	r.pass(time.Minute)
}

func (r *rigged) away() {
	r.stop()
	r.anew()
}

func (r *rigged) back() {
	r.stop = r.run()
	r.pass(time.Minute)
}

func (r *rigged) replace() { r.away(); r.back() }

// TestWithdraw: of a pod that has no sandbox any more our entries go, unless the pod is going,
// too; a write that fails is tried again, and nothing is kept in the end.
func TestWithdraw(t *testing.T) {
	bubble(t, func(r *rig) {
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		r.pod("a")
		r.put(s)
		r.pass(time.Minute)
		r.switchTo(func() { r.fault = func(string) error { return errAPI } })
		r.drop(s)
		r.pass(time.Minute)
		r.want("a", 1, statusOf(s, "10.0.0.2")...)
		if n, _ := r.Lag(); n != 1 {
			t.Errorf("%d wait", n)
		}
		r.switchTo(func() { r.fault = nil })
		r.pass(10 * time.Minute)
		r.want("a", 2)

		for name, ends := range map[string]func(*pod){
			"b": func(p *pod) { p.deleting = true },
			"c": func(p *pod) { p.terminal = true },
			"d": func(p *pod) { p.uid = "another" },
		} {
			s := finished(sandbox("c-"+name, name, "uid-"+name, "10.0.0.4/24"))
			r.pod(name)
			r.put(s)
			r.pass(time.Minute)
			before := r.written()
			r.set(name, ends)
			r.drop(s)
			r.pass(10 * time.Minute)
			r.want(name, before, statusOf(s, "10.0.0.4")...)
		}
		if len(r.state) != 0 || len(r.queue.items) != 0 {
			t.Errorf("kept %v, %v", r.state, r.queue.items)
		}
	})
}

// TestCompleted: a pod completes, which the kubelet says when its sandbox is gone. Its status stays as
// it was, and nothing is written.
func TestCompleted(t *testing.T) {
	bubble(t, func(r *rig) {
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		r.pod("a")
		r.put(s)
		r.pass(time.Minute)
		r.drop(s)
		r.pass(10 * time.Second)
		r.set("a", func(p *pod) { p.terminal = true })
		r.pass(10 * time.Minute)
		r.want("a", 1, statusOf(s, "10.0.0.2")...)
		if len(r.state) != 0 || len(r.queue.items) != 0 {
			t.Errorf("kept %v, %v", r.state, r.queue.items)
		}
	})
}

// TestARecordThatCannotBeRead: its sandbox may live, so its entries stay, also when it is put
// aside.
func TestARecordThatCannotBeRead(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		r.put(s)
		r.pass(time.Minute)
		r.spoil(s)
		r.pass(10 * time.Minute)
		r.want("a", 1, statusOf(s, "10.0.0.2")...)
		r.lose()
		r.Changed("uid-a")
		r.pass(10 * time.Minute)
		r.want("a", 1, statusOf(s, "10.0.0.2")...)
		// It was a disk that mends.
		r.put(s)
		r.pass(time.Minute)
		r.drop(s)
		r.pass(time.Minute)
		r.want("a", 2)
	})
}

// TestClockSetBack: a sandbox whose DEL does not succeed was begun an hour after its successor, by a
// clock that was set back. The status is the successor's.
func TestClockSetBack(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		old := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		old.Begun = old.Begun.Add(time.Hour)
		r.put(old)
		r.pass(time.Minute)
		old = undone(old)
		old.Deletes = 1
		r.put(old)
		next := sandbox("c2", "a", "uid-a", "10.0.0.3/24")
		r.put(next)
		r.put(finished(next))
		r.pass(time.Minute)
		r.want("a", 2, statusOf(next, "10.0.0.3")...)
		r.drop(old)
		r.pass(time.Minute)
		r.want("a", 2, statusOf(next, "10.0.0.3")...)
	})
}
