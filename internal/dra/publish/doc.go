// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package publish tells the cluster which devices this node has: it turns the tables and the pools
// of the configuration into ResourceSlices (Build, a pure function), and hands them on whenever
// they differ from what was handed on last (Publisher).
//
// Invariants: what Build gives passes the API server's validation; a device or pool that could
// not is left out, alone, and the reason is told; every pool with a filter has at least one slice,
// an empty one when it has no devices. Attributes are computed anew each time. Nothing is handed
// on before the tables are initialized, since devices that are merely not known yet would be
// withdrawn, nor when nothing changed.
//
// A slice's pool is <node>/<pool>; all else that is said (the attribute, logs, reports) has the
// name that the user wrote.
//
// It must not know what a device is, which one a filter matches, nor how slices reach the API
// server.
//
// Implements: architecture 4.5; spec/dra.md decisions 2 and 11, 1.4, 1.7, 3.2, 3.3 and I9.
package publish
