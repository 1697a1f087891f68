// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// Interface is one entry of status.interfaces.
type Interface = v1.VirtualMachineInstanceNetworkInterface

// Policy says who wins when the pod and the guest know different addresses.
type Policy string

// Policies.
const (
	// FamilyMerge decides for IPv4 and IPv6 alone: the pod's addresses win where the guest has
	// some as well, the guest's are used where the pod has none, and a family that the guest
	// reports none of is cleared. It is the default. A guest can so choose addresses of the
	// status, and what dials them can be led astray (CVE-2026-13318).
	FamilyMerge Policy = "family-merge"
	// PodAuthoritative uses the pod's addresses, in the pod's order, where there are any: the
	// guest then only gives names. For a masquerade interface the guest never gives an address.
	PodAuthoritative Policy = "pod-authoritative"
)

// Input is everything that a merge looks at. None of it is changed.
type Input struct {
	// Interfaces and Networks are spec.domain.devices.interfaces and spec.networks.
	Interfaces []v1.Interface
	Networks   []v1.Network
	// Previous is the status as it is.
	Previous []Interface
	// Domain as it is now; nil leaves the status as it is.
	Domain *Domain
	// PodCache is what was read of the pod, by the network's name; no key: there is no file.
	PodCache map[string]PodRead
	// Multus says which networks carry multus-status; nil: those that carry it already.
	Multus *MultusReport
	// Policy is FamilyMerge where it is empty.
	Policy Policy
	// Explain asks for the rejected values as well; origins are always there.
	Explain bool
}

// PodRead is what reading one network's file in the pod interface cache gave.
type PodRead struct {
	// PodIP is the preferred address; PodIPs are all of them, in the pod's order.
	PodIP  string   `json:"podIP,omitempty"`
	PodIPs []string `json:"podIPs,omitempty"`
	// Err says why the file is there and cannot be read. The addresses of the previous status
	// are then kept and marked as stale.
	Err error `json:"-"`
}

// hasAddress says whether it gives an address that an entry can have.
func (r *PodRead) hasAddress() bool {
	usable := func(s string) bool { _, ok := parseIP(s); return ok }
	return usable(r.PodIP) || slices.ContainsFunc(r.PodIPs, usable)
}

// MultusReport says which networks the launcher pod's network-status lists.
type MultusReport struct {
	// Names of networks in the VMI's spec.
	Names []string
	// Err says why the annotation cannot be read; what the previous status says is then kept.
	Err error
}

// Result is a merged status.
type Result struct {
	// Interfaces are status.interfaces: the primary network, the domain's other interfaces in
	// the order of the spec, its SR-IOV devices, what only Multus knows in the order of the
	// spec, what only the guest knows.
	Interfaces []Interface
	// Warnings in a fixed order.
	Warnings []Warning
	// Explain has an explanation for each of Interfaces.
	Explain []Explanation
}

// Warning is something about a machine's interfaces that a person should know.
type Warning struct {
	Code Code `json:"code"`
	// Interface is the entry's name; "" for one of the whole machine or of the guest alone.
	Interface string `json:"interface,omitempty"`
	// Text says what is wrong, without the code.
	Text string `json:"text"`
}

// String is the warning on one line.
func (w Warning) String() string { return string(w.Code) + ": " + w.Text }

// Code is the stable name of a kind of warning.
type Code string

// Codes of warnings.
const (
	// SourceUnreadable: a source is there and cannot be read; its last good values are kept.
	SourceUnreadable Code = "source-unreadable"
	// DeviceSkipped: an element of the domain could not be used.
	DeviceSkipped Code = "device-skipped"
	// SharedMAC: interfaces of the domain have one MAC, so the guest's records cannot be told apart.
	SharedMAC Code = "shared-mac"
	// UnmatchedNIC: the guest reports interfaces, and none with the MAC of this one.
	UnmatchedNIC Code = "unmatched-nic"
	// StaleAgent: what the guest agent reported is old, or was dropped because it is away.
	StaleAgent Code = "stale-agent"
	// AddressConflict: the guest has addresses of a family, and none of them is the pod's.
	AddressConflict Code = "address-conflict"
	// NoGuestAddress: the pod has an address and the guest has none.
	NoGuestAddress Code = "guest-without-address"
	// GuestOnlyLimit: interfaces that only the guest knows were left out.
	GuestOnlyLimit Code = "guest-only-limit"
	// AddressLimit: addresses of an interface were left out.
	AddressLimit Code = "address-limit"
	// NameLimit: a name or MAC was cut.
	NameLimit Code = "name-limit"
	// SizeLimit: the status would have been too large.
	SizeLimit Code = "size-limit"
)

// Limits of a status. Interfaces of the spec are never left out.
const (
	MaxGuestOnly = 10       // entries that only the guest knows
	MaxAddresses = 32       // addresses of an entry
	MaxName      = 63       // bytes of a name or MAC that does not come from the spec
	MaxStatus    = 32 << 10 // bytes of the status as JSON
)

// Explanation says where an entry's values come from.
type Explanation struct {
	// Kind of the entry.
	Kind Kind
	// Fields has the origin of each field; that of Addresses is the one of the first address.
	Fields [NumFields]Origin
	// Addresses has the origin of each address.
	Addresses []Origin
	// Rejected are values that were known and not used.
	Rejected []Rejection
}

// Origin is the source of a value and the rule that chose it.
type Origin struct {
	Source Source
	Rule   Rule
}

// Rejection is a value that a source gave and the rule that kept it out.
type Rejection struct {
	Field Field
	Value string
	Origin
}
