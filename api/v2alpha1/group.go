// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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

// GroupVersion is the API group and version, as a scheme and a client name it.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// AddToScheme makes the kinds of this package known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(),
		&CiliumNetworkDriverNodeConfig{}, &CiliumNetworkDriverNodeConfigList{},
		&CiliumNetworkDriverClusterConfig{}, &CiliumNetworkDriverClusterConfigList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
