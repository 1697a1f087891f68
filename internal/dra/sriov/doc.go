// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sriov is the device manager of SR-IOV virtual functions: it finds them, makes them where
// the configuration asks for some, puts one into its VLAN for a claim, and gives everything back.
//
// It owns: the number of VFs of the physical functions that the configuration names, and
// <stateDir>/pfs, which says for which of them Weft made the VFs.
//
// Invariants: a VF is found by sysfs alone (physfn, virtfnN) and is its PCI address, whatever its
// link is called and wherever it is; the PF is resolved by its PCI address each time that something
// is asked of it. A problem of one PF is reported and ends nothing for the others. VFs that Weft did
// not make are never destroyed, and those that it made only while nobody uses them; that Weft makes
// them is on the disk before it does. Setup changes the VLAN and its priority only, Inspect's answer
// is what Free puts back.
//
// No lock is held while the kernel works: a PF whose VFs are being changed refuses new claims.
//
// It must not know claims, pods, sandboxes or the API server.
//
// Implements: architecture 4.5; spec/dra.md section 2, decisions 3, 6, 10 and 11, I5, I6 and I8.
package sriov
