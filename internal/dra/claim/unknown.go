// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"encoding/json"
	"fmt"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
)

// unknown is a prepared device that no manager can read: its row keeps it from others, and
// its record waits for a manager that can free it.
type unknown struct {
	name    string
	manager device.ManagerType
	data    json.RawMessage
}

var _ device.Device = unknown{}

// Name is the allocation result's.
func (u unknown) Name() string { return u.name }

// Manager is who prepared it.
func (u unknown) Manager() device.ManagerType { return u.manager }

// Attributes are none.
func (u unknown) Attributes() device.Attributes { return nil }

// Matches no filter.
func (u unknown) Matches(*v2alpha1.DeviceFilter) bool { return false }

// Merge gives it as it is.
func (u unknown) Merge(device.Device) device.Device { return u }

// MarshalJSON gives what was stored.
func (u unknown) MarshalJSON() ([]byte, error) { return u.data, nil }

// Check refuses it.
func (u unknown) Check(v2alpha1.DeviceConfig) error {
	return fmt.Errorf("device %s: no manager can read it", u.name)
}
