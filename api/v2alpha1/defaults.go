// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

// DefaultDriverName is the driver's name when the configuration names none.
const DefaultDriverName = "networkdriver.cilium.io"

// Defaults of the registration with the kubelet; the first two are seconds.
const (
	DefaultDRARegistrationRetryInterval = 1
	DefaultDRARegistrationTimeout       = 5
	DefaultDRARegistrationMaxAttempts   = 10
)

// SetDefaults gives every field its default that has one and is empty. An API server does so too,
// where its definition of the resource has defaults.
func (s *CiliumNetworkDriverNodeConfigSpec) SetDefaults() {
	if s.DriverName == "" {
		s.DriverName = DefaultDriverName
	}
	if s.DRARegistrationRetryInterval == 0 {
		s.DRARegistrationRetryInterval = DefaultDRARegistrationRetryInterval
	}
	if s.DRARegistrationTimeout == 0 {
		s.DRARegistrationTimeout = DefaultDRARegistrationTimeout
	}
	if s.DRARegistrationMaxAttempts == 0 {
		s.DRARegistrationMaxAttempts = DefaultDRARegistrationMaxAttempts
	}
}

// SetDefaults is that of the nodes' spec.
func (s *CiliumNetworkDriverClusterConfigSpec) SetDefaults() {
	if s.Spec != nil {
		s.Spec.SetDefaults()
	}
}
