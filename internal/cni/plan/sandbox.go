// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Names in CNI_ARGS that the kubelet's runtimes give.
const (
	argIgnore    = "IgnoreUnknown"
	argNamespace = "K8S_POD_NAMESPACE"
	argName      = "K8S_POD_NAME"
	argSandbox   = "K8S_POD_INFRA_CONTAINER_ID"
	argUID       = "K8S_POD_UID"
)

// ArgPairs reads CNI_ARGS leniently, to find out whose sandbox it is: Make is the one who
// refuses what is malformed.
func (s Sandbox) ArgPairs() map[string]string {
	out := map[string]string{}
	for pair := range strings.SplitSeq(s.Args, ";") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			out[name] = value
		}
	}
	return out
}

// pair is one pair of CNI_ARGS.
type pair struct{ name, value string }

// checkSandbox holds the runtime to its side of the contract and to the pod that was read.
func (p *planner) checkSandbox() {
	s := p.in.Sandbox
	if err := netconf.NetworkName(s.ContainerID); err != nil { // CNI has one rule for both
		p.environment("CNI_CONTAINERID", "%s %w", fault.Quote(s.ContainerID), err)
	}
	if err := selection.InterfaceName(s.IfName); err != nil {
		p.environment("CNI_IFNAME", "%s %w", fault.Quote(s.IfName), err)
	}
	for item := range strings.SplitSeq(s.Args, ";") {
		if item == "" { // also after a semicolon at the end
			continue
		}
		name, value, ok := strings.Cut(item, "=")
		if !ok || name == "" {
			p.environment("CNI_ARGS", "%s is no name=value", fault.Quote(item))
			continue
		}
		if i := slices.IndexFunc(p.args, func(a pair) bool { return a.name == name }); i >= 0 {
			p.args[i].value = value // the last one is what a plugin would read
			continue
		}
		p.args = append(p.args, pair{name, value})
	}
	if p.in.Pod != nil {
		p.checkPod(p.in.Pod)
	}
}

func (p *planner) environment(field, format string, args ...any) {
	p.faults = append(p.faults, fault.New(fault.Environment, "environment", field, format, args...))
}

func (p *planner) arg(name string) (string, bool) {
	for _, a := range p.args {
		if a.name == name {
			return a.value, true
		}
	}
	return "", false
}

// checkPod refuses a pod whose names could not stand in CNI_ARGS, and one that is not
// the runtime's: then the answer of whoever read it is older or newer than the sandbox.
func (p *planner) checkPod(pod *Pod) {
	if err := selection.Namespace(pod.Namespace); err != nil {
		p.fault("metadata.namespace", "%s %w", fault.Quote(pod.Namespace), err)
	}
	if err := selection.ObjectName(pod.Name); err != nil {
		p.fault("metadata.name", "%s %w", fault.Quote(pod.Name), err)
	}
	want, _ := p.arg(argUID)
	if pod.Is(want) {
		return
	}
	p.faults = append(p.faults, fault.New(fault.TryLater, p.object, "metadata.uid",
		"is %s, the sandbox belongs to %s", fault.Quote(pod.UID), fault.Quote(want)))
}

// Is says whether the pod may be the one that a runtime knows under uid; "" on either
// side is not known.
func (p *Pod) Is(uid string) bool {
	return uid == "" || p.UID == "" || uid == p.UID || uid == p.RuntimeUID()
}

// RuntimeUID is the UID under which the kubelet and the runtime know the pod.
func (p *Pod) RuntimeUID() string {
	if uid := staticUID(p); uid != "" {
		return uid
	}
	return p.UID
}

// staticUID is the UID under which a runtime knows a static pod, whose mirror in the API
// has another one: the hash of its configuration. "" for other pods.
func staticUID(pod *Pod) string {
	source, ok := pod.Annotations["kubernetes.io/config.source"]
	if !ok || source == "api" {
		return ""
	}
	return pod.Annotations["kubernetes.io/config.hash"]
}

// argString is CNI_ARGS for an attachment: the pod's pairs, what else the runtime gave,
// once, and the legacy pairs of what the attachment of network n asks for. Several
// addresses go to a plugin that declares the capability that way alone: who reads IP
// besides (host-local) takes one, and fails on a list.
func (p *planner) argString(e *selection.Element, n *netconf.Network) string {
	pairs := append(p.pairs[:0], p.podArgs...)
	if e != nil && e.MAC != "" {
		pairs = setPair(pairs, "MAC", e.MAC)
	}
	if e != nil && legacyIPs(e, n) {
		pairs = setPair(pairs, "IP", strings.Join(e.IPs, ","))
	}
	p.pairs = pairs
	size := 0
	for _, a := range pairs {
		size += len(a.name) + len(a.value) + len("=;")
	}
	var b strings.Builder
	b.Grow(size)
	for i, a := range pairs {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(a.name)
		b.WriteByte('=')
		b.WriteString(a.value)
	}
	return b.String()
}

func legacyIPs(e *selection.Element, n *netconf.Network) bool {
	return len(e.IPs) == 1 || len(e.IPs) > 1 && !n.Declares("ips")
}

// commonArgs are the pairs that all attachments get. Without Kubernetes nothing is added.
func (p *planner) commonArgs() []pair {
	pod := p.in.Pod
	if pod == nil {
		return p.args
	}
	pairs := []pair{
		{argIgnore, "true"},
		{argNamespace, pod.Namespace},
		{argName, pod.Name},
		{argSandbox, p.in.Sandbox.ContainerID},
		{argUID, pod.UID},
	}
	for _, a := range p.args {
		if a.name == argNamespace || a.name == argName || a.value == "" && a.name == argUID {
			continue // the pod that was read has them, and right
		}
		pairs = setPair(pairs, a.name, a.value)
	}
	return slices.DeleteFunc(pairs, func(a pair) bool { return a.name == argUID && a.value == "" })
}

func setPair(pairs []pair, name, value string) []pair {
	for i := range pairs {
		if pairs[i].name == name {
			pairs[i].value = value
			return pairs
		}
	}
	return append(pairs, pair{name, value})
}
