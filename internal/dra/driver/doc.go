// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package driver owns the life of the network driver on a node: the order in which it starts, the
// configuration that is in force, and what the configuration's status says of all that.
//
// Order of the start: what was prepared before is recovered; the managers report their devices;
// only then the driver is registered with the kubelet, and devices are offered.
//
// Invariants: an invalid configuration never replaces the last good one, which is kept in
// <stateDir>/networkdriver.json, so that it is in force after a restart as well; a change of the
// configuration changes no allocation; without a configuration nothing is offered, and what was
// prepared can still be given back; nothing that the API server or the kubelet does ends Run; what
// is published and is not there some seconds later is in the status.
//
// It must not know what a device is, how claims are prepared, nor how objects are watched.
//
// Implements: architecture 4.5; spec/dra.md decisions 3 and 4, section 1.9, I10.
package driver
