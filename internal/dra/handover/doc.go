// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover moves a pod's prepared devices into its sandbox, and brings them home again.
//
// It owns <stateDir>/handovers: one record a sandbox, whose intent is on the disk before the first
// link moves. Attach has two callers, the CNI plugin's ADD and the runtime's hook of a new sandbox,
// and the second finds it done. Detach, Return and the sweep bring links home: of those callers any
// may never come, so each finishes what the others left.
//
// Invariants: all links of a pod are in its sandbox, or none is; a link is found by what it is, in
// the namespace of the record (path and inode) or in the host's, never by its name, so that a late
// call about one sandbox cannot touch another's; what a link was is in the record and is given back;
// one link that cannot be brought home keeps its record and stops no other one. No lock is shared
// with who prepares claims, no API is asked, and nothing pins a namespace.
//
// Crash windows: before the intent nothing moved; between intent and the last phase the next call
// for that sandbox, or Recover, undoes what was attempted, since a link that did not move is home
// already; after the last phase the hand-over stands until somebody ends it. A broken record is written
// anew out of what could be read of it, in the step that puts it into quarantine; of one of which nothing can
// be, the next Attach writes down what it finds in the sandbox.
//
// It must not know annotations, claims' parameters beyond the name in the pod, nor what a device is.
//
// Implements: architecture 4.2 (handover) and 4.5; spec/dra.md decisions 6 and 9, 2.4, 2.5, I4, I6
// to I8, T-40 to T-49.
package handover
