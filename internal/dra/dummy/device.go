// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
)

// maxName is the kernel's limit for the name of a link.
const maxName = 15

// Device is a dummy link, made or not. It is a value: nobody changes it.
type Device struct {
	IfName string `json:"Name"`
	HWAddr string // this and what follows are the link's, hence empty until it is made
	MTU    int
	Flags  string
}

// Name is the link's name on the host.
func (d Device) Name() string { return d.IfName }

// Manager is device.Dummy.
func (d Device) Manager() device.ManagerType { return device.Dummy }

// Attributes are the link's names.
func (d Device) Attributes() device.Attributes {
	return device.Attributes{
		"ifName":       resourceapi.DeviceAttribute{StringValue: &d.IfName},
		"kernelIfName": resourceapi.DeviceAttribute{StringValue: &d.IfName},
	}
}

// Matches says whether the link passes the filter: it has no PF and no PCI device. PFNames is no
// constraint.
func (d Device) Matches(filter *v2alpha1.DeviceFilter) bool {
	if filter == nil {
		return false
	}
	for _, of := range [][]string{
		filter.ParentIfNames, filter.PCIAddrs, filter.VendorIDs, filter.DeviceIDs, filter.Drivers,
	} {
		if len(of) != 0 {
			return false
		}
	}
	return len(filter.IfNames) == 0 || slices.Contains(filter.IfNames, d.IfName)
}

// Merge takes over what only a link that was made has.
func (d Device) Merge(prepared device.Device) device.Device {
	if p, ok := prepared.(Device); ok && p.IfName == d.IfName {
		return p
	}
	return d
}

// Check refuses a VLAN: there is no PF to set it.
func (d Device) Check(config v2alpha1.DeviceConfig) error {
	if config.VLAN != 0 {
		return fmt.Errorf("vlan %d: dummy link %s is in no VLAN: leave vlan out", config.VLAN, d.IfName)
	}
	return nil
}

// restore reads a device's JSON. All but the name may be missing or of another type.
func restore(data json.RawMessage) (Device, error) {
	var d Device
	var mismatch *json.UnmarshalTypeError
	if err := json.Unmarshal(data, &d); err != nil && !errors.As(err, &mismatch) {
		return Device{}, fmt.Errorf("read dummy link: %w", err)
	}
	if !isName(d.IfName) {
		return Device{}, fmt.Errorf("read dummy link: name %q is no interface name", d.IfName)
	}
	return d, nil
}

// isName knows what the kernel takes for a link's name, and what is fit for a device's at once.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && s != "." && s != ".." &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}
