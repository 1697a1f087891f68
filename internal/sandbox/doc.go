// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox plays the container runtime's part on one machine, with no cluster:
// it takes a directory of Kubernetes YAML, gives every pod a network namespace and runs
// the real weft-cni for it, through libcni, as containerd does.
//
// It owns: the namespaces that all of it happens in, the pretended host inside them, and
// the report of what every pod got.
//
// Invariants:
//   - The machine is not touched. A child process has own network, mount and process
//     namespaces (and an own user namespace when not root); in them the machine's files
//     are read-only, and /run, /var/lib, /var/log and /tmp are empty memory file systems.
//     When that process ends, however it ends, the kernel removes everything.
//   - What is shown is read back: interfaces and addresses by netlink inside the pods'
//     namespaces, networks and times from Weft's own records, reachability with packets.
//   - A pod that fails shows its error and stops no other.
//   - After taking down it is checked that nothing is left, and said.
//
// It must not know how an attachment is planned or made: that is weft-cni's, which is run
// as a runtime would run it.
//
// Implements: architecture 4.6; the calls of a runtime in CNI SPEC sections 2 and 3.
package sandbox
