// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assign decides which cluster configuration governs which node, and which of them are in
// conflict.
//
// The older configuration goes first, then the one whose name does. A configuration that selects
// a node which an earlier one governs is conflicting as a whole: it governs none of its nodes, so
// later ones may have them. Nodes that it governed before are frozen: their node configuration
// stays as it is until another configuration takes them or it selects them no more.
// A configuration whose selector cannot be read counts as selecting the nodes that it governed, and
// one whose spec is invalid governs what it selects; both change nothing on any node.
//
// Invariants: the answers depend on what the table was told last about each object, never on the
// order in which it was told; a node has at most one governor; a change of one node costs what its
// configurations cost, not what the cluster costs.
//
// It must not know clients, clocks, or what a spec says. A Table is for one goroutine.
//
// Implements: spec/dra.md decision 7, sections 1.2 and 1.9; architecture 3 (pure part of operator).
package assign
