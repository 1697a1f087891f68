// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package device is the vocabulary of the network driver: what a device is, what a device manager
// does, and the row that says which device was prepared for which claim.
//
// Invariants: a Device is a value that nobody changes after it was published; inventory (what a
// manager sees now) and allocations (what was prepared) have separate lifetimes, and nothing of an
// allocation is kept in a Device; ShareID is part of every key, and empty for devices that are
// not shared.
//
// It must not know any kind of device: a new manager is one new room and one line in the agent.
//
// Implements: architecture 4.5; spec/dra.md 1.4, 1.8 and 2.4.
package device
