// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package debug is the agent's debug socket: what the agent knows of its node, for people.
//
// It owns <socketDir>/debug.sock and the JSON that is spoken there (HTTP over a unix
// socket), with both sides: Server, and the Client that weft uses. What is shown comes
// from a View, which the agent fills.
//
//	GET  /v1/node                        NodeAnswer
//	GET  /v1/top                         TopAnswer
//	GET  /v1/pods?namespace=&name=       PodsAnswer ("" = all)
//	GET  /v1/networks?namespace=         NetworksAnswer
//	GET  /v1/statedb                     StateDBAnswer
//	GET  /v1/vmis?namespace=&name=       VMIsAnswer
//	GET  /v1/vmis/record?namespace=&name= RecordAnswer
//	POST /v1/explain {namespace, name}   PlanAnswer
//
// Invariants: only root and the agent's own user are answered, whatever mode the socket
// has; nothing can be changed through it; an answer is at most MaxAnswer bytes, and a list
// that does not fit says how much of it is left out; a slow or silent client holds up
// nobody but itself; fields are added to the JSON, never renamed or removed, and no list
// is null. Configurations of networks are not in it: they may hold secrets.
//
// It must not know where the agent has its truth from (records, caches), nor how it is
// printed (internal/inspect).
//
// Implements: architecture 4.4 (debug.sock) and 4.6 (what weft shows on a node).
package debug
