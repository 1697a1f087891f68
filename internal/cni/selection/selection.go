// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package selection owns the grammar of the annotations that ask for networks:
// the comma-separated short form and the JSON form of the NPWG specification.
//
// Invariants: any text gives elements or faults, all of them and each with the
// index of its element and the field; names are held to the same rules in both
// forms; nothing that passes here fails later because of its spelling.
//
// It must not know pods, NADs or what an element leads to.
//
// Implements: spec/cni.md rules 2 and 3, sections 1.6 and 1.7; NPWG
// multi-net-spec v1.3 section 4.1.
package selection

import (
	"encoding/json"
	"net/netip"
)

// MaxElements bounds one annotation (architecture 4.1).
const MaxElements = 256

// Element is one asked-for network. Absent fields are zero.
type Element struct {
	// Index is the element's place in the annotation, from 0.
	Index int
	// Namespace is "" when the annotation leaves it to the reader.
	Namespace string
	Name      string
	// Broken says that the element's names cannot be used; only Lenient gives such ones.
	Broken bool
	// SplitName says that Namespace came from a "namespace/name" inside the JSON key
	// name, which the NPWG specification does not allow.
	SplitName bool
	// Interface is the interface name asked for (also by the legacy interfaceRequest).
	Interface string
	// IPs are addresses, with or without a prefix length, as written.
	IPs []string
	// MAC is a unicast Ethernet address of 6 bytes, as written.
	MAC string
	// InfinibandGUID is 8 bytes, as written.
	InfinibandGUID string
	PortMappings   []PortMapping
	Bandwidth      *Bandwidth
	DeviceID       string
	// CNIArgs is a JSON object, byte for byte.
	CNIArgs json.RawMessage
	// DefaultRoute are gateways; nil when the key is absent, empty but not nil for [].
	DefaultRoute []netip.Addr
	// IPAMClaimReference names an IPAMClaim; Weft knows the key and does nothing with it.
	IPAMClaimReference string
}

// PortMapping is one port of the host that leads to one of the pod. Its JSON form is
// that of the portMappings capability.
type PortMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp or sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// Bandwidth limits an attachment: rates in bits a second, bursts in bits. Its JSON
// form is that of the bandwidth capability.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}
