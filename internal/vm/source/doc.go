// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source reads what libvirt and a guest's agent say of one virtual machine, over libvirt's
// socket, and keeps it current: the socket of a launcher's pod, found through the pod's processes,
// or one of this machine.
//
// Invariants: what answers is not trusted. The way to a pod's socket is resolved inside the pod's
// root, so that links lead nowhere else, and who listens there must be a process of the same pod;
// every packet is bounded and its shape is checked before it is decoded, and a packet that was not
// asked for ends the connection; an agent's answer that is too large is an error instead. Every question has a time limit, at whose end the connection is
// given up; each machine has a connection of its own, so that one that does not answer delays
// nobody. What could not be read is said with its reason beside what was last read well, which is
// marked as old. Events only say that it is time to look: after a reconnect everything is read
// anew.
//
// Ages: while the machine is paused or suspended the guest's data is kept and marked; when its
// agent or libvirt has been away for the time of grace, it is dropped, and only the agent's next
// answer counts. The guest is asked often while it has no address, and seldom afterwards.
//
// It must not know Kubernetes' API, the merge or who reads the result.
//
// Implements: architecture 3 (internal/vm/source); spec/vmi-status.md 1.5, 1.7 and 5.
package source
