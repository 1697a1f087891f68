// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/agent/recent"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/lanes"
	"github.com/weftnet/weft/internal/host/logs"
)

// listening gives a logger whose warnings are shown as faults, too.
func listening(log *slog.Logger, to *recent.Recent) *slog.Logger {
	return slog.New(to.Handler(log.Handler(), logs.Redact()))
}

// timed notes what a record tells of.
func (a *Agent) timed(t observe.Timing) {
	a.metrics.Call(t.Verb, t.Plugin, t.Duration, t.Failed)
	name := t.Verb
	if t.Plugin == "" {
		a.metrics.LaneWait(t.Waited)
	} else {
		name += " " + t.Plugin
	}
	a.recent.Call(name, t.Duration, t.Failed)
}

// answered notes an answer to the hands: what the pod's owner has to know is a fault, and so is
// an ADD that the hands report as failed.
func (a *Agent) answered(req *wire.Request, failed *wire.Error, took time.Duration) {
	a.recent.Call("planner "+req.Verb, took, failed != nil)
	part := req.Verb
	if failed == nil && req.Report != nil && req.Report.Error != nil {
		part, failed = "ADD", req.Report.Error
	}
	if failed != nil {
		a.recent.Fault(part, podOf(req), failed.Msg)
	}
}

// podOf is the pod that a request is about, as far as it says so.
func podOf(req *wire.Request) string {
	var namespace, name string
	asked := cmp.Or(req.Plan, req.Apply)
	switch {
	case asked != nil:
		args := asked.Sandbox.ArgPairs()
		namespace, name = args["K8S_POD_NAMESPACE"], args["K8S_POD_NAME"]
	case req.Handover != nil:
		namespace, name = req.Handover.PodNamespace, req.Handover.PodName
	case req.Report != nil:
		namespace, name = req.Report.PodNamespace, req.Report.PodName
	}
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

// called notes a call of the network driver.
func (d *networkDriver) called(call string, took time.Duration, err error) {
	d.numbers.Call(call, took, err)
	d.recent.Call("driver "+call, took, err != nil)
	if err != nil {
		d.recent.Fault("driver "+call, "", err.Error())
	}
}

// Top implements debug.TopView.
func (v view) Top() debug.Top {
	t := debug.Top{
		Lanes: v.lanes(), Records: counts(v.records()), Orphans: counts(v.keeper.Counts()), Plugs: counts(v.keeper.Plugs()),
	}
	sandboxes := v.observer.Sandboxes()
	t.Attachments, t.Moving = moving(sandboxes)
	for _, c := range v.recent.Calls() {
		t.Calls = append(t.Calls, debug.Calls{
			Name: c.Name, Total: c.Total, TotalFailed: c.TotalFailed, Seconds: c.Span.Seconds(),
			Count: c.Count, Failed: c.Failed, P50: c.P50.Seconds(), P99: c.P99.Seconds(), Max: c.Max.Seconds(),
		})
	}
	for _, f := range v.recent.Faults() {
		t.Faults = append(t.Faults, debug.LastFault(f))
	}
	for _, r := range v.keeper.Resting() {
		out := debug.Resting{Record: string(r.Key), Tries: r.Tries, Next: r.Until, Why: r.Said}
		if s, ok := v.observer.Sandbox(r.Key); ok && s.PodName != "" {
			out.Pod = s.PodNamespace + "/" + s.PodName
		}
		t.Resting = append(t.Resting, out)
	}
	if v.driver != nil {
		t.Driver = true
		for _, d := range v.driver.devices() {
			t.Devices = append(t.Devices, debug.DeviceCount(d))
		}
	}
	if v.differing != nil {
		differ, known := v.differing()
		t.VMs = &debug.VMCount{Known: known, Differing: differ}
	}
	return t
}

// lanes are looked at as the hands have them, which the published configuration says.
func (v view) lanes() debug.Lanes {
	dir, limit := v.cfg.StateDir, 0
	if conf, err := v.conf(); err == nil { // without one nothing is attached
		dir, limit = conf.StateDir, conf.DelegateLimit
	}
	u, err := lanes.Look(dir, limit)
	l := debug.Lanes{Limit: u.Limit, Kept: u.Kept, InUse: u.InUse, Waiting: u.Waiting, WaitingUrgent: u.WaitingUrgent}
	if err != nil {
		l.Fault = err.Error()
	}
	return l
}

// moving counts attachments by phase, and lists them but for those that are undone: first those
// that are under way, the longest so first, then the others, the newest first.
func moving(sandboxes []*observe.Sandbox) ([]debug.Count, []debug.Moving) {
	phases := map[debug.Phase]uint64{}
	var all []debug.Moving
	for _, s := range sandboxes {
		shown := sandbox(s)
		for i, a := range shown.Attachments {
			phases[a.Phase]++
			if a.Phase == debug.PhaseUndone {
				continue
			}
			m := debug.Moving{
				Namespace: s.PodNamespace, Pod: s.PodName, Interface: a.Interface, Network: a.Network, Phase: a.Phase, Since: a.Since,
				Device: a.Device, Dead: s.Dead,
			}
			if i < len(s.Steps) && a.Phase != debug.PhaseDone {
				m.Plugin = s.Steps[i].Plugin
			}
			if m.Since.IsZero() {
				m.Since = s.Begun
			}
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b debug.Moving) int {
		switch doneA, doneB := a.Phase == debug.PhaseDone, b.Phase == debug.PhaseDone; {
		case doneA && doneB:
			return b.Since.Compare(a.Since)
		case doneA:
			return 1
		case doneB:
			return -1
		}
		return a.Since.Compare(b.Since)
	})
	return counts(phases), all
}

// counts are numbers in the order of their names, without those that are none.
func counts[K ~string, N int | uint64](numbers map[K]N) []debug.Count {
	var all []debug.Count
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		if n := numbers[name]; n != 0 {
			all = append(all, debug.Count{Name: string(name), Count: uint64(n)})
		}
	}
	return all
}
