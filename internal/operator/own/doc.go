// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package own says what is to be done about one node's configuration: nothing, write it, put a
// hand-written one back, or delete it. It also owns the marks that tell whose an object is.
//
// Invariants: an object without the mark was written by somebody else; it is never deleted, and its
// spec is kept in the object before it is replaced, until it is put back, and fields that only newer
// versions know stay where they are. What is frozen is not
// touched. An object that is as it should be needs no step.
//
// It must not know clients or clocks, nor how a configuration comes to govern a node.
//
// Implements: spec/dra.md decision 7 and section 1.9; cases T-60 to T-64; architecture 3 (pure part
// of operator).
package own
