// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
	"github.com/weftnet/weft/internal/dra/pool"
)

// validate checks slices against the API's rules (spec/dra.md 3.3), which are written here a
// second time, by numbers: the API server's own code needs all of Kubernetes.
func validate(t interface {
	Helper()
	Errorf(string, ...any)
}, c Config, r resourceslice.DriverResources,
) {
	t.Helper()
	subdomain := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	seen := map[string]string{}
	if len(r.Pools) > 0 && (!subdomain.MatchString(c.Driver) || len(c.Driver) > 63) {
		t.Errorf("slices of driver %q", c.Driver)
	}
	for name, pool := range r.Pools {
		if len(name) > 253 {
			t.Errorf("pool name of %d bytes", len(name))
		}
		for part := range strings.SplitSeq(name, "/") {
			if !subdomain.MatchString(part) {
				t.Errorf("pool name %q", name)
			}
		}
		if len(pool.Slices) == 0 {
			t.Errorf("pool %s has no slice", name)
		}
		for i, s := range pool.Slices {
			limit := 128
			for _, d := range s.Devices {
				if !label.MatchString(d.Name) || len(d.Name) > 63 {
					t.Errorf("device name %q", d.Name)
				}
				if other, twice := seen[d.Name]; twice {
					t.Errorf("device %s is in %s and %s", d.Name, other, name)
				}
				seen[d.Name] = name
				if lists := validateAttributes(t, d); lists {
					limit = 64
				}
			}
			if len(s.Devices) > limit || len(s.Devices) == 0 && len(pool.Slices) > 1 {
				t.Errorf("slice %d of pool %s has %d devices", i, name, len(s.Devices))
			}
		}
	}
}

