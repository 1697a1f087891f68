// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package record is what the network driver writes into the journal: the intent to prepare a
// claim's devices (<stateDir>/devices/<claimUID>.jsonl), and the intent to move devices into a
// sandbox (<stateDir>/handovers/<sandboxID>.jsonl).
//
// Two kinds of record, because they have two locks: no hook of a sandbox waits for a claim that is
// being prepared.
//
// Invariants: a body holds everything that is needed to undo it, without any API; fields are only
// added, and recorded samples stay readable.
//
// It must not know what a device is, nor how it is prepared or moved.
//
// Implements: architecture 4.3; spec/dra.md decision 4, I3 and I8.
package record
