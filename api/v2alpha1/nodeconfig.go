// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumNetworkDriverNodeConfig is the network driver's configuration of the node that has its
// name.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumnetworkdrivernodeconfigs,singular=ciliumnetworkdrivernodeconfig,scope=Cluster,shortName=ndnc,categories=cilium
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CiliumNetworkDriverNodeConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec CiliumNetworkDriverNodeConfigSpec `json:"spec"`
	// +optional
	Status CiliumNetworkDriverNodeConfigStatus `json:"status,omitzero"`
}

// CiliumNetworkDriverNodeConfigList is a list of node configurations.
//
// +kubebuilder:object:root=true
type CiliumNetworkDriverNodeConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []CiliumNetworkDriverNodeConfig `json:"items"`
}

// CiliumNetworkDriverNodeConfigSpec says which devices a node offers, and in which pools.
type CiliumNetworkDriverNodeConfigSpec struct {
	// DriverName is the DRA driver's name: a lower-case DNS subdomain of at most 63 characters.
	//
	// +optional
	// +kubebuilder:default="networkdriver.cilium.io"
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="driverName must be a lower-case DNS subdomain, such as networkdriver.cilium.io"
	DriverName string `json:"driverName,omitempty"`
	// DRARegistrationRetryInterval is the pause between attempts to register with the kubelet, in
	// seconds; 0 stands for the default.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	DRARegistrationRetryInterval int64 `json:"draRegistrationRetryInterval,omitempty"`
	// DRARegistrationTimeout is how long one attempt waits for the kubelet, in seconds; 0 stands
	// for the default.
	//
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	DRARegistrationTimeout int64 `json:"draRegistrationTimeout,omitempty"`
	// DRARegistrationMaxAttempts is how often it is tried before the driver counts as degraded and
	// goes on slowly; 0 stands for the default.
	//
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	DRARegistrationMaxAttempts int64 `json:"draRegistrationMaxAttempts,omitempty"`
	// DeviceManagerConfigs says where devices come from.
	//
	// +optional
	DeviceManagerConfigs *DeviceManagerConfigs `json:"deviceManagerConfigs,omitempty"`
	// Pools are the pools that devices are offered in. Their order does not matter.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Pools []DevicePool `json:"pools,omitempty"`
}

// DeviceManagerConfigs holds the configuration of each device manager; absent is off.
type DeviceManagerConfigs struct {
	// SRIOV offers virtual functions of network cards.
	//
	// +optional
	SRIOV *SRIOVConfig `json:"sriov,omitempty"`
	// Dummy offers links of the kernel's dummy driver, for trying the driver without hardware.
	//
	// +optional
	Dummy *DummyConfig `json:"dummy,omitempty"`
}

// SRIOVConfig configures the SR-IOV device manager.
type SRIOVConfig struct {
	// Enabled turns the manager on.
	//
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// SysBusPCIDevPath is the root of sysfs as the agent sees it, below which bus/pci/devices lies;
	// empty stands for the agent's own.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(/.*)?$`
	SysBusPCIDevPath string `json:"sysBusPCIDevPath,omitempty"`
	// Ifaces are the physical functions whose virtual functions are to be made. Virtual functions
	// of others are offered as well, when a pool's filter matches them.
	//
	// +optional
	// +listType=map
	// +listMapKey=ifName
	// +kubebuilder:validation:MaxItems=256
	Ifaces []SRIOVInterface `json:"ifaces,omitempty"`
}

// SRIOVInterface is a physical function.
type SRIOVInterface struct {
	// IfName is its interface name in the host's network namespace.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="!(self in ['.', '..']) && !self.matches('[/:[:space:]]')",message="ifName must be an interface name: neither . nor .., without slash, colon and white space"
	IfName string `json:"ifName"`
	// VFCount is how many virtual functions it is to have; 0 leaves it alone. It may change.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	VFCount int `json:"vfCount,omitempty"`
}

// DummyConfig configures the dummy device manager.
type DummyConfig struct {
	// Enabled turns the manager on.
	//
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// Count is how many dummy links are offered: dummy0 to dummy<count-1>.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4096
	Count int `json:"count,omitempty"`
}

// DevicePool is a set of devices with one purpose.
type DevicePool struct {
	// Name is a lower-case DNS subdomain of at most 64 characters. In ResourceSlices the pool is
	// <node>/<name>, and the device attribute "pool" has this name.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name must be a lower-case DNS subdomain, such as fast-net"
	Name string `json:"name"`
	// Filter says which devices belong to the pool: when it is absent none, and the pool is not
	// published; when it is empty ({}), all.
	//
	// +optional
	Filter *DeviceFilter `json:"filter,omitempty"`
}

// DeviceFilter matches a device when every field that is not empty holds a value of the device's.
// Values are compared as they stand.
type DeviceFilter struct {
	// DeviceManagers are the managers of the devices: sr-iov, dummy.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	DeviceManagers []string `json:"deviceManagers,omitempty"`
	// IfNames are the devices' own interface names. No two pools may have one in common.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.all(n, !(n in ['.', '..']) && !n.matches('[/:[:space:]]'))",message="ifNames must be interface names: neither . nor .., without slash, colon and white space"
	IfNames []string `json:"ifNames,omitempty"`
	// PFNames are the interface names of the physical functions that the devices belong to.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.all(n, !(n in ['.', '..']) && !n.matches('[/:[:space:]]'))",message="pfNames must be interface names: neither . nor .., without slash, colon and white space"
	PFNames []string `json:"pfNames,omitempty"`
	// ParentIfNames are the interface names of the links that the devices are made on. SR-IOV
	// passes it over, and no dummy matches it.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.all(n, !(n in ['.', '..']) && !n.matches('[/:[:space:]]'))",message="parentIfNames must be interface names: neither . nor .., without slash, colon and white space"
	ParentIfNames []string `json:"parentIfNames,omitempty"`
	// PCIAddrs are PCI addresses with domain, in lower case: 0000:03:00.2.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.matches('^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f][.][0-7]$'))",message="pciAddrs must be PCI addresses with domain, in lower case, such as 0000:03:00.2"
	PCIAddrs []string `json:"pciAddrs,omitempty"`
	// VendorIDs are PCI vendors as sysfs has them: 0x15b3.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=6
	// +kubebuilder:validation:XValidation:rule="self.all(i, i.matches('^0x[0-9a-f]{4}$'))",message="vendorIDs must be 0x and four hexadecimal digits in lower case, such as 0x15b3"
	VendorIDs []string `json:"vendorIDs,omitempty"`
	// DeviceIDs are PCI devices as sysfs has them: 0x101e.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=6
	// +kubebuilder:validation:XValidation:rule="self.all(i, i.matches('^0x[0-9a-f]{4}$'))",message="deviceIDs must be 0x and four hexadecimal digits in lower case, such as 0x101e"
	DeviceIDs []string `json:"deviceIDs,omitempty"`
	// Drivers are kernel drivers: mlx5_core, vfio-pci; "" is a device without one.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	Drivers []string `json:"drivers,omitempty"`
}

// CiliumNetworkDriverNodeConfigStatus says what became of a node configuration.
type CiliumNetworkDriverNodeConfigStatus struct {
	// Conditions are of the types Accepted and Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of conditions of a node configuration.
const (
	ConditionAccepted = "Accepted" // False: the spec is invalid and the last good one is in force
	ConditionReady    = "Ready"    // False: the message names the pools and PFs that are affected
)
