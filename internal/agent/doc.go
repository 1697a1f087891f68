// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agent wires the node's agent out of its rooms: it makes them, connects them,
// runs them and ends them in order. It also fills what the debug socket shows.
//
// Order of the start: the configuration; then, side by side, the caches of the cluster,
// the view of the records, the planner's socket, which answers what it can, the reconciler
// and the publisher; the publisher is let off once readiness says that the runtime can be
// pointed at Weft. Order of the end: readiness at once; then what takes work in (planner
// socket, publisher), while what it has begun is finished by the rest; then the rest.
//
// Invariants: New touches nothing, so that a wrong configuration leaves the node as it was;
// a component that fails ends the process, which the DaemonSet starts anew, and nothing
// that an API server does makes one fail; the published configuration and the records
// outlive the process. Of the network driver nothing ends the agent, nor disturbs pods
// without claims: what of it fails is told and tried again.
//
// It must not hold logic: what is to be decided is decided in the rooms.
//
// Implements: architecture 3 (wiring of the node agent) and 4.4.
package agent
