// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rest is a small client of the Kubernetes API, for programs that start for one
// pod and end with it: a handful of requests, on the standard library alone.
//
// Invariants: what a kubeconfig asks for and this client cannot do is refused by its
// name, never passed over; a request ends with its context, however the server behaves;
// a server that says "later" (429, 5xx, a broken connection) is asked again, spaced, and
// not before the time that it names; no answer beyond maxBody is read; a redirect is
// never followed, since the credentials are meant for one server; every error names
// the request, the object and the server's answer, and holds no credential.
//
// It decides nothing about what an answer means for a pod, and caches nothing.
//
// Implements: architecture 2 (the kubeconfig of weft-planner); spec/cni.md 1.17.
package rest
