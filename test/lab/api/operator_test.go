// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"testing"
)

// TestOperatorPriority is T-60: the older configuration goes first, the other one says why it does
// not, and takes over when the first is gone.
func TestOperatorPriority(t *testing.T) {
	w := newOperatorWorld(t)
	w.node("n1", map[string]string{"role": "x"})
	w.node("n2", nil)
	w.config("b-all", "")
	waitSecond(t) // creationTimestamps have seconds
	w.config("a-role", "{matchLabels: {role: x}}")
	drive(t)
	w.want("n1", "b-all b-all", "n2", "b-all b-all")
	w.wantStatus("b-all", "2 [n1 n2]; Accepted True Valid",
		"a-role", "0 []; Accepted True Valid; cilium.io/ConflictingClusterConfiguration True configurationConflict "+
			"b-all goes first and governs nodes that this configuration selects too: n1")
	w.delete(w.configs, "b-all")
	w.want("n1", "a-role a-role", "n2", "none")
	w.wantStatus("a-role", "1 [n1]; Accepted True Valid")
}
