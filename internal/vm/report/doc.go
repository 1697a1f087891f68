// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report keeps status.interfaces of a node's VirtualMachineInstances true: it follows those
// of its own node, watches each one's machine (internal/vm/source), merges (vmistatus) and says what
// the status should be, or writes it.
//
// In the mode observe nothing is written: virt-handler owns the field, and what it wrote is compared.
// In the mode publish the agent is the field's writer, where no virt-handler is.
//
// It needs: list and watch on virtualmachineinstances (kubevirt.io), and to publish, patch on them
// and on virtualmachineinstances/status.
//
// Invariants: nothing is written when nothing changed, and never over a value that was not looked
// at: a patch tests the object's UID and the old value; of several machines, one that does not
// answer, cannot be read or cannot be written delays no other; while the API server cannot be asked,
// or does not serve the resource, everything else goes on. Another writer of the field is noticed
// and given way to. What was read of a pod is not believed of the next one.
//
// It must not know how libvirt is asked or how the merge decides.
//
// Implements: architecture 3 (internal/vm/report), 4.4 (vmi); spec/vmi-status.md rules 6 to 8, 5.
package report
