// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

// Domain is what libvirt and the guest say of a virtual machine. [FromXML] and [FromGuest] make
// one; a caller may fill it by itself.
type Domain struct {
	// Interfaces are the <interface> elements.
	Interfaces []NIC
	// HostDevices are the <hostdev> elements that stand for an SR-IOV interface.
	HostDevices []HostDevice
	// Skipped says which elements could not be used, and why.
	Skipped []string
	// Err says why the domain could not be read. The entries that the previous status has of
	// the domain are then kept and marked as stale.
	Err error

	// Guest is what the guest agent last reported; nil: it never reported anything. While the agent
	// is silent, nil stands for what the previous status has of the guest.
	Guest []GuestInterface
	// GuestErr says why its last answer could not be used. Guest is then an older answer; nil
	// stands for what the previous status has of the guest.
	GuestErr error
	// Agent says how far Guest can be believed.
	Agent AgentState
	// Channel is what the domain says of the agent's channel: "connected", "disconnected" or
	// nothing. It is only used to warn.
	Channel string
}

// NIC is one <interface> of a domain.
type NIC struct {
	// Name is the alias without its prefix: the name of the interface in the VMI's spec.
	Name string
	// MAC as the domain has it.
	MAC string
	// Queues of the driver; at least 1.
	Queues int32
	// LinkState is "up" or "down".
	LinkState string
}

// HostDevice is one <hostdev> of a domain that stands for an SR-IOV interface.
type HostDevice struct {
	// Name is the alias without its prefixes: the name of the interface in the VMI's spec.
	Name string
}

// GuestInterface is one record of what the guest agent reports. A guest may report anything.
type GuestInterface struct {
	// Name of the interface in the guest; nothing from launchers that report none.
	Name string
	// MAC as the guest wrote it; may be empty.
	MAC string
	// IPs in the guest's order, without prefix length.
	IPs []string
}

// AgentState says how far what a guest agent reported can be believed.
type AgentState uint8

// States of an agent.
const (
	// AgentUnknown is believed: nothing says that the agent is gone.
	AgentUnknown AgentState = iota
	// AgentConnected is believed.
	AgentConnected
	// AgentSilent is believed and marked as stale: the machine is paused or migrates, or the
	// agent has been away for less than the time of grace.
	AgentSilent
	// AgentDisconnected is not believed: what the guest reported is dropped.
	AgentDisconnected
)
