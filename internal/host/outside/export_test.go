// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

// FindAt is Find with another process in the place of the first one.
func FindAt(namespaces string, pid int) (Place, error) { return find(namespaces, pid) }
