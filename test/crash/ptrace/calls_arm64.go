// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package ptrace

// older are the calls that this architecture was spared: none.
func older() map[uint64]call { return nil }
