// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devicetest is a device for tests of the rooms that take any device: it is what its
// fields say.
//
// It owns no rule of a kind of device: those are tested with the managers. Its filter matching is
// that of a device with all properties.
//
// Implements: architecture 4.5 (the vocabulary's fake); spec/dra.md 1.1 (filters).
package devicetest

import (
	"errors"
	"slices"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
)

// Device is a device with all properties that a filter asks for. As JSON it has the keys of a VF.
type Device struct {
	ID              string             `json:"-"` // its name
	Kind            device.ManagerType `json:"-"`
	Addr            string
	Driver          string
	Vendor          string
	DeviceID        string
	PFName          string
	VFID            int
	KernelIfaceName string
	ParentIfName    string            `json:",omitempty"`
	Attrs           device.Attributes `json:"-"`
	Fault           string            `json:"-"` // what Check says
}

var _ device.Device = Device{}

// Name gives ID.
func (d Device) Name() string { return d.ID }

// Manager gives Kind.
func (d Device) Manager() device.ManagerType { return d.Kind }

// Attributes gives Attrs.
func (d Device) Attributes() device.Attributes { return d.Attrs }

// Matches is true when each field of the filter is empty or holds the device's value.
func (d Device) Matches(f *v2alpha1.DeviceFilter) bool {
	for _, field := range []struct {
		want []string
		have string
	}{
		{f.IfNames, d.KernelIfaceName},
		{f.PFNames, d.PFName},
		{f.ParentIfNames, d.ParentIfName},
		{f.PCIAddrs, d.Addr},
		{f.VendorIDs, d.Vendor},
		{f.DeviceIDs, d.DeviceID},
		{f.Drivers, d.Driver},
	} {
		if len(field.want) > 0 && !slices.Contains(field.want, field.have) {
			return false
		}
	}
	return true
}

// Merge takes the name of the link from prepared, where there is none now.
func (d Device) Merge(prepared device.Device) device.Device {
	if p, ok := prepared.(Device); ok && d.KernelIfaceName == "" {
		d.KernelIfaceName = p.KernelIfaceName
	}
	return d
}

// Check gives Fault.
func (d Device) Check(v2alpha1.DeviceConfig) error {
	if d.Fault != "" {
		return errors.New(d.Fault)
	}
	return nil
}
