// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claims is what the network driver asks of the cluster about ResourceClaims: one claim,
// one write of a claim's status, the claims of the node's pods, the devices that claims have under
// another driver's pools; and events on claims and pods.
//
// It needs: get and list on resourceclaims, update on resourceclaims/status (and since Kubernetes
// 1.36 associated-node:update on resourceclaims/driver), list on pods, create on events.
//
// Invariants: no claim of another node is kept; a write of a status is of the whole object as it was
// read, so that nobody's change is lost, and is tried again with a fresh one until ctx ends when
// another writer was quicker or the server may mend; every error names the request and the claim,
// and keeps the server's answer.
//
// It must not know what a claim's status says, nor what is prepared.
//
// Implements: architecture 4.5; spec/dra.md decision 2, sections 1.6 and 3.3.
package claims
