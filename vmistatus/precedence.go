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
	FirstOfEqualMACs      // of several equal MACs the first interface has the guest's records
)
