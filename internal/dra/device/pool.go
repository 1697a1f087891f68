// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import "strings"

// SlicePool is the name that a pool of a node has in ResourceSlices and allocation results. The
// node is part of it because the allocator tells devices apart by driver, pool and device alone:
// two nodes with pools and PCI addresses of one name must not be taken for one.
func SlicePool(node, pool string) string { return node + "/" + pool }

// UserPool is the inverse of SlicePool: the name that the user wrote, and whether slicePool is
// one of this node's.
func UserPool(node, slicePool string) (string, bool) {
	pool, ok := strings.CutPrefix(slicePool, node+"/")
	return pool, ok && node != "" && pool != ""
}
