// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumNetworkDriverClusterConfig gives the nodes that it selects their node configuration.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumnetworkdriverclusterconfigs,singular=ciliumnetworkdriverclusterconfig,scope=Cluster,shortName=ndcc,categories=cilium
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodeCount`
// +kubebuilder:printcolumn:name="Conflicting",type=string,JSONPath=`.status.conditions[?(@.type=="cilium.io/ConflictingClusterConfiguration")].status`
// +kubebuilder:printcolumn:name="Accepted",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CiliumNetworkDriverClusterConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec CiliumNetworkDriverClusterConfigSpec `json:"spec"`
	// +optional
	Status CiliumNetworkDriverClusterConfigStatus `json:"status,omitzero"`
}

// CiliumNetworkDriverClusterConfigList is a list of cluster configurations.
//
// +kubebuilder:object:root=true
type CiliumNetworkDriverClusterConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []CiliumNetworkDriverClusterConfig `json:"items"`
}

// CiliumNetworkDriverClusterConfigSpec is a selector and what the selected nodes get.
type CiliumNetworkDriverClusterConfigSpec struct {
	// NodeSelector selects by the nodes' labels; absent or empty selects every node.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="nodeSelector: an operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (has(e.values) && size(e.values) > 0) == (e.operator.endsWith('In')))",message="nodeSelector: In and NotIn must have values, Exists and DoesNotExist must have none"
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Spec is the spec of each selected node's configuration.
	Spec *CiliumNetworkDriverNodeConfigSpec `json:"spec"`
}

// CiliumNetworkDriverClusterConfigStatus says what became of a cluster configuration.
type CiliumNetworkDriverClusterConfigStatus struct {
	// ObservedGeneration is the generation of the spec that the rest is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// NodeCount is how many nodes this configuration governs.
	//
	// +optional
	NodeCount int32 `json:"nodeCount,omitempty"`
	// Nodes are the names of the first of them.
	//
	// +optional
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`
	// Conditions are of the types Accepted and cilium.io/ConflictingClusterConfiguration.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The condition of a cluster configuration that selects a node that another one governs. It is
// absent while there is no conflict.
const (
	ConditionConflicting = "cilium.io/ConflictingClusterConfiguration"
	ReasonConflict       = "configurationConflict"
)
