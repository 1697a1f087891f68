// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netconf owns CNI configuration: Weft's own (Conf, with every Multus
// key and Weft's) and that of the networks it delegates to (Network, whichever
// of the two forms it was written in).
//
// Invariants: any bytes give a value or faults of code 7 that name the key; a
// delegate's configuration is never decoded and written again, so that numbers,
// key order and keys that nobody here knows reach the plugin as they were
// written (Object); a plugin type is a bare file name and a network name is a
// safe one, because both become paths in the hands of others.
//
// It must not know files, Kubernetes or how a plugin is run.
//
// Implements: spec/cni.md rules 1 and 2, sections 1.2 and 1.8; architecture 4.1;
// CNI SPEC 1.1 section 1.
package netconf
