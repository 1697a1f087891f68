// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v2alpha1 owns the API of the network driver in cilium.io/v2alpha1: the configuration of
// a node (CiliumNetworkDriverNodeConfig) and of many (CiliumNetworkDriverClusterConfig), and the
// parameters that a claim gives a device (DeviceConfig). Names, defaults and meaning are those
// that clusters have already.
//
// Invariants: SetDefaults is idempotent; Validate finds every fault at once and names its field;
// what Validate accepts never breaks a limit of the Kubernetes API later on.
//
// It must not know who reads these types: no client, no kernel, no clock.
//
// Implements: spec/dra.md 1.1, 1.2, 1.5, 3.3 and 3.4; architecture 4.5.
//
// +groupName=cilium.io
// +kubebuilder:object:generate=true
package v2alpha1
