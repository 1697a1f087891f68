// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller keeps the nodes' configurations of the network driver as the cluster
// configurations say: it follows nodes and both kinds of configurations, asks internal/operator/assign
// who governs which node and internal/operator/own what is to be done about it, does that, and
// writes what became of each cluster configuration into its status.
//
// It needs: list and watch on nodes, and on ciliumnodes (cilium.io); list, watch, create, patch,
// update and delete on ciliumnetworkdrivernodeconfigs, list and watch on
// ciliumnetworkdriverclusterconfigs and update on its status (cilium.io); create and patch on events
// (events.k8s.io).
//
// Invariants: nothing is decided before the nodes and all configurations are known, nor written by
// anybody but the leader; an object is only changed or deleted as the version that was looked at, so
// that nothing that somebody else wrote meanwhile is lost; a change costs what it affects; what is as
// it should be costs no request; what fails is tried again, ever more slowly, and holds up nothing
// else; nodes are CiliumNodes where there are any, else core Nodes, and which of them is asked again
// all the time.
//
// It does not judge a spec: that is api/v2alpha1. It must not know who elects the leader.
//
// Implements: spec/dra.md decision 7, 1.2 and 1.9; architecture 4.5.
package controller
