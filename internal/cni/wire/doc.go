// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire is the planner protocol: what the hands (weft-cni) ask a planner
// (the agent on its unix socket, or weft-planner on stdio) and what it answers.
//
// One message is a frame: four bytes, the length of what follows, big-endian,
// then one JSON object. Messages carry a version and a request ID; this version
// and the one before it are answered. Requests hold everything that the planner
// needs and may not read itself, so a planner keeps nothing between two of them:
// an answer with Need is followed by a new request that brings those files as well.
//
// Invariants: no message beyond MaxMessage is sent or read; a peer that dies,
// dawdles or talks nonsense ends in a *fault.Fault before the deadline of the
// context and never in a hang; a spawned planner does not outlive its Client or
// its context, nor do its children; a recorded message of testdata stays readable.
//
// It knows nothing of Kubernetes, and plans nothing. It imports no net: a stream
// socket takes three system calls, and weft-cni stays small and quick to start.
//
// Implements: architecture 4.2.
package wire
