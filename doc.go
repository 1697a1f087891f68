// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package weft is the root of the module. It owns no code, only the tests that hold
// for the whole tree: which package may import which, what a binary may link, that
// every package says what it owns, that generated files are fresh.
//
// It must never be imported. Implements: architecture 3 (the house).
package weft
