// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
)

// stored is the data of a status entry. Its keys are read in any case.
type stored struct {
	Manager string
	Dev     json.RawMessage
	Config  json.RawMessage
}

var errEmpty = errors.New("is missing or empty")

// Texts of the one condition of an entry.
const (
	conditionReady = "Ready"
	messageReady   = "Device is ready"
)

// maxData is how many bytes of data the API takes.
const maxData = 10 << 10

// entry is what a claim's status says of a device that was prepared.
func entry(driver string, d record.Device, prepared record.Prepared, generation int64) (resourceapi.AllocatedDeviceStatus, error) {
	config, err := json.Marshal(d.Config)
	if err != nil {
		return resourceapi.AllocatedDeviceStatus{}, fmt.Errorf("encode the configuration of device %s: %w", d.Name, err)
	}
	data, err := json.Marshal(stored{Manager: d.Manager, Dev: prepared.Dev, Config: config})
	if err != nil {
		return resourceapi.AllocatedDeviceStatus{}, fmt.Errorf("encode device %s: %w", d.Name, err)
	}
	if len(data) > maxData {
		return resourceapi.AllocatedDeviceStatus{}, fmt.Errorf("device %s: %d bytes of data, the API takes %d", d.Name, len(data), maxData)
	}
	e := resourceapi.AllocatedDeviceStatus{
		Driver: driver, Pool: d.Slice, Device: d.Name,
		Conditions: []metav1.Condition{{
			Type: conditionReady, Status: metav1.ConditionTrue, Reason: conditionReady, Message: messageReady,
			ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(time.Now()),
		}},
		Data: &runtime.RawExtension{Raw: data},
	}
	if d.ShareID != "" {
		e.ShareID = &d.ShareID
	}
	// A device without a link, such as one for vfio, has no network data.
	if prepared.IfName != "" || prepared.MAC != "" {
		e.NetworkData = &resourceapi.NetworkDeviceData{InterfaceName: prepared.IfName, HardwareAddress: prepared.MAC}
	}
	return e, nil
}

// merge puts entries into a claim's status and says whether that changed it. Entries of others, and
// of devices that are not in the list, stay as they are and where they are.
func merge(claim *resourceapi.ResourceClaim, entries []resourceapi.AllocatedDeviceStatus) bool {
	changed := false
next:
	for _, e := range entries {
		for i := range claim.Status.Devices {
			if old := &claim.Status.Devices[i]; sameDevice(*old, e) {
				if !equal(*old, e) {
					*old, changed = e, true
				}
				continue next
			}
		}
		claim.Status.Devices, changed = append(claim.Status.Devices, e), true
	}
	return changed
}

func sameDevice(a, b resourceapi.AllocatedDeviceStatus) bool {
	return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device && value(a.ShareID) == value(b.ShareID)
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// equal says whether two entries say the same, but for when. The generation is no matter: a claim's
// spec is immutable, and what counts is that the device is ready.
func equal(a, b resourceapi.AllocatedDeviceStatus) bool {
	if len(a.Conditions) != len(b.Conditions) || !reflect.DeepEqual(a.NetworkData, b.NetworkData) {
		return false
	}
	for i := range a.Conditions {
		x, y := a.Conditions[i], b.Conditions[i]
		if x.Type != y.Type || x.Status != y.Status || x.Reason != y.Reason || x.Message != y.Message {
			return false
		}
	}
	return sameJSON(raw(a.Data), raw(b.Data))
}

func raw(data *runtime.RawExtension) []byte {
	if data == nil {
		return nil
	}
	return data.Raw
}

func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// readEntry reads what a driver stored of a device: this one, or one whose place it took. The
// manager's name is read in any case, and a config need not be there.
func readEntry(e resourceapi.AllocatedDeviceStatus) (device.ManagerType, json.RawMessage, v2alpha1.DeviceConfig, error) {
	var s stored
	fail := func(field string, err error) (device.ManagerType, json.RawMessage, v2alpha1.DeviceConfig, error) {
		return "", nil, v2alpha1.DeviceConfig{}, fmt.Errorf("status entry of device %s: %s: %w", e.Device, field, err)
	}
	data := raw(e.Data)
	if len(data) == 0 {
		return fail("data", errEmpty)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return fail("data", err)
	}
	if s.Manager == "" {
		return fail("data.Manager", errEmpty)
	}
	if len(s.Dev) == 0 || string(s.Dev) == "null" {
		return fail("data.Dev", errEmpty)
	}
	config, err := v2alpha1.ParseStored(s.Config)
	if err != nil {
		return fail("data.Config", err)
	}
	return device.ManagerType(strings.ToLower(s.Manager)), s.Dev, config, nil
}
