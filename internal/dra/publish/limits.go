// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// driverFault says why no slice can be of a driver and node, "" when one can.
func driverFault(driver, node string) string {
	if len(driver) > resourceapi.DriverNameMaxLength {
		return fmt.Sprintf("driver name %q has %d of %d bytes", driver, len(driver), resourceapi.DriverNameMaxLength)
	}
	if faults := validation.IsDNS1123Subdomain(driver); len(faults) > 0 {
		return fmt.Sprintf("driver name %q: %s", driver, faults[0])
	}
	if faults := validation.IsDNS1123Subdomain(node); len(faults) > 0 {
		return fmt.Sprintf("node name %q: %s", node, faults[0])
	}
	return ""
}

// poolFault says why a pool cannot be offered, "" when it can.
func poolFault(name, slicePool string) string {
	if len(name) > resourceapi.DeviceAttributeMaxValueLength {
		return fmt.Sprintf("its name has %d of %d bytes, the limit of the attribute %s", len(name), resourceapi.DeviceAttributeMaxValueLength, AttributePool)
	}
	if len(slicePool) > resourceapi.PoolNameMaxLength {
		return fmt.Sprintf("with the node's name, its name in slices has %d of %d bytes", len(slicePool), resourceapi.PoolNameMaxLength)
	}
	for part := range strings.SplitSeq(name, "/") {
		if faults := validation.IsDNS1123Subdomain(part); len(faults) > 0 {
			return "its name: " + faults[0]
		}
	}
	return ""
}

// limits checks devices against the API's limits. Names of attributes are checked once each, since
// devices have the same ones.
type limits struct {
	driver string
	names  map[resourceapi.QualifiedName]string // why an attribute cannot have that name; "" when it can
	semver *regexp.Regexp
}

func newLimits(driver string) limits {
	// semver.org, 2.0.0: three numbers without leading zeros, then -pre.release, then +build.
	const number, build = `(0|[1-9][0-9]*)`, `[0-9A-Za-z-]+`
	const pre = `(` + number + `|[0-9]*[A-Za-z-][0-9A-Za-z-]*)`
	return limits{
		driver: driver, names: map[resourceapi.QualifiedName]string{},
		semver: regexp.MustCompile(`^` + number + `\.` + number + `\.` + number + `(-` + pre + `(\.` + pre + `)*)?(\+` + build + `(\.` + build + `)*)?$`),
	}
}

// deviceFault says why no slice can hold a device, "" when one can.
func (l limits) deviceFault(d resourceapi.Device) string {
	if faults := validation.IsDNS1123Label(d.Name); len(faults) > 0 {
		return "its name: " + faults[0]
	}
	if len(d.Attributes) > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		return fmt.Sprintf("it has %d of %d attributes", len(d.Attributes), resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	}
	values := 0
	var worst, why string // the first by name, so that one device always has one reason
	for name, a := range d.Attributes {
		values += max(1, len(a.IntValues)+len(a.BoolValues)+len(a.StringValues)+len(a.VersionValues))
		if reason := l.attributeFault(d, name, a); reason != "" && (why == "" || string(name) < worst) {
			worst, why = string(name), reason
		}
	}
	switch {
	case why != "":
		return fmt.Sprintf("attribute %q: %s", worst, why)
	case values > resourceapi.ResourceSliceMaxAttributeValuesPerDevice:
		return fmt.Sprintf("its attributes have %d of %d values", values, resourceapi.ResourceSliceMaxAttributeValuesPerDevice)
	}
	return ""
}

func (l limits) attributeFault(d resourceapi.Device, name resourceapi.QualifiedName, a resourceapi.DeviceAttribute) string {
	reason, seen := l.names[name]
	if !seen {
		reason = nameFault(string(name))
		l.names[name] = reason
	}
	if reason != "" {
		return reason
	}
	// A name without domain is in the driver's: who selects by it would get the one or the other.
	if bare, ours := strings.CutPrefix(string(name), l.driver+"/"); ours {
		if _, twice := d.Attributes[resourceapi.QualifiedName(bare)]; twice {
			return fmt.Sprintf("it is %q, which is there as well", bare)
		}
	}
	return l.valueFault(a)
}

func nameFault(name string) string {
	id := name
	if domain, rest, qualified := strings.Cut(name, "/"); qualified {
		id = rest
		if len(domain) > resourceapi.DeviceMaxDomainLength {
			return fmt.Sprintf("its domain has %d of %d bytes", len(domain), resourceapi.DeviceMaxDomainLength)
		}
		if faults := validation.IsDNS1123Subdomain(strings.ToLower(domain)); len(faults) > 0 {
			return "its domain: " + faults[0]
		}
	}
	if len(id) > resourceapi.DeviceMaxIDLength {
		return fmt.Sprintf("its name has %d of %d bytes", len(id), resourceapi.DeviceMaxIDLength)
	}
	if faults := validation.IsCIdentifier(id); len(faults) > 0 {
		return "its name: " + faults[0]
	}
	return ""
}

// valueFault says why an attribute cannot have a value, "" when it can.
func (l limits) valueFault(a resourceapi.DeviceAttribute) string {
	kinds := 0
	for _, has := range []bool{
		a.IntValue != nil, a.BoolValue != nil, a.StringValue != nil, a.VersionValue != nil,
		a.IntValues != nil, a.BoolValues != nil, a.StringValues != nil, a.VersionValues != nil,
	} {
		if has {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Sprintf("it has %d kinds of value, not one", kinds)
	}
	switch {
	case a.StringValue != nil:
		return textFault(*a.StringValue)
	case a.VersionValue != nil:
		return l.versionFault(*a.VersionValue)
	case a.IntValue != nil || a.BoolValue != nil:
		return ""
	case len(a.IntValues)+len(a.BoolValues)+len(a.StringValues)+len(a.VersionValues) == 0:
		return "its list of values is empty"
	}
	for _, text := range a.StringValues {
		if reason := textFault(text); reason != "" {
			return reason
		}
	}
	for _, version := range a.VersionValues {
		if reason := l.versionFault(version); reason != "" {
			return reason
		}
	}
	return ""
}

func textFault(text string) string {
	switch {
	case len(text) > resourceapi.DeviceAttributeMaxValueLength:
		return fmt.Sprintf("its value %q has %d of %d bytes", text, len(text), resourceapi.DeviceAttributeMaxValueLength)
	case !utf8.ValidString(text): // what arrives would be another text, and never equal
		return fmt.Sprintf("its value %q is no UTF-8", text)
	}
	return ""
}

func (l limits) versionFault(version string) string {
	if reason := textFault(version); reason != "" {
		return reason
	}
	if !l.semver.MatchString(version) {
		return fmt.Sprintf("its value %q is no semantic version", version)
	}
	return ""
}
