// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
)

// podAnnotations is the capability under which containerd and CRI-O hand a pod's
// annotations to a plugin.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// The planners that are programs: of manifests, and of an API server, whose HTTP and TLS
// would cost the other one more at every start than its work does.
const (
	plannerBinary     = "weft-planner"
	kubePlannerBinary = "weft-planner-kube"
)

// How long an ADD waits for an agent that does not listen, of the time that it has a quarter
// at most, and how often it looks.
const (
	agentWait = 5 * time.Second
	agentPoll = 50 * time.Millisecond
)

// errNoKubernetes: nothing in the conf leads to pods and NADs.
var errNoKubernetes = errors.New("no planner is configured")

// plan gets the plan of this call: by the hands themselves for a pod that asks for
// nothing extra (agent mode only), else from the planner; without one, the conf's own
// delegates and nothing else.
func (h *hands) plan(ctx context.Context) (*plan.Plan, error) {
	annotations := h.annotations()
	if h.conf.Manifests == "" && h.conf.AgentSocketSet {
		if p := h.planAlone(annotations); p != nil {
			return p, nil
		}
	}
	// An agent that is being replaced is back in a moment, and the kubelet's next try is not
	// made in a moment.
	wait := brief.WithTimeout(ctx, min(agentWait, h.conf.Timeout/4))
	for {
		p, err := h.ask(ctx, annotations)
		if !h.away(err) || brief.Sleep(wait, agentPoll) != nil {
			return p, err
		}
	}
}

// away says that the agent which the conf names is not there: not yet, or not any more.
func (h *hands) away(err error) bool {
	return h.conf.Manifests == "" && h.conf.AgentSocketSet &&
		(errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wire.ErrGone))
}

// ask asks the planner once.
func (h *hands) ask(ctx context.Context, annotations map[string]string) (*plan.Plan, error) {
	client, err := h.planner(ctx)
	if errors.Is(err, errNoKubernetes) {
		if h.req.sandbox.ArgPairs()["K8S_POD_NAME"] != "" {
			h.log.warn("configuration " + h.conf.Name + ": names no source of pods (agentSocket, kubeconfig, manifests): " +
				"the pod's annotations are not looked at")
		}
		p, err := h.planLocally(plan.Input{Sandbox: h.req.sandbox})
		if err == nil {
			err = h.checkClaimed(p)
		}
		return p, err
	}
	if err != nil {
		return nil, err
	}
	if h.client != nil {
		_ = h.client.Close() // it is gone
	}
	h.client = client
	client.Meanwhile = prepareRecord
	req := wire.PlanRequest{Conf: h.req.stdin, Sandbox: h.req.sandbox, Annotations: annotations}
	p, err := client.Plan(ctx, req, h.files())
	if err != nil || !client.WantsReport() && !client.WantsHandover() {
		client.Hangup()
	}
	if err == nil && client.Spawned() && h.conf.Manifests == "" {
		err = h.checkClaimed(p)
	}
	return p, err
}

// checkClaimed refuses a plan that was made without the agent for a pod that has devices of Weft's
// network driver: nobody else moves them, and the pod must not start without. A pod of manifests has
// none, since no kubelet prepared any.
func (h *hands) checkClaimed(p *plan.Plan) error {
	args := h.req.sandbox.ArgPairs()
	if args["K8S_POD_NAME"] == "" || !h.hasPreparedDevices(cmp.Or(p.PodUID, args["K8S_POD_UID"])) {
		return nil
	}
	return fault.New(fault.TryLater, "pod "+args["K8S_POD_NAMESPACE"]+"/"+args["K8S_POD_NAME"], "",
		"a device that it claimed is prepared, and only the node's agent can hand it over, which does not answer at %s", h.conf.AgentSocket)
}

// planner connects to who plans for this conf (architecture 4.1): weft-planner for
// manifests; else the agent; else, when no agent listens, weft-planner-kube
// for a kubeconfig. An agentSocket that was written admits no other than the agent.
func (h *hands) planner(ctx context.Context) (*wire.Client, error) {
	if h.conf.Manifests != "" {
		return h.spawn(ctx, plannerBinary, "manifests")
	}
	client, err := wire.Dial(ctx, h.conf.AgentSocket)
	switch {
	case err == nil:
		return client, nil
	case h.conf.AgentSocketSet:
		return nil, &fault.Fault{
			Code: fault.TryLater, Object: "agentSocket " + h.conf.AgentSocket,
			Text: "the node's agent does not answer, and this pod needs it: " + err.Error(), Err: err,
		}
	case h.conf.Kubeconfig != "":
		return h.spawn(ctx, kubePlannerBinary, "kubeconfig")
	default:
		return nil, errNoKubernetes
	}
}

// spawn starts the planner of that name, which the conf's key asks for.
func (h *hands) spawn(ctx context.Context, name, key string) (*wire.Client, error) {
	binary, err := chain.Find(name, h.path())
	if err != nil {
		return nil, &fault.Fault{
			Code: fault.Config, Object: name,
			Text: "needed for " + key + ", but not in CNI_PATH or binDir", Err: err,
		}
	}
	return wire.Spawn(ctx, binary, h.proc.Stderr)
}

// annotations are those that the runtime handed over, nil when it handed over none.
func (h *hands) annotations() map[string]string {
	raw, ok := h.conf.RuntimeConfig[podAnnotations]
	if !ok {
		return nil
	}
	out := map[string]string{}
	if err := json.Unmarshal(raw, &out); err != nil {
		h.log.warn("runtimeConfig." + podAnnotations + ": " + err.Error())
		return nil
	}
	return out
}

