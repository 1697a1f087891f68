// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kernel is the only room that knows the network of the operating system:
// network namespaces, links, addresses, routes, sockets inside a namespace, and PCI network
// functions with their virtual functions.
//
// Invariants: a namespace is entered on a locked thread only, and only for as long
// as it takes to open sockets there; everything else goes through those sockets, so
// that no caller ever runs in a namespace that is not its own. A dump that the kernel
// reports as interrupted is asked for again, never used. What is set is read back.
//
// A PCI function's link is found by the function's address, never by a name that was kept; a link
// that is moved is there, or where and what it was.
//
// It knows nothing of CNI, of pods or of records.
//
// Implements: spec/cni.md rule 8 and section 1.13 (default routes); spec/dra.md 2.1, 2.3 and 2.4.
package kernel
