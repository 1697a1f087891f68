// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"maps"
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/internal/dra/device"
)

// equal says whether two results of Build are the same. It looks at what Build sets, value by
// value: on a node with many devices this runs at every signal.
func equal(a, b resourceslice.DriverResources) bool {
	return maps.EqualFunc(a.Pools, b.Pools, func(a, b resourceslice.Pool) bool {
		return slices.EqualFunc(a.Slices, b.Slices, func(a, b resourceslice.Slice) bool {
			return slices.EqualFunc(a.Devices, b.Devices, func(a, b resourceapi.Device) bool {
				return a.Name == b.Name && equalAttributes(a.Attributes, b.Attributes)
			})
		})
	})
}

func equalAttributes(a, b device.Attributes) bool {
	// build takes what did not change from what was there: then it is one and the same map.
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.EqualFunc(a, b, equalAttribute)
}

func equalAttribute(a, b resourceapi.DeviceAttribute) bool {
	return equalPointer(a.StringValue, b.StringValue) && equalPointer(a.IntValue, b.IntValue) &&
		equalPointer(a.BoolValue, b.BoolValue) && equalPointer(a.VersionValue, b.VersionValue) &&
		slices.Equal(a.StringValues, b.StringValues) && slices.Equal(a.IntValues, b.IntValues) &&
		slices.Equal(a.BoolValues, b.BoolValues) && slices.Equal(a.VersionValues, b.VersionValues)
}

func equalPointer[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}