// files reads what a planner needs, remembering where the cluster network's file is.
func (h *hands) files() func(plan.Need) plan.File {
	var cluster string
	return func(need plan.Need) plan.File {
		f := hostfiles.Read(h.conf, need, cluster)
		h.log.warnings(f.Warnings)
		if f.Found && h.conf.ClusterNetwork != "" && strings.HasSuffix(string(need), "/"+strings.TrimPrefix(h.conf.ClusterNetwork, "/")) {
			cluster = f.Path
		}
		return f
	}
}

// planAlone makes the plan with what the hands know, nil when that is not enough.
// Faults are left to the agent as well: it can tell the pod's owner by an event.
func (h *hands) planAlone(annotations map[string]string) *plan.Plan {
	if annotations == nil {
		return nil
	}
	args := h.req.sandbox.ArgPairs()
	pod := &plan.Pod{
		Namespace:   args["K8S_POD_NAMESPACE"],
		Name:        args["K8S_POD_NAME"],
		UID:         args["K8S_POD_UID"],
		Annotations: annotations,
	}
	if pod.Name == "" || h.hasPreparedDevices(pod.UID) {
		return nil
	}
	p, err := h.planLocally(plan.Input{Sandbox: h.req.sandbox, Pod: pod})
	if err != nil {
		return nil
	}
	return p
}

var errMore = errors.New("the plan needs the agent")

// planLocally plans from the host's files alone; errMore when NADs or devices are needed.
func (h *hands) planLocally(in plan.Input) (*plan.Plan, error) {
	in.Conf, in.Files = h.conf, map[plan.Need]plan.File{}
	read := h.files()
	for {
		out, err := plan.Make(in)
		switch {
		case err != nil:
			return nil, err
		case out.Plan != nil:
			return out.Plan, nil
		case len(out.NeedNADs) > 0 || out.NeedDevices || len(out.NeedFiles) == 0:
			return nil, errMore
		}
		for _, need := range out.NeedFiles {
			in.Files[need] = read(need)
		}
	}
}

// hasPreparedDevices reports whether a DRA device may be prepared for the pod: a
// record of its UID, or one without a UID (a claim that pods share). What cannot be
// read counts as one.
func (h *hands) hasPreparedDevices(podUID string) bool {
	dir := filepath.Join(h.conf.StateDir, "devices")
	keys, err := journal.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	for _, key := range keys {
		uid, err := journal.PodUID(dir, key)
		if err != nil || uid == "" || uid == podUID {
			return true
		}
	}
	return false
}

// ownNetworks is the plan of the conf's own networks, without any pod. nil: only
// Kubernetes knows them, and what would ask it is away.
func (h *hands) ownNetworks(ctx context.Context) (*plan.Plan, error) {
	in := plan.Input{
		Sandbox: plan.Sandbox{ContainerID: "node", IfName: defaultIfName, Path: h.req.sandbox.Path},
		LookUp:  h.conf.Manifests != "" || h.conf.AgentSocketSet || h.conf.Kubeconfig != "",
	}
	p, err := h.planLocally(in)
	if !errors.Is(err, errMore) {
		return p, err
	}
	client, err := h.planner(ctx)
	if err == nil {
		defer client.Close() //nolint:errcheck // the answer is there, or its error is
		p, err = client.Plan(ctx, wire.PlanRequest{Conf: h.req.stdin, Sandbox: in.Sandbox}, h.files())
	}
	if f, ok := errors.AsType[*fault.Fault](err); ok && f.Code == fault.TryLater {
		h.log.debug(err.Error())
		return nil, nil
	}
	return p, err
}

// checkHost is the last check before the first delegate runs: every plugin of the plan
// is an executable of CNI_PATH, and what device plugins left about its devices is fit to
// be handed on. All faults are named.
func (h *hands) checkHost(p *plan.Plan) error {
	var faults []error
	for _, a := range p.Attachments {
		if err := devices.CheckInfo(h.conf, a); err != nil {
			faults = append(faults, fmt.Errorf("network %s, interface %s: %w", a.Network, a.IfName, err))
		}
	}
	seen := map[string]bool{}
	for _, a := range p.Attachments {
		for i, plugin := range a.Conf.Plugins {
			faults = append(faults, h.checkBinary(a, i, "type", plugin.Type, seen))
			err := h.checkBinary(a, i, "ipam.type", plugin.IPAM, seen)
			if err != nil && !runsIPAM(plugin.Type) {
				h.log.warn(err.Error())
				err = nil
			}
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// checkBinary looks up one plugin program, once however often it is named.
func (h *hands) checkBinary(a plan.Attachment, i int, key, name string, seen map[string]bool) error {
	if name == "" || seen[name] {
		return nil
	}
	seen[name] = true
	_, err := chain.Find(name, h.path())
	if err == nil {
		return nil
	}
	if len(a.Conf.Plugins) > 1 {
		key = fmt.Sprintf("plugins[%d].%s", i, key)
	}
	return &fault.Fault{Code: fault.Config, Object: "network " + a.Network, Field: key, Text: err.Error(), Err: err}
}

// runsIPAM tells the plugins that are known to run the program of their ipam.type. Another
// plugin may mean something of its own by it.
func runsIPAM(plugin string) bool {
	switch plugin {
	case "bridge", "macvlan", "ipvlan", "ptp", "vlan", "host-device", "dummy", "tap", "sriov":
		return true
	}
	return false
}
