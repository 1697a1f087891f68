// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelet keeps the driver registered with the node's kubelet, and publishes its
// ResourceSlices for as long as it is.
//
// It owns <kubeletDir>/plugins_registry/<driver>-reg.sock and <kubeletDir>/plugins/<driver>. What an
// earlier process left there is replaced. Sockets that somebody takes away are made anew.
//
// Invariants: it is tried as often and as fast as the configuration says, and then slowly, for ever;
// nothing is published before the kubelet knows the driver, so that no device is allocated that
// could not be prepared; what was published last is published again after every registration,
// since a kubelet deletes its node's slices when it starts.
//
// It must not know what a device is, nor how claims are prepared.
//
// Implements: spec/dra.md decisions 3 and 13, sections 3.1 and 3.5, cases T-58; architecture 4.5.
package kubelet
