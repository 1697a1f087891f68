// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/kube/informers"
)

// view is the agent as the debug socket shows it.
type view struct{ *Agent }

// Node implements debug.View.
func (v view) Node() debug.Node {
	ready, _ := v.ready.Ready()
	n := debug.Node{
		Name: v.cfg.NodeName, Started: v.started, Ready: ready,
		Cache:    debug.Cache{Synced: closed(v.cluster.Synced()), LastContact: v.cluster.LastContact()},
		Versions: debug.Versions{Agent: v.version, Plugin: v.version},
		Paths: debug.Paths{
			ConfDir: v.cfg.CNI.ConfDir, BinDir: v.cfg.CNI.BinDir, StateDir: v.cfg.StateDir,
			KubeletDir: v.cfg.CNI.KubeletDir, AgentSocket: v.cfg.AgentSocket(),
		},
	}
	for _, c := range v.ready.Conditions() {
		n.Conditions = append(n.Conditions, debug.Condition{Name: c.Name, OK: c.OK, Why: c.Why, Since: c.Since})
	}
	published, primary, err := v.publisher.State()
	n.Conf = debug.Conf{Path: v.confPath(), Published: published, Primary: primary}
	if err != nil {
		n.Conf.Fault = err.Error()
	}
	c := v.observer.Counts()
	pending, _ := v.reconciler.Lag()
	n.Counts = debug.Counts{
		Pods: len(v.cluster.Pods()), Networks: len(v.cluster.NADs()), Records: c.Records, HalfDone: c.HalfDone + c.Undoing,
		Dead: c.Dead, Quarantined: c.Quarantined, Newer: c.Newer, PendingStatus: pending,
	}
	return n
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Pods implements debug.View.
func (v view) Pods() []debug.Pod {
	byUID := map[string]*debug.Pod{}
	var all []*debug.Pod
	known := map[string]*informers.Pod{}
	for _, p := range v.cluster.Pods() {
		known[p.UID] = p
		known[asPlanned(p).RuntimeUID()] = p // a static pod's records have another UID than its mirror
	}
	pod := func(uid, namespace, name string) *debug.Pod {
		p := known[uid]
		if p != nil {
			uid, namespace, name = p.UID, p.Namespace, p.Name
		}
		d := byUID[uid]
		if d == nil {
			d = &debug.Pod{Namespace: namespace, Name: name, UID: uid, Known: p != nil, NetworkStatus: debug.NetworkStatus{State: debug.StatusNone}}
			byUID[uid] = d
			all = append(all, d)
		}
		return d
	}
	for _, s := range v.observer.Sandboxes() {
		d := pod(s.PodUID, s.PodNamespace, s.PodName)
		if len(d.Sandboxes) == 0 {
			d.NetworkStatus = v.status(s)
		}
		d.Sandboxes = append(d.Sandboxes, sandbox(s))
	}
	for _, u := range v.observer.Unreadable() {
		d := pod(u.PodUID, "", "")
		d.Sandboxes = append(d.Sandboxes, debug.Sandbox{ContainerID: string(u.Key), Fault: u.Err.Error()})
	}
	for _, p := range known {
		if p.Annotations[plan.NetworksAnnotation] != "" || p.Annotations[plan.DefaultNetworkAnnotation] != "" {
			pod(p.UID, p.Namespace, p.Name)
		}
	}
	out := make([]debug.Pod, len(all))
	for i, d := range all {
		slices.SortStableFunc(d.Sandboxes, func(a, b debug.Sandbox) int { return a.Created.Compare(b.Created) })
		out[i] = *d
	}
	slices.SortFunc(out, func(a, b debug.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// status is how the annotation of a sandbox's pod stands to its records.
func (v view) status(s *observe.Sandbox) debug.NetworkStatus {
	if s.PodUID == "" {
		return debug.NetworkStatus{State: debug.StatusNone}
	}
	st := v.reconciler.State(s.PodUID)
	switch {
	case st.Right:
		return debug.NetworkStatus{State: debug.StatusWritten}
	case st.Desired == "":
		return debug.NetworkStatus{State: debug.StatusNone, Fault: st.Fault}
	}
	n := debug.NetworkStatus{State: debug.StatusPending, Fault: st.Fault}
	_ = json.Unmarshal([]byte(st.Desired), &n.Desired) // other writers' entries may have anything in them
	if _, written, ok := (pods{v.cluster}).Status(planner.PodRef{Namespace: s.PodNamespace, Name: s.PodName, UID: s.PodUID}); ok {
		n.Written = written
	} else {
		n.State = debug.StatusNone
	}
	return n
}

func sandbox(s *observe.Sandbox) debug.Sandbox {
	d := debug.Sandbox{
		ContainerID: s.Body.Sandbox.ContainerID, Interface: s.Body.Sandbox.IfName, Netns: s.Body.Sandbox.Netns,
		Created: s.Begun, Finished: s.Finished, Dead: s.Dead, Deletes: s.Deletes,
	}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		out := debug.Attachment{
			Network: a.Network, Interface: a.IfName, Default: a.Default, Device: a.DeviceID, Phase: debug.PhasePlanned,
		}
		for _, p := range a.Conf.Plugins {
			out.Plugins = append(out.Plugins, p.Type)
		}
		if i < len(s.Steps) {
			out.Phase, out.Since = phase(s.Steps[i]), s.Steps[i].Since
		}
		out.MAC, out.Addresses = addresses(a.Result, a.Conf.CNIVersion, a.IfName)
		d.Attachments = append(d.Attachments, out)
	}
	return d
}

func phase(s observe.Step) debug.Phase {
	switch s.Op {
	case journal.Attempting, journal.Started, journal.Displacing:
		return debug.PhaseAttempting
	case journal.Done:
		return debug.PhaseDone
	case journal.Undoing:
		return debug.PhaseUndoing
	case journal.Undone:
		return debug.PhaseUndone
	}
	return debug.PhasePlanned
}

// addresses reads a result's MAC of an interface in the sandbox, and all addresses.
func addresses(result []byte, version, ifName string) (mac string, all []string) {
	if len(result) == 0 {
		return "", nil
	}
	r, err := results.Parse(result, version)
	if err != nil {
		return "", nil // the record's reader has told it
	}
	for _, i := range r.Current.Interfaces {
		if i.Name == ifName && i.Sandbox != "" {
			mac = i.Mac
		}
	}
	for _, ip := range r.Current.IPs {
		all = append(all, ip.Address.String())
	}
	return mac, all
}

// explainTimeout bounds the live reads of Explain; the server has its own bound above it.
const explainTimeout = 8 * time.Second

// Explain implements debug.View.
func (v view) Explain(ctx context.Context, namespace, name string) (plan.Output, error) {
	p, ok := v.cluster.Pod(namespace, name)
	if !ok {
		return plan.Output{}, debug.ErrNoPod
	}
	conf, err := v.conf()
	if err != nil {
		return plan.Output{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	in := plan.Input{
		Conf: conf, LookUp: true,
		// What the runtime will choose is not known: these stand for it.
		Sandbox: plan.Sandbox{ContainerID: "CONTAINERID", IfName: "eth0", Netns: "/run/netns/NETNS"},
		Pod:     asPlanned(p),
	}
	cluster, told := "", []plan.Decision(nil)
	src := v.explaining(func(d plan.Decision) { told = append(told, d) })
	out, err := planner.Explain(ctx, in, src, func(need plan.Need) plan.File {
		f := hostfiles.Read(conf, need, cluster)
		if cluster == "" {
			cluster = f.Path
		}
		return f
	})
	out.Decisions = append(out.Decisions, told...)
	return out, err
}

// errNotPublished: there is no conf to plan with.
var errNotPublished = errors.New("is not published yet")

func (v view) noConf(err error) error {
	return fault.New(fault.TryLater, "configuration "+v.confPath(), "", "%w", err)
}
