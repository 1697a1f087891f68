// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumNetworkDriverClusterConfig gives the nodes that it selects their node configuration.
type CiliumNetworkDriverClusterConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   CiliumNetworkDriverClusterConfigSpec   `json:"spec"`
	Status CiliumNetworkDriverClusterConfigStatus `json:"status,omitzero"`
}

// CiliumNetworkDriverClusterConfigList is a list of cluster configurations.
type CiliumNetworkDriverClusterConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []CiliumNetworkDriverClusterConfig `json:"items"`
}

// CiliumNetworkDriverClusterConfigSpec is a selector and what the selected nodes get.
type CiliumNetworkDriverClusterConfigSpec struct {
	// NodeSelector selects by the nodes' labels; nil or empty selects every node.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Spec is the spec of each selected node's configuration.
	Spec *CiliumNetworkDriverNodeConfigSpec `json:"spec"`
}

// CiliumNetworkDriverClusterConfigStatus says what became of a cluster configuration.
type CiliumNetworkDriverClusterConfigStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// NodeCount is how many nodes this configuration governs.
	NodeCount int32 `json:"nodeCount,omitempty"`
	// Nodes are the names of the first of them.
	Nodes      []string           `json:"nodes,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The condition of a cluster configuration that selects a node that another one governs. It is
// absent while there is no conflict.
const (
	ConditionConflicting = "cilium.io/ConflictingClusterConfiguration"
	ReasonConflict       = "configurationConflict"
)
