// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmistatus computes status.interfaces of a VirtualMachineInstance from what is known of
// its network interfaces: the libvirt domain, the pod's interface cache, the guest agent, Multus'
// network-status and the previous status.
//
// It owns the merge and its precedence table. [Merge] is pure: it mutates no input, shares no
// memory that could be written with its output and gives the same result whatever the order of
// maps, of domain interfaces, of guest records and of equal records. [NetStat] is the same with a
// cache of what was read of the pod, for a virt-handler; [UpdateFromPod] is virt-controller's part.
//
// Invariants, for any input: ipAddress is ipAddresses[0]; addresses are parsed, canonical and
// unique, without zone and prefix, and never loopback; the primary network is at index 0; an
// empty or all-zero MAC matches nothing; a second merge of the result changes nothing; entries,
// addresses, names and the whole status are bounded (see Limits). Every value can name its source
// and the rule that chose it.
//
// What the guest says is not trusted: see [Policy]. It must not know files, sockets, clusters or
// the time; package podcache reads the files, and who calls ages what is old ([AgentSilent]).
//
// Implements: architecture 3, 4.7; spec/vmi-status.md rules 1 to 8, 1.4, 1.8, 1.9.
package vmistatus
