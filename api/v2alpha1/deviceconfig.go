// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

// DeviceConfig is what a claim asks of a device: the opaque parameters of a ResourceClaim or
// DeviceClass, merged. As JSON it is the Config of the claim's status entry.
type DeviceConfig struct {
	// PodIfName is the link's name in the pod; "" keeps the name that it has on the host.
	PodIfName string `json:"podIfName,omitempty"`
	// VLAN is the VLAN that the PF puts the VF in, 1 to 4094; 0 leaves it alone.
	VLAN int32 `json:"vlan,omitempty"`
}
