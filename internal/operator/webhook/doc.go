// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webhook judges objects before they are written that Weft reads later, with the very
// library that the agent and weft lint have, and keeps the certificate that the API server needs to
// ask it.
//
// It needs: create on secrets, and get and update on that of the certificate; get and update on the
// ValidatingWebhookConfiguration (admissionregistration.k8s.io).
//
// Invariants: an object is only refused for what was changed: one that was bad before can have its
// labels changed, its finalizers taken away, and be deleted; a refusal names the field and what is
// wrong with it; nothing is changed and nothing is remembered, so a dry run is like any other; the
// API server is told of a new authority before the first replica uses it; a private key leaves the
// process for the Secret alone.
//
// It must not know what other objects a new one meets: a pod may name a network that comes later.
//
// Implements: spec/dra.md 1.2 and 1.9; spec/cni.md rules 1 to 3; architecture 2 (weft-operator).
package webhook
