// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install puts weft-cni on a node and takes Weft off it again.
//
// It owns <binDir>/weft-cni, and at the end of its life the published conf
// (internal/cni/confpub owns it until then) and the state directory.
//
// Install copies weft-cni beside the one that may be running and renames it over that: a
// call under way keeps the old one, the next gets the new one, none sees half of one.
//
// Uninstall works in an order in which a kill at any point leaves a node that works, and
// that a second Uninstall finishes:
//
//  1. Options that name other places than the published conf are refused: what is there would be
//     passed over. An agent that runs would publish the conf again: it is refused.
//  2. Records that are left are refused, with nothing touched: once the conf is away the
//     runtime deletes those pods by the pod network's own conf, and what Weft attached
//     besides stays behind for ever. With Force they are undone, in step 4.
//  3. The conf is moved aside, under a name that the runtime does not read, which falls
//     back to the pod network's own. It comes first because while it is there new pods
//     make new records, with or without an agent, and undoing would never end.
//  4. Each record is undone by weft-cni's DEL. Not by GC with an empty list: that would
//     have every network release what no record names, and the pods that the runtime
//     attached without Weft, before it came or since step 3, would lose their addresses.
//  5. When records are left, those of an ADD that began before step 3 among them, the conf
//     is put back, the fault is told, and the node is as it was.
//  6. The conf goes, then weft-cni (nothing calls it any more), then the state directory,
//     except for what is not Weft's and for the quarantine, which is evidence.
//
// With Force the pods that run lose what Weft attached to them, their pod network
// included, and what plugins keep on the disk is changed: it must run where the runtime
// runs plugins, in the host's mount and network namespaces, and not in a container that
// sees binDir and stateDir only.
//
// It must not know Kubernetes, nor how a record is undone (internal/cni/attach does).
//
// Implements: spec/cni.md rule 11; architecture 4.3, 4.4.
package install
