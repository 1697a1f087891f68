// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig follows the one CiliumNetworkDriverNodeConfig that has this node's name, and
// writes the conditions of its status.
//
// It needs: list and watch on ciliumnetworkdrivernodeconfigs, get on it for definitions without
// status, patch on ciliumnetworkdrivernodeconfigs/status (cilium.io), and create on events.
//
// Invariants: no other node's configuration is asked for; while the API server cannot be asked,
// what was known last counts, and that there is none is believed only when the API server says so,
// of a resource that it does not serve: twice; a status is never written to an object that has
// taken the place of the one that it is about, and not when it says so already; a definition that
// cannot hold conditions, such as an older one that the cluster keeps, has them told as events
// instead; nothing that an API server does, or its absence, ends Run.
//
// It does not judge a configuration: that is api/v2alpha1, and what a condition says is the
// driver's to know.
//
// Implements: architecture 4.4 and 4.5; spec/dra.md 1.1 and decisions 3 and 12.
package nodeconfig
