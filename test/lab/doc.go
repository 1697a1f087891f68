// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab starts real Kubernetes clusters for tests, on one machine, out of Go modules.
//
// A control plane alone (etcd and kube-apiserver) is there in seconds and needs no privileges;
// with nodes, which need root, it is a cluster whose pods are run by kubelet, containerd and
// runc. Every part lives in a box (package box): namespaces that end with the process that
// made them. The machine's own network is not touched: a lab has one of its own, and one port
// of the machine's loopback address leads into it. What a lab writes is in memory or below
// <repository>/.cache/lab, but for its nodes' cgroups; those, and whatever else a killed lab
// left, the next one removes.
//
// Implements: architecture 5 (what runs where). It knows nothing of Weft but how it is installed.
package lab
