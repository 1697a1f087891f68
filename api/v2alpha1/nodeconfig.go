// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The API group and version.
const (
	Group   = "cilium.io"
	Version = "v2alpha1"
)

// Kinds and resources.
const (
	NodeConfigKind        = "CiliumNetworkDriverNodeConfig"
	NodeConfigResource    = "ciliumnetworkdrivernodeconfigs"
	ClusterConfigKind     = "CiliumNetworkDriverClusterConfig"
	ClusterConfigResource = "ciliumnetworkdriverclusterconfigs"
)

// DefaultDriverName is the driver's name when the configuration names none.
const DefaultDriverName = "networkdriver.cilium.io"

// CiliumNetworkDriverNodeConfig is the network driver's configuration of the node that has its
// name.
type CiliumNetworkDriverNodeConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   CiliumNetworkDriverNodeConfigSpec   `json:"spec"`
	Status CiliumNetworkDriverNodeConfigStatus `json:"status,omitzero"`
}

// CiliumNetworkDriverNodeConfigList is a list of node configurations.
type CiliumNetworkDriverNodeConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []CiliumNetworkDriverNodeConfig `json:"items"`
}

// CiliumNetworkDriverNodeConfigSpec says which devices a node offers, and in which pools.
type CiliumNetworkDriverNodeConfigSpec struct {
	// DriverName is the DRA driver's name. Default: networkdriver.cilium.io.
	DriverName string `json:"driverName,omitempty"`
	// DRARegistrationRetryInterval is the pause between attempts to register, in seconds. Default: 1.
	DRARegistrationRetryInterval int64 `json:"draRegistrationRetryInterval,omitempty"`
	// DRARegistrationTimeout is how long one attempt waits for the kubelet, in seconds. Default: 5.
	DRARegistrationTimeout int64 `json:"draRegistrationTimeout,omitempty"`
	// DRARegistrationMaxAttempts is how often it is tried before the driver counts as degraded and
	// goes on slowly. Default: 10.
	DRARegistrationMaxAttempts int64 `json:"draRegistrationMaxAttempts,omitempty"`
	// DeviceManagerConfigs says where devices come from.
	DeviceManagerConfigs *DeviceManagerConfigs `json:"deviceManagerConfigs,omitempty"`
	// Pools are the pools that devices are offered in.
	Pools []DevicePool `json:"pools,omitempty"`
}

// DeviceManagerConfigs holds the configuration of each device manager; nil is off.
type DeviceManagerConfigs struct {
	SRIOV *SRIOVConfig `json:"sriov,omitempty"`
	Dummy *DummyConfig `json:"dummy,omitempty"`
}

// SRIOVConfig configures the SR-IOV device manager.
type SRIOVConfig struct {
	Enabled bool `json:"enabled,omitempty"`
	// SysBusPCIDevPath is the root of sysfs, below which bus/pci/devices lies. Default: the agent's.
	SysBusPCIDevPath string `json:"sysBusPCIDevPath,omitempty"`
	// Ifaces are the physical functions whose virtual functions are to be made.
	Ifaces []SRIOVInterface `json:"ifaces,omitempty"`
}

// SRIOVInterface is a physical function.
type SRIOVInterface struct {
	// IfName is its interface name in the host's network namespace.
	IfName string `json:"ifName"`
	// VFCount is how many virtual functions it is to have; 0 leaves it alone.
	VFCount int `json:"vfCount,omitempty"`
}

// DummyConfig configures the dummy device manager.
type DummyConfig struct {
	Enabled bool `json:"enabled,omitempty"`
	// Count is how many dummy links are offered: dummy0 to dummy<count-1>.
	Count int `json:"count,omitempty"`
}

// DevicePool is a set of devices with one purpose.
type DevicePool struct {
	Name string `json:"name"`
	// Filter says which devices belong to it: nil none (and the pool is not published), empty all.
	Filter *DeviceFilter `json:"filter,omitempty"`
}

// DeviceFilter matches a device when every field that is not empty holds a value of the device's.
type DeviceFilter struct {
	DeviceManagers []string `json:"deviceManagers,omitempty"`
	IfNames        []string `json:"ifNames,omitempty"`
	PFNames        []string `json:"pfNames,omitempty"`
	ParentIfNames  []string `json:"parentIfNames,omitempty"`
	PCIAddrs       []string `json:"pciAddrs,omitempty"`
	VendorIDs      []string `json:"vendorIDs,omitempty"`
	DeviceIDs      []string `json:"deviceIDs,omitempty"`
	Drivers        []string `json:"drivers,omitempty"`
}

// CiliumNetworkDriverNodeConfigStatus says what became of a node configuration.
type CiliumNetworkDriverNodeConfigStatus struct {
	// Conditions are of the types Accepted and Ready.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of conditions of a node configuration.
const (
	ConditionAccepted = "Accepted" // False: the spec is invalid and the last good one is in force
	ConditionReady    = "Ready"    // False: the message names the pools and PFs that are affected
)
