// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan turns what a pod asks for into a Plan: every attachment of its
// sandbox, in order, with final name, raw configuration, arguments, device and
// gateways.
//
// Invariants: a Plan is complete and right before the first plugin runs, or there
// is none, and then every fault is told with its place; the same Input gives the
// same Plan; nothing is read but the Input. What Make lacks it asks for, as
// much at once as it can see. Names, isolation, capabilities and devices go by the
// same rules for every attachment, the default network included.
//
// It must not know the kernel, files, clocks, Kubernetes clients or how a plugin
// is run.
//
// Implements: spec/cni.md rules 1-3, 7, 9 and 10 as far as planning goes, sections
// 1.2 and 1.5 to 1.9; NPWG multi-net-spec v1.3.
package plan
