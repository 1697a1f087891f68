// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmi holds the tests of what Weft reports of virtual machines, on a real libvirt with a
// real guest and its agent, and on the lab's API server.
//
// Implements: architecture 5 (VM).
package vmi
