// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

// Field is a field of a status entry.
type Field uint8

// Fields.
const (
	Name Field = iota
	MAC
	Addresses // ipAddresses, and ipAddress which is the first of them
	PodInterfaceName
	InterfaceName
	InfoSource
	QueueCount
	LinkState
	NumFields // how many there are
)

// Source is where a value comes from.
type Source uint8

// Sources.
const (
	NoSource    Source = iota // nobody gave a value
	FromDomain                // the domain's XML
	FromSpec                  // the VMI's spec
	FromPod                   // the pod interface cache
	FromAgent                 // the guest agent
	FromMultus                // network-status
	FromBefore                // the previous status
	FromSources               // made of which sources gave values
)

// Kind of a status entry: what made it.
type Kind uint8

// Kinds.
const (
	NICEntry      Kind = iota // an <interface> of the domain
	SRIOVEntry                // a <hostdev> of the domain
	StaleEntry                // of the domain as the previous status has it; the domain is unreadable
	RestoredEntry             // the primary network while the domain does not show it
	MultusEntry               // a network that only Multus reports
	GuestEntry                // an interface that only the guest reports
	KeptEntry                 // of the previous status, as it is; there is no domain
	NumKinds                  // how many there are
)

// Rule is why a source's value was used, or not.
type Rule uint8

// Rules.
const (
	NoRule           Rule = iota
	FirstSource           // the first source of the table that has a value
	PodWins               // family-merge: pod and guest have addresses of the family
	GuestFills            // family-merge: only the guest has addresses of the family
	GuestClears           // family-merge: the guest reports none of the family
	PodAlone              // no guest record matches
	PodIsAuthority        // pod-authoritative: the pod has an address
	GuestAlone            // the pod has no address
	GuestNotAsked         // pod-authoritative: the guest gives no address of this interface
	LinkLocalDropped      // a link-local address means nothing behind masquerade
	NotAnAddress          // unparsable, loopback, unspecified or multicast
	LaterRecord           // a later record of the same MAC never renames
	KeptStale             // the source is unreadable or away: the last good value
	OverLimit             // a limit left it out
	MadeOfSources         // lists the sources that gave values
	NoDomain              // there is no domain: the status stays as it is
)

// sources are asked one after the other; NoSource ends the list.
type sources [3]Source

// table is the precedence: for each kind of entry and field, who is asked. The merge takes every
// value by it. For addresses it says who is asked at all; which of two sources that both have
// some wins is the policy's rule.
type table [NumKinds][NumFields]sources

// precedence is the table of a policy, for interfaces with masquerade binding or for all others.
// The document's table is generated from it (see Precedence).
func precedence(policy Policy, masquerade bool) table {
	made := sources{FromSources}
	before := sources{FromBefore}
	addresses := sources{FromPod, FromAgent}
	if policy == PodAuthoritative && masquerade {
		addresses = sources{FromPod} // what a guest has behind masquerade nobody else can reach
	}
	return table{
		NICEntry: {
			Name: {FromDomain}, MAC: {FromDomain}, Addresses: addresses, PodInterfaceName: before,
			InterfaceName: {FromAgent}, InfoSource: made, QueueCount: {FromDomain}, LinkState: {FromDomain},
		},
		SRIOVEntry: {
			Name: {FromDomain}, MAC: {FromSpec}, Addresses: addresses, PodInterfaceName: before,
			InterfaceName: {FromAgent}, InfoSource: made,
		},
		StaleEntry: {
			Name: before, MAC: before, Addresses: addresses, PodInterfaceName: before,
			InterfaceName: {FromAgent}, InfoSource: made, QueueCount: before, LinkState: before,
		},
		RestoredEntry: {
			Name: {FromSpec}, MAC: before, Addresses: addresses, PodInterfaceName: before,
			InterfaceName: {FromAgent}, InfoSource: made,
		},
		MultusEntry: {Name: {FromSpec}, PodInterfaceName: before, InfoSource: made},
		GuestEntry:  {MAC: {FromAgent}, Addresses: {FromAgent}, InterfaceName: {FromAgent}, InfoSource: made},
		KeptEntry: {
			Name: before, MAC: before, Addresses: before, PodInterfaceName: before,
			InterfaceName: before, InfoSource: before, QueueCount: before, LinkState: before,
		},
	}
}
