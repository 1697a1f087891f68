// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim is the kubelet's side of the network driver: it prepares the devices of a claim
// before its pod starts, and frees them after it ended.
//
// It owns <stateDir>/devices, one record a claim, the allocation rows, and our entries of a
// claim's status.devices. The record's lock is the claim's. A device is booked in memory from the
// checks until its row is there, so that two claims never get one device. Neither a lock nor the
// book is held while the API is asked.
//
// The order of a Prepare, and what a crash after each step leaves:
//
//	all checks, Inspect of all devices   nothing
//	intent on the disk                   undone at the next start; nothing was touched
//	Setup of one device after the other  undone at the next start, in reverse
//	record says prepared                 rows are made from it at the next start
//	rows                                 the same
//	one write of the claim's status      the status is written after the next start, if it is missing
//
// The rows come before the status because it is they that keep a device from others while the API
// is asked, without a lock.
//
// A status that cannot be written (API server away, permission missing) fails no Prepare: the
// record is the truth, and the status is its second copy, which pods need for nothing. It has
// statusTime within the call; then an event says why, and it is tried until it is there. So the
// kubelet has its answer well before it gives up, and nothing is undone.
//
// An Unprepare has the claim refused to pods, the links brought home, frees in reverse, and then forgets
// rows and record. What could not be freed keeps its row and its record, and is tried again in the background and at each
// further call. The status entry is left: the API server drops it with the allocation.
//
// At start: the records (those of an earlier boot are set up anew, since the kubelet believes them
// prepared, and nothing in the kernel outlived the boot), then the claims of this node's pods whose
// status says that they are prepared and that have no record, as another driver leaves them. Claims
// that are gone, with their pods, are freed.
//
// Invariants: I1, I2, I3, I5 and I8 of spec/dra.md 3.7; every fault names the claim, the request or
// device, the field and its value; a claim that is prepared keeps its configuration.
//
// It must not know any kind of device, nor how a link is moved.
//
// Implements: architecture 4.5; spec/dra.md decisions 2, 4 and 6, sections 1.5, 1.6, 3.1, 3.4, 3.5.
package claim
