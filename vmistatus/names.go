// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

// String is the field's name in the status.
func (f Field) String() string {
	return [NumFields + 1]string{
		"name", "mac", "ipAddresses", "podInterfaceName", "interfaceName", "infoSource", "queueCount", "linkState", "unknown",
	}[min(f, NumFields)]
}

// String is the source's name.
func (s Source) String() string {
	return [...]string{
		"none", "domain", "spec", "pod-cache", "guest-agent", "network-status", "previous-status", "sources", "unknown",
	}[min(s, FromSources+1)]
}

// String says what made the entry.
func (k Kind) String() string {
	return [NumKinds + 1]string{
		"interface", "sr-iov", "stale-interface", "restored-primary", "multus-only", "guest-only", "kept", "unknown",
	}[min(k, NumKinds)]
}

// String is the rule's stable name.
func (r Rule) String() string { return r.words()[0] }

// Meaning says what the rule does.
func (r Rule) Meaning() string { return r.words()[1] }

func (r Rule) words() [2]string {
	return [...][2]string{
		{"no-value", "no source has a value"},
		{"first-source", "the first source of the table that has a value"},
		{"pod-wins-family", "family-merge: pod and guest have addresses of the family, the pod's are used"},
		{"guest-fills-family", "family-merge: only the guest has addresses of the family"},
		{"guest-clears-family", "family-merge: the guest reports the interface and no address of the family"},
		{"pod-alone", "the guest reports nothing of the interface, so the pod's addresses stay, in the pod's order"},
		{"pod-authoritative", "pod-authoritative: the pod has an address, so the guest gives none"},
		{"guest-alone", "pod-authoritative: the pod has no address, so the guest's are used"},
		{"guest-not-asked", "pod-authoritative: masquerade, a pod interface cache that cannot be read, or an interface of the guest alone that is the first entry: the guest gives no address"},
		{"link-local-behind-masquerade", "a link-local address means nothing behind masquerade"},
		{"not-an-address", "it is no address, or loopback, unspecified or multicast"},
		{"later-record", "a later record of the same MAC does not rename the interface"},
		{"kept-stale", "the source is away or cannot be read: its last good value"},
		{"over-limit", "a limit left it out"},
		{"made-of-sources", "lists the sources that gave the entry values"},
		{"no-domain", "there is no domain: the status stays as it is"},
		{"unknown", ""},
	}[min(r, NoDomain+1)]
}

// Codes are all codes of warnings.
func Codes() []Code {
	return []Code{
		SourceUnreadable, DeviceSkipped, SharedMAC, UnmatchedNIC, StaleAgent, AddressConflict, NoGuestAddress,
		GuestOnlyLimit, AddressLimit, NameLimit, SizeLimit,
	}
}

// Meaning says what a warning of the code tells.
func (c Code) Meaning() string {
	switch c {
	case SourceUnreadable:
		return "a source is there and cannot be read, with the reason; its last good values are kept"
	case DeviceSkipped:
		return "an element of the domain could not be used: it has no alias, or its name stands there twice"
	case SharedMAC:
		return "two interfaces of the domain have one MAC, so the guest's records cannot be told apart: the first has them"
	case UnmatchedNIC:
		return "the guest reports interfaces, and none with the MAC of this one: it has no driver, or the MAC was changed in the guest"
	case StaleAgent:
		return "what the guest agent reported is old, or was dropped because the agent is away"
	case AddressConflict:
		return "the guest has addresses of a family and none of them is the pod's (not told of masquerade, where it is so by design)"
	case NoGuestAddress:
		return "the pod has an address and the guest none: DHCP is under way, or failed"
	case GuestOnlyLimit:
		return "the guest reports more interfaces of its own than are listed; those without a global address are left out first"
	case AddressLimit:
		return "an interface has more addresses than are listed"
	case NameLimit:
		return "a name or MAC from the domain or the guest was too long"
	case SizeLimit:
		return "the whole status would have been too large"
	}
	return ""
}
