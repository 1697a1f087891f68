// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
)

// name gives every slot its interface name: the runtime's, the one asked for, or net
// with the slot's number. A name is taken once over the whole pod; automatic names
// yield to nobody, because a name that moves when a neighbour changes is worse than a fault.
func (p *planner) name() {
	taken := make(map[string]string, 1+len(p.in.Reserved)+len(p.slots))
	taken["lo"] = "the loopback interface"
	for _, name := range p.in.Reserved {
		taken[name] = "a device that one of the pod's claims brings"
	}
	p.held(taken)
	take := func(s *slot, how string) {
		if other, clash := taken[s.IfName]; clash {
			p.slotFault(s, "", "the interface name %s%s is also that of %s", fault.Quote(s.IfName), how, other)
			return
		}
		taken[s.IfName] = s.from
	}
	for i := range p.slots { // those with a name first, so that the others' faults name them
		switch s := &p.slots[i]; {
		case i == 0:
			s.IfName = p.in.Sandbox.IfName
			p.explainName(s, "is the runtime's, CNI_IFNAME; the default network always has it")
			take(s, "")
		case s.attached != nil:
			s.IfName = s.attached.IfName
			p.explainName(s, "is what the running pod has")
			take(s, " (that it has already)")
		case s.request != nil && s.request.Interface != "":
			s.IfName = s.request.Interface
			p.explainName(s, "is asked for")
			take(s, "")
		}
	}
	for i := range p.slots {
		if s := &p.slots[i]; s.IfName == "" {
			s.IfName = automatic(i, taken, len(p.in.Attached) > 0)
			p.explainName(s, "is automatic: none is asked for, so it is net and the position")
			take(s, " (automatic, from its position)")
		}
	}
}

// route collects the gateways: one of a family over all slots, and under strict one
// slot that names any at all.
func (p *planner) route() {
	var family [2]string // who has it: IPv4, IPv6
	first := ""
	for i := range p.slots {
		s := &p.slots[i]
		if s.request == nil || s.request.DefaultRoute == nil {
			continue
		}
		const key = ".default-route"
		if p.conf.Strict && first != "" {
			p.slotFault(s, key, "stands also in %s; only one network may have it", first)
			continue
		}
		first = s.from
		for j, gateway := range s.request.DefaultRoute {
			v, name := 0, "IPv4"
			if gateway.Is6() {
				v, name = 1, "IPv6"
			}
			here := fmt.Sprintf("%s[%d]", key, j)
			if family[v] != "" {
				p.slotFault(s, here, "is a second %s gateway, the first is %s; a pod has one default route of a family", name, family[v])
				continue
			}
			family[v] = s.from + here
			s.Gateways = append(s.Gateways, gateway)
			p.explainGateway(s, here, gateway, name)
		}
	}
}

// pools gives the devices that slots can draw, by resource, and how many slots want one. What the pod's
// attachments hold is not among them.
func (p *planner) pools() (pools map[string][]string, wanted map[string]int) {
	pools, wanted = map[string][]string{}, map[string]int{}
	held := map[string]bool{}
	for i := range p.slots {
		if a := p.slots[i].attached; a != nil && a.DeviceID != "" {
			held[a.DeviceID] = true
		}
	}
	for i := range p.slots {
		name := p.slots[i].resource
		if p.slots[i].attached != nil || name == "" {
			continue
		}
		if wanted[name]++; wanted[name] == 1 {
			pools[name] = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(p.in.Devices[name]))),
				func(id string) bool { return held[id] })
		}
	}
	return pools, wanted
}

// assignDevices gives each slot with a resource name the next of the pod's devices, in
// the order of the slots, and sees that no device goes to two of them.
func (p *planner) assignDevices() {
	pools, wanted := p.pools()
	given := make(map[string]string, len(p.slots))
	next := map[string]int{}
	for i := range p.slots {
		s := &p.slots[i]
		asked := ""
		if s.request != nil {
			asked = s.request.DeviceID
		}
		switch pool := pools[s.resource]; {
		case s.attached != nil:
			s.DeviceID, s.ResourceName, s.drawn = s.attached.DeviceID, s.attached.ResourceName, s.attached.ResourceName != ""
		case s.resource == "":
			s.DeviceID = asked
			p.explainAskedDevice(s)
		case next[s.resource] == len(pool):
			p.slotFault(s, "", "needs a device of %s, and the pod has %d for %d networks",
				fault.Quote(s.resource), len(pool), wanted[s.resource])
		default:
			s.DeviceID, s.ResourceName, s.drawn = pool[next[s.resource]], s.resource, true
			next[s.resource]++
			p.explainDrawnDevice(s, next[s.resource], len(pool))
			if asked != "" && asked != s.DeviceID {
				p.warn(s.from+".deviceID", "is ignored: the device %s was given to the pod for it", fault.Quote(s.DeviceID))
			}
		}
		if s.DeviceID == "" {
			continue
		}
		if other, twice := given[s.DeviceID]; twice {
			p.slotFault(s, "", "has the device %s, which %s has as well", fault.Quote(s.DeviceID), other)
		}
		given[s.DeviceID] = s.from
	}
}

// bound keeps all configurations of a plan together below MaxConfs.
func (p *planner) bound() {
	size := 0
	for i := range p.slots {
		size += confBytes(p.slots[i].Attachment)
	}
	if size > MaxConfs {
		p.faults = append(p.faults, TooLarge(p.in, size))
	}
}

// TooLarge is the fault of networks whose configurations are of so many bytes together, or of
// more, each counted as often as it is attached. It names who asks for them.
func TooLarge(in Input, size int) error {
	object, field := strings.TrimSpace("configuration "+in.Conf.Name), ""
	if pod := in.Pod; pod != nil {
		object = "pod " + pod.Namespace + "/" + pod.Name
		for _, annotation := range []string{DefaultNetworkAnnotation, NetworksAnnotation} {
			if pod.Annotations[annotation] != "" {
				field = "annotation " + annotation
			}
		}
	}
	return fault.New(fault.Config, object, field, "asks for networks whose configurations are of %d bytes together, at most %d are allowed", size, MaxConfs)
}

// automatic is the name of the slot at a position that asks for none: net and the position;
// in a running pod, where that may be taken by what kept its name, the next free one.
func automatic(i int, taken map[string]string, running bool) string {
	for {
		name := "net" + strconv.Itoa(i)
		if _, clash := taken[name]; !clash || !running {
			return name
		}
		i++
	}
}
