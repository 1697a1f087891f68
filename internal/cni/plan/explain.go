// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Subject is what a Decision is about.
type Subject string

// The subjects, in the order in which they are decided.
const (
	SubjectNamespace     Subject = "namespace"     // of the NAD, where none is written
	SubjectIsolation     Subject = "isolation"     // may the pod use that namespace's networks
	SubjectNetwork       Subject = "network"       // which, and who asks for it
	SubjectConfiguration Subject = "configuration" // where it was read
	SubjectName          Subject = "name"          // of the configuration
	SubjectVersion       Subject = "cniVersion"    // of the configuration
	SubjectInterface     Subject = "interface"
	SubjectDefaultRoute  Subject = "default-route"
	SubjectDevice        Subject = "device"
	SubjectRuntimeConfig Subject = "runtimeConfig" // what the kubelet gave
	SubjectCapability    Subject = "capability"    // what the pod asks of the plugins
	SubjectArgs          Subject = "CNI_ARGS"      // the legacy way of the same
	SubjectCNIArgs       Subject = "cni-args"
)

// Decision is one thing that Make decided, and why.
type Decision struct {
	// Attachment is the index in the plan; -1 when it concerns the whole pod.
	Attachment int
	Subject    Subject
	Value      string // what was decided
	Reason     string
	// Object and Field are where the reason is written, in the words of a fault; the
	// Field is "" when it is the whole object, both are when it is written nowhere.
	Object, Field string
}

// decision is a Decision whose attachment is still known by what asks for it.
type decision struct {
	from string
	Decision
}

// The functions below are called wherever something is decided. Without Explain each
// of them is one comparison.

func (p *planner) decide(from string, d Decision) {
	p.decisions = append(p.decisions, decision{from, d})
}

// sorted gives the decisions attachment by attachment, in the order in which they were made.
func (p *planner) sorted() []Decision {
	index := make(map[string]int, len(p.slots))
	for i := range p.slots {
		index[p.slots[i].from] = i
	}
	all := make([]Decision, len(p.decisions))
	for i, d := range p.decisions {
		all[i] = d.Decision
		if at, ok := index[d.from]; ok {
			all[i].Attachment = at
		} else {
			all[i].Attachment = -1
		}
	}
	slices.SortStableFunc(all, func(a, b Decision) int { return cmp.Compare(a.Attachment, b.Attachment) })
	return all
}

// asker is the object that asks for a slot.
func (p *planner) asker(s *slot) string {
	if s.request == nil {
		return p.confObject()
	}
	return p.object
}

func (p *planner) explainNamespace(annotation string, e *selection.Element) {
	if !p.in.Explain || e.Broken {
		return
	}
	from := place(annotation, e.Index)
	d := Decision{Subject: SubjectNamespace, Value: e.Namespace, Object: p.object, Field: from, Reason: "none is written, so it is the pod's own"}
	if annotation == DefaultNetworkAnnotation {
		d.Object, d.Field, d.Reason = p.confObject(), "multusNamespace", "none is written, so it is multusNamespace"
	}
	p.decide(from, d)
}

func (p *planner) explainIsolation(annotation string, e *selection.Element) {
	if !p.in.Explain {
		return
	}
	d := Decision{Subject: SubjectIsolation, Value: "allowed", Object: p.confObject(), Field: "namespaceIsolation"}
	switch {
	case !p.conf.NamespaceIsolation:
		d.Reason = "namespaceIsolation is off, every namespace's networks may be used"
	case e.Namespace == p.in.Pod.Namespace:
		d.Reason = "the network is of the pod's own namespace"
	case slices.Contains(p.conf.GlobalNamespaces, e.Namespace):
		d.Reason, d.Field = fmt.Sprintf("namespace %s is one of globalNamespaces", e.Namespace), "globalNamespaces"
	default:
		d.Value, d.Reason = "refused", fmt.Sprintf("namespace %s is neither the pod's own nor one of globalNamespaces", e.Namespace)
	}
	p.decide(place(annotation, e.Index), d)
}

func (p *planner) explainSystemNamespace() {
	if !p.in.Explain || len(p.conf.DefaultNetworks) == 0 {
		return
	}
	p.decide("", Decision{
		Subject: SubjectNetwork, Value: "no defaultNetworks", Object: p.confObject(), Field: "systemNamespaces",
		Reason: fmt.Sprintf("namespace %s is one of systemNamespaces", p.in.Pod.Namespace),
	})
}

