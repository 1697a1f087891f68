// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version says which Weft a program is.
//
// It owns the one word of it, which is set when a release is built (make VERSION=v1.2.3 …); without,
// it is the module's version where Go knows one (go install …@v1.2.3), else "(devel)". The same
// sources and the same word give the same bytes: no time, no state of a checkout.
//
// It must not know who asks.
//
// Implements: architecture 2 (binaries).
package version

import "runtime/debug"

// word is set by the linker: -X github.com/weftnet/weft/internal/host/version.word=v1.2.3.
var word string //nolint:gochecknoglobals // the linker sets nothing else

// String is the version.
func String() string {
	if word != "" {
		return word
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
