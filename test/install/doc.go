// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install holds what people install against what it is made of: the Helm chart against the
// kustomizations of deploy/, by Helm's and kustomize's own libraries, and the alerts and the dashboard
// against Prometheus' parser and docs/metrics.md.
//
// It is a module of its own, so that none of these libraries is in what Weft is built from, and tests
// alone. It must not know what the objects do: deploy/ has tests of that. Implements: architecture 5.
package install