// explainNetwork says who asks for a slot, and where its network was read.
func (p *planner) explainNetwork(s *slot, r *resolved) {
	if !p.in.Explain {
		return
	}
	d := Decision{Subject: SubjectNetwork, Value: s.Network, Object: p.asker(s), Field: s.from}
	if d.Value == "" && s.request != nil {
		d.Value = s.request.Namespace + "/" + s.request.Name
	}
	switch e := s.request; {
	case e != nil && s.Default:
		d.Reason = "the pod asks for it in place of the configuration's default network"
	case e != nil:
		d.Reason = fmt.Sprintf("the pod asks for it, element %d of its annotation", e.Index)
	case s.from == "clusterNetwork":
		d.Reason = "is the default network of every pod"
	case s.from == "delegates[0]":
		d.Reason = "is the default network of every pod: clusterNetwork is not set, and this is the first of delegates"
	case s.from == "auxiliaryCNIChainName":
		d.Reason = "has plugins beside the cluster network's file; it comes after all others"
	case strings.HasPrefix(s.from, "defaultNetworks"):
		d.Reason = "every pod outside systemNamespaces gets it"
	default:
		d.Reason = "every pod gets it"
	}
	p.decide(s.from, d)
	for _, why := range r.why {
		p.decide(s.from, why.Decision)
	}
}

// explainConf says where a network's configuration was read and what it left out. name
// is the one that it gets when it has none.
func (p *planner) explainConf(r *resolved, name, object, prefix string) {
	if !p.in.Explain {
		return
	}
	types := make([]string, len(r.network.Plugins))
	for i, plugin := range r.network.Plugins {
		types[i] = plugin.Type
	}
	field := strings.TrimRight(prefix, " .")
	d := Decision{Subject: SubjectConfiguration, Value: strings.Join(types, ", "), Object: object, Field: field, Reason: "stands in " + strings.TrimSpace(object+" "+field)}
	if r.nad.Name != "" && prefix == "" {
		d.Reason += fmt.Sprintf(": spec.config of %s is empty, and this is the first configuration in confDir with that name", r.label)
	}
	r.why = append(r.why, decision{Decision: d})
	d = Decision{Subject: SubjectName, Value: r.network.Name, Object: object, Field: prefix + "name", Reason: "is written"}
	if d.Value == "" {
		d.Value, d.Field, d.Reason = name, field, "none is written, so it is the NetworkAttachmentDefinition's"
		if r.nad.Name == "" {
			d.Reason = "none is written, so it is the configuration's own"
		}
	}
	r.why = append(r.why, decision{Decision: d})
	d = Decision{Subject: SubjectVersion, Value: r.network.CNIVersion, Object: object, Field: prefix + "cniVersion", Reason: "is written"}
	if d.Value == "" {
		d = Decision{
			Subject: SubjectVersion, Value: p.conf.CNIVersion, Object: p.confObject(), Field: "cniVersion",
			Reason: "none is written, so it is that of the " + p.confObject(),
		}
	}
	r.why = append(r.why, decision{Decision: d})
}

func (p *planner) explainName(s *slot, reason string) {
	if !p.in.Explain {
		return
	}
	d := Decision{Subject: SubjectInterface, Value: s.IfName, Reason: reason}
	if s.request != nil && !s.Default {
		d.Object, d.Field = p.object, s.from
		if s.request.Interface != "" {
			d.Field += ".interface"
		}
	}
	p.decide(s.from, d)
}

func (p *planner) explainGateway(s *slot, field string, gateway netip.Addr, family string) {
	if !p.in.Explain {
		return
	}
	p.decide(s.from, Decision{
		Subject: SubjectDefaultRoute, Value: gateway.String(), Object: p.object, Field: s.from + field,
		Reason: fmt.Sprintf("is asked for; every other %s default route of the pod goes", family),
	})
}

func (p *planner) explainAskedDevice(s *slot) {
	if !p.in.Explain || s.DeviceID == "" {
		return
	}
	p.decide(s.from, Decision{
		Subject: SubjectDevice, Value: s.DeviceID, Object: p.object, Field: s.from + ".deviceID",
		Reason: "is asked for, and the network draws from no resource",
	})
}

