// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import "github.com/weftnet/weft/internal/cni/fault"

// Parse reads an annotation.
func Parse(annotation string) ([]Element, []fault.Warning, error) {
	return nil, nil, fault.New(fault.Internal, "", "", "read annotation: being written")
}

// InterfaceName says why the kernel would not take name for an interface.
func InterfaceName(name string) error {
	return fault.New(fault.Internal, "", "", "check interface name: being written")
}
