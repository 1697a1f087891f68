// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package state owns the two tables of the network driver: networkdriver-dra-devices, what each
// device manager sees now, and networkdriver-dra-allocations, what was prepared for which claim
// and pod. Both are in memory; the journal is what outlives the agent.
//
// Writers: of the inventory each manager's own function of OnDevices, of the allocations the room
// that prepares claims (Put, Remove). An inventory row holds what its manager reported, merged
// with what was prepared of that device, whichever of the two came first or changed last.
//
// Invariants: a row is never changed, only replaced, and only by one that differs; rows come in
// the order of their keys; one manager's inventory never touches another's, and no inventory
// touches an allocation. Changed's channel is closed after the change can be read.
//
// The tables need no background work: nobody tracks deletions, so the database is never started.
//
// It must not know what a device is, why it was prepared, nor how any of it is published.
//
// Implements: architecture 4.5; spec/dra.md 1.8.
package state
