// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config owns the agent's configuration: a YAML file, and the few flags and
// variables that come before it.
//
// Invariants: every fault is found at once, each named with its key and with the line or
// flag that it stands in; a key that nobody knows is a fault, not a wish; reading touches
// nothing but the file itself, so that a wrong configuration leaves the node as it was.
// Defaults stand in one table, which is also what docs/configuration.md is made of.
//
// It must not know what the keys are for: the parts of the agent take their values from
// internal/agent. Of the CNI keys for the published configuration it knows what netconf
// says of them.
//
// Implements: architecture 4.4.
package config
