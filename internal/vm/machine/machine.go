// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine is a virtual machine's interfaces as they are shown and reported: what was read
// of the sources (internal/vm/source), merged (vmistatus), with how old it is and what stands in
// the status.
//
// It owns Machine, the form in which the agent, its debug socket and the command line speak of one.
//
// Invariants: it computes and holds values; nothing in it reads a file, asks libvirt or writes an
// object. Its JSON gets new fields and never loses one, and no list in it is null.
//
// It must not know where the values come from, nor how they are printed.
//
// Implements: architecture 4.6 (weft get vmis, weft explain vmi).
package machine

import (
	"fmt"
	"time"

	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

// Machine is one virtual machine.
type Machine struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// Pod is the launcher's pod; "" when there is none on this node.
	Pod string `json:"pod,omitempty"`
	// State is that of the machine: running, paused, off, unknown.
	State string `json:"state"`
	// Agent is that of the guest's agent: connected, silent, disconnected, unknown.
	Agent string `json:"agent"`
	// Fault is why libvirt cannot be asked; what is shown is then what it said last.
	Fault string `json:"fault,omitempty"`
	// Read is when libvirt last answered, GuestRead when the agent did; zero: never.
	Read      time.Time `json:"read,omitzero"`
	GuestRead time.Time `json:"guestRead,omitzero"`

	// Interfaces are what status.interfaces should be.
	Interfaces []Interface `json:"interfaces"`
	// Warnings are what a person should know of them.
	Warnings []vmistatus.Warning `json:"warnings"`
	// Differs says in what the status that is written is not so; empty also where none is known.
	Differs []string `json:"differs"`
	// Written is when the status was last written by this agent; zero: never.
	Written time.Time `json:"written,omitzero"`
}

// Interface is an entry of the status, with where its values come from.
type Interface struct {
	vmistatus.Interface
	Values   []vmistatus.Value `json:"values"`
	Rejected []vmistatus.Value `json:"rejected"`
}

// Compute merges. Of id the names are taken; in has everything but the domain, and its Previous is
// what the status says. The second result is what is to be written.
func Compute(id Machine, in vmistatus.Input, s source.Snapshot) (Machine, []vmistatus.Interface) {
	in.Domain, in.Explain = s.Domain, true
	result := vmistatus.Merge(in)
	m := id
	m.State, m.Agent, m.Read, m.GuestRead = s.State.String(), agent(s), s.At, s.GuestAt
	if s.Err != nil {
		m.Fault = s.Err.Error()
	}
	m.Interfaces = make([]Interface, len(result.Interfaces))
	for i, e := range result.Interfaces {
		m.Interfaces[i] = Interface{Interface: e, Values: list(result.Values(i)), Rejected: list(result.RejectedValues(i))}
	}
	m.Warnings = list(result.Warnings)
	m.Differs = Differences(in.Previous, result.Interfaces)
	return m, result.Interfaces
}

func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func agent(s source.Snapshot) string {
	if s.Domain == nil {
		return "unknown"
	}
	switch s.Domain.Agent {
	case vmistatus.AgentConnected:
		return "connected"
	case vmistatus.AgentSilent:
		return "silent"
	case vmistatus.AgentDisconnected:
		return "disconnected"
	default:
		return "unknown"
	}
}

// maxDiffers bounds what is said of one machine.
const maxDiffers = 16

// Differences says in words in what have is not want, an entry at a time.
func Differences(have, want []vmistatus.Interface) []string {
	all := []string{}
	if vmistatus.Equal(have, want) {
		return all
	}
	old := map[string]*vmistatus.Interface{}
	for i := range have {
		old[key(&have[i])] = &have[i]
	}
	for i := range want {
		k := key(&want[i])
		if o := old[k]; o == nil {
			all = append(all, k+": the status lacks it")
		} else {
			all = append(all, fields(k, o, &want[i])...)
			delete(old, k)
		}
	}
	for i := range have {
		if k := key(&have[i]); old[k] != nil {
			all = append(all, k+": only the status has it")
			delete(old, k)
		}
	}
	if len(all) == 0 {
		all = append(all, "the order is another")
	}
	if n := len(all) - maxDiffers; n > 0 {
		all = append(all[:maxDiffers], fmt.Sprintf("%d more", n))
	}
	return all
}

// key names an entry: those that only the guest knows have no name of the machine's.
func key(e *vmistatus.Interface) string {
	if e.Name != "" {
		return e.Name
	}
	return fmt.Sprintf("guest's %s (%s)", e.InterfaceName, e.MAC)
}

func fields(k string, have, want *vmistatus.Interface) []string {
	var all []string
	say := func(field string, have, want any) {
		if h, w := fmt.Sprint(have), fmt.Sprint(want); h != w {
			all = append(all, fmt.Sprintf("%s: %s is %q in the status, and %q by what is known", k, field, h, w))
		}
	}
	say("mac", have.MAC, want.MAC)
	say("ipAddress", have.IP, want.IP)
	say("ipAddresses", have.IPs, want.IPs)
	say("podInterfaceName", have.PodInterfaceName, want.PodInterfaceName)
	say("interfaceName", have.InterfaceName, want.InterfaceName)
	say("infoSource", have.InfoSource, want.InfoSource)
	say("queueCount", have.QueueCount, want.QueueCount)
	say("linkState", have.LinkState, want.LinkState)
	return all
}
