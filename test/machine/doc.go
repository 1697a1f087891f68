// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine holds the tests of the CNI part that need the emulated machine (test/lab/vm): the
// real weft-cni with the real CNI plugins on links that the ordinary test kernel lacks, on virtual
// functions of a real NIC, and across a reboot.
//
// It owns the node that they play (a directory with manifests, records and IPAM's files, and the
// calls of a runtime), and the machine's two cards while they run. What they leave on the machine's
// disk is for TestReboot alone, which is one test in two halves: the first one ends with pods that
// nobody deletes, the second one runs in the next boot of the same disk.
//
// Nothing here skips in the machine: a kernel without a kind of link fails.
//
// It must not know how the hands are built: it sees processes, files, links and packets. What it
// reads of a record it reads as weft sandbox does.
//
// Implements: architecture 4.1, 4.3 and 5 (SR-IOV); CNI SPEC sections 2 and 3.
package machine
