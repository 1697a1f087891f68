// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nri is the runtime's side of the hand-over: a plugin of the Node Resource Interface (NRI)
// whose hooks call it.
//
// Invariants: a hook answers before the runtime's limit of 2 s, whatever the kernel does, since a
// plugin that is late is dropped and the pod starts without its device; what a hook began and was
// too late for is undone; hooks ask no API. A runtime that goes away is dialled again, for ever.
// When it is back, running sandboxes get what they lack, and a pod that runs without its device is
// told of; nothing is taken from a sandbox because the runtime does not name it. One that ends while the
// list is gone through is given nothing, and a pod that has ended is not told of.
//
// It must not know what a device is, nor how links move.
//
// Implements: spec/dra.md decisions 5, 9 and 10, 2.5 and 3.6, T-40 to T-43, T-49 to T-52.
package nri