func validateAttributes(t interface {
	Helper()
	Errorf(string, ...any)
}, d resourceapi.Device,
) (lists bool) {
	t.Helper()
	domain := regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*$`)
	id := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	semver := regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)
	values := 0
	if len(d.Attributes) > 32 {
		t.Errorf("device %s has %d attributes", d.Name, len(d.Attributes))
	}
	for name, a := range d.Attributes {
		last := string(name)
		if first, rest, qualified := strings.Cut(last, "/"); qualified {
			last = rest
			if len(first) > 63 || !domain.MatchString(first) {
				t.Errorf("attribute name %q", name)
			}
		}
		if len(last) > 32 || !id.MatchString(last) {
			t.Errorf("attribute name %q", name)
		}
		kinds := 0
		texts, versions := a.StringValues, a.VersionValues
		if a.StringValue != nil {
			kinds, texts = kinds+1, []string{*a.StringValue}
		}
		if a.VersionValue != nil {
			kinds, versions = kinds+1, []string{*a.VersionValue}
		}
		if a.IntValue != nil {
			kinds++
		}
		if a.BoolValue != nil {
			kinds++
		}
		scalars := kinds
		for _, n := range []int{len(a.StringValues), len(a.VersionValues), len(a.IntValues), len(a.BoolValues)} {
			if n > 0 {
				kinds++
			}
			values += n
		}
		values += scalars
		lists = lists || kinds > scalars
		if kinds != 1 {
			t.Errorf("attribute %s has %d kinds of value", name, kinds)
		}
		for _, v := range append(append([]string{}, texts...), versions...) {
			if len(v) > 64 {
				t.Errorf("attribute %s has a value of %d bytes", name, len(v))
			}
		}
		for _, v := range versions {
			if !semver.MatchString(v) {
				t.Errorf("attribute %s has version %q", name, v)
			}
		}
	}
	if values > 48 {
		t.Errorf("device %s has %d values", d.Name, values)
	}
	return lists
}

// TestAnyDevices: I9. Whatever managers, filters and allocations say, the slices are valid, each
// device is in at most one pool, and a device that is not offered though its pool is has a reason.
func TestAnyDevices(t *testing.T) {
	odd := rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "0000-03-00-2", "A", "a_b", "a/b", ".", "ä", "\xff", strings.Repeat("x", 32), strings.Repeat("x", 33), strings.Repeat("x", 64), strings.Repeat("x", 65)}),
		rapid.String(),
	)
	attributeName := rapid.OneOf(odd, rapid.StringMatching(`([a-z.]{1,5}/)?[a-z_]{1,33}`), rapid.SampledFrom([]string{"pool", driver + "/pool", "k8s.cni.cncf.io/resourceName"}))
	attribute := rapid.Custom(func(t *rapid.T) resourceapi.DeviceAttribute {
		s := odd.Draw(t, "value")
		switch rapid.IntRange(0, 8).Draw(t, "kind") {
		case 0:
			return resourceapi.DeviceAttribute{}
		case 1:
			return resourceapi.DeviceAttribute{IntValue: new(int64(7))}
		case 2:
			return resourceapi.DeviceAttribute{StringValue: &s, BoolValue: new(true)}
		case 3:
			return resourceapi.DeviceAttribute{VersionValue: new(rapid.StringMatching(`v?\d{1,2}\.\d{1,2}(\.\d{1,2})?(-[a-z0-9.]{0,3})?(\+[a-z.]{0,3})?`).Draw(t, "version"))}
		case 4:
			return resourceapi.DeviceAttribute{StringValues: rapid.SliceOfN(odd, 0, 30).Draw(t, "values")}
		case 5:
			return resourceapi.DeviceAttribute{BoolValues: []bool{}}
		default:
			return resourceapi.DeviceAttribute{StringValue: &s}
		}
	})
	name := rapid.OneOf(odd, rapid.StringMatching(`[a-z0-9-]{1,6}`), rapid.StringMatching(`dummy[0-9]{1,2}`))
	manager := rapid.SampledFrom([]device.ManagerType{device.SRIOV, device.Dummy})
	dev := rapid.Custom(func(t *rapid.T) devicetest.Device {
		d := devicetest.Device{ID: name.Draw(t, "name"), Kind: manager.Draw(t, "manager"), PFName: rapid.SampledFrom([]string{"", "pf"}).Draw(t, "pf"), Attrs: device.Attributes{}}
		for range rapid.IntRange(0, 3).Draw(t, "attributes") {
			d.Attrs[resourceapi.QualifiedName(attributeName.Draw(t, "attribute"))] = attribute.Draw(t, "value")
		}
		if rapid.IntRange(0, 9).Draw(t, "many") == 0 {
			for i := range rapid.IntRange(20, 35).Draw(t, "more") {
				d.Attrs[resourceapi.QualifiedName(fmt.Sprint("a", i))] = resourceapi.DeviceAttribute{BoolValue: new(true)}
			}
		}
		return d
	})
	config := rapid.Custom(func(t *rapid.T) v2alpha1.DevicePool {
		p := v2alpha1.DevicePool{Name: rapid.OneOf(odd, rapid.SampledFrom([]string{"p", "q", "r"})).Draw(t, "pool")}
		if rapid.IntRange(0, 3).Draw(t, "filtered") > 0 {
			p.Filter = &v2alpha1.DeviceFilter{PFNames: rapid.SampledFrom([][]string{nil, {"pf"}, {""}}).Draw(t, "pfNames")}
		}
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		c := Config{
			Driver: rapid.OneOf(rapid.Just(driver), rapid.Just(driver), odd).Draw(t, "driver"),
			Node:   rapid.OneOf(rapid.Just("n1"), rapid.Just("n1"), odd).Draw(t, "node"),
			Pools:  rapid.SliceOfN(config, 0, 4).Draw(t, "pools"),
		}
		var devices []device.Device
		for _, d := range rapid.SliceOfN(dev, 0, 5).Draw(t, "devices") {
			devices = append(devices, d)
		}
		if rapid.IntRange(0, 9).Draw(t, "crowd") == 0 {
			devices = append(devices, dummies(rapid.IntRange(60, 140).Draw(t, "dummies"))...)
		}
		var rows []device.Allocation
		for range rapid.IntRange(0, 3).Draw(t, "allocations") {
			d := dev.Draw(t, "prepared")
			rows = append(rows, device.Allocation{DeviceName: d.ID, Manager: d.Kind, PreparedDevice: d, Pool: rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "of")})
		}
		got, problems := Build(c, devices, rows)
		validate(t, c, got)

		type subject struct{ pool, device string }
		offered, told := map[subject]bool{}, map[subject]bool{}
		for name, pool := range got.Pools {
			for _, s := range pool.Slices {
				for _, d := range s.Devices {
					offered[subject{strings.TrimPrefix(name, c.Node+"/"), d.Name}] = true
				}
			}
		}
		for _, p := range problems {
			if p.Kind == DriverInvalid {
				return
			}
			if p.Kind == PoolInvalid || p.Kind == DeviceInvalid {
				told[subject{p.Pool, p.Device}] = true
			}
		}
		for name, devices := range pool.Assign(devices, rows, c.Pools).Pools {
			for _, d := range devices {
				s := subject{name, d.Name()}
				if !told[subject{name, ""}] && offered[s] == told[s] {
					t.Fatalf("device %q of pool %q: offered %t, told %t: %q", d.Name(), name, offered[s], told[s], problemTexts(problems))
				}
			}
		}
	})
}

func FuzzVersion(f *testing.F) {
	for _, v := range []string{"1.2.3", "1.2", "01.2.3", "1.2.3-rc.1+build.5", "1.2.3-01", "1.2.3-0a", "1.2.3+", "", "1.2.3-", "v1.2.3", "1.2.3\n"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		d := resourceapi.Device{Name: "d", Attributes: device.Attributes{"v": version(v)}}
		if newLimits(driver).deviceFault(d) == "" {
			validateAttributes(t, d)
		}
	})
}
