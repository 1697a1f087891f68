// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"

	"github.com/weftnet/weft/internal/dra/device"
)

func TestUserPool(t *testing.T) {
	for _, c := range []struct {
		node, slicePool, want string
		ok                    bool
	}{
		{"n1", device.SlicePool("n1", "sriov-pool"), "sriov-pool", true},
		{"n1", "n1/a/b", "a/b", true},
		{"n1", "n10/a", "", false},
		{"n1", "sriov-pool", "", false}, // of a driver that does not name the node
		{"n1", "n1", "", false},
		{"n1", "n1/", "", false},
		{"", "/a", "", false},
	} {
		got, ok := device.UserPool(c.node, c.slicePool)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("UserPool(%q, %q) = %q, %t, want %q, %t", c.node, c.slicePool, got, ok, c.want, c.ok)
		}
	}
}
