// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inspect is what the command line shows: plans explained, manifests and
// configurations linted, what an API server knows about networks.
//
// Invariants: it decides nothing about networks itself. What it shows was decided by
// plan, netconf, selection and manifests, the packages that decide on a node, too; it
// adds where in the files the reason stands. What cannot be seen from where it runs
// (another node's files, which devices a pod gets) is said, and is no fault. The same files
// give the same text, and no list of a JSON form is ever null.
//
// It writes nothing but what it is asked to show, and reads neither the environment nor
// the flags.
//
// Implements: architecture 4.6; spec/cni.md rules 1-3 (shown before anything runs).
package inspect