func (p *planner) explainDrawnDevice(s *slot, n, of int) {
	if !p.in.Explain {
		return
	}
	p.decide(s.from, Decision{
		Subject: SubjectDevice, Value: s.DeviceID, Object: "NetworkAttachmentDefinition " + s.Network, Field: "annotation " + ResourceNameAnnotation,
		Reason: fmt.Sprintf("is number %d of the pod's %d devices of %s, in the order of their names", n, of, s.resource),
	})
}

// explainKubelet says what becomes of the runtimeConfig that the kubelet gave.
func (p *planner) explainKubelet(s *slot) {
	if !p.in.Explain {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(p.conf.RuntimeConfig)) {
		d := Decision{Subject: SubjectRuntimeConfig, Value: name, Object: p.confObject(), Field: "runtimeConfig." + name}
		switch takers := declaring(s, name); {
		case s.Default && takers != "":
			d.Reason = "the kubelet's goes to the default network: to " + takers
		case s.Default:
			d.Value, d.Reason = name+" dropped", "no plugin of "+s.Network+" declares the capability"
		case takers != "":
			d.Value, d.Reason = name+" not given", "the kubelet's goes to the default network alone"
		default:
			continue
		}
		p.decide(s.from, d)
	}
}

// declaring names the plugins that take a capability, "" = none does.
func declaring(s *slot, capability string) string {
	var all []string
	for i, plugin := range s.Conf.Plugins {
		if plugin.Capabilities[capability] {
			all = append(all, "plugins["+strconv.Itoa(i)+"] "+plugin.Type)
		}
	}
	return strings.Join(all, ", ")
}

func (p *planner) explainRequest(s *slot, r request) {
	if !p.in.Explain {
		return
	}
	p.decide(s.from, Decision{
		Subject: SubjectCapability, Value: r.capability, Object: p.object, Field: s.from + "." + r.key,
		Reason: "is asked for, and goes to " + declaring(s, r.capability),
	})
}

func (p *planner) explainUndeclared(s *slot, r request) {
	if !p.in.Explain {
		return
	}
	p.decide(s.from, Decision{
		Subject: SubjectCapability, Value: r.capability + " dropped", Object: p.object, Field: s.from + "." + r.key,
		Reason: fmt.Sprintf("is asked for, and no plugin of %s declares the capability", s.Network),
	})
}

func (p *planner) explainArgs(s *slot) {
	if !p.in.Explain {
		return
	}
	ips := ""
	if legacyIPs(s.request, &s.Conf) {
		ips = strings.Join(s.request.IPs, ",")
	}
	for _, a := range []struct{ name, value, key string }{{"MAC", s.request.MAC, ".mac"}, {"IP", ips, ".ips"}} {
		if a.value != "" {
			p.decide(s.from, Decision{
				Subject: SubjectArgs, Value: a.name + "=" + fault.Bound(a.value, 256), Object: p.object, Field: s.from + a.key,
				Reason: "plugins without the capability may read it there",
			})
		}
	}
}

func (p *planner) explainDeviceInfo(s *slot) {
	if !p.in.Explain {
		return
	}
	p.decide(s.from, Decision{
		Subject: SubjectCapability, Value: capDeviceInfo, Object: p.confObject(), Field: "deviceInfoDir",
		Reason: "is declared by " + declaring(s, capDeviceInfo) + ": the file is made below deviceInfoDir",
	})
}

// explainEdit says what was put into the configuration of every plugin.
func (p *planner) explainEdit(s *slot) {
	if !p.in.Explain {
		return
	}
	if s.drawn {
		p.decide(s.from, Decision{
			Subject: SubjectDevice, Value: "deviceID, pciBusID", Object: "NetworkAttachmentDefinition " + s.Network, Field: "annotation " + ResourceNameAnnotation,
			Reason: "are set in every plugin's configuration, to the device",
		})
	}
	if s.request != nil && s.request.CNIArgs != nil {
		p.decide(s.from, Decision{
			Subject: SubjectCNIArgs, Value: "args.cni", Object: p.object, Field: s.from + ".cni-args",
			Reason: "the keys are merged into args.cni of every plugin, over those that it has",
		})
	}
}
