// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
)

const driver = v2alpha1.DefaultDriverName

func text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

func version(s string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{VersionValue: &s}
}

func vf(name string, attrs device.Attributes) devicetest.Device {
	return devicetest.Device{ID: name, Kind: device.SRIOV, PFName: "ens1f0", Attrs: attrs}
}

func dummies(n int) []device.Device {
	all := make([]device.Device, n)
	for i := range all {
		name := fmt.Sprintf("dummy%d", i)
		all[i] = devicetest.Device{ID: name, Kind: device.Dummy, Attrs: device.Attributes{"ifName": text(name)}}
	}
	return all
}

func everything(names ...string) []v2alpha1.DevicePool {
	var all []v2alpha1.DevicePool
	for _, name := range names {
		all = append(all, v2alpha1.DevicePool{Name: name, Filter: &v2alpha1.DeviceFilter{}})
	}
	return all
}

// sizes are the numbers of devices in each slice of each pool.
func sizes(r resourceslice.DriverResources) map[string][]int {
	all := map[string][]int{}
	for name, pool := range r.Pools {
		for _, s := range pool.Slices {
			all[name] = append(all[name], len(s.Devices))
		}
	}
	return all
}

func problemTexts(problems []Problem) []string {
	var all []string
	for _, p := range problems {
		all = append(all, p.Kind.String()+": "+p.String())
	}
	return all
}

// T-1: the attributes of the seed, those of the pool, and none that the device did not give.
func TestAttributes(t *testing.T) {
	own := device.Attributes{
		"driver": text("mlx5_core"), "vendor": text("0x15b3"), "deviceID": text("0x101e"), "pfName": text("ens1f0"),
		"resource.kubernetes.io/pciBusID": text("0000:03:00.2"), "kernelIfName": text(""),
		"pool": text("mine"), "deviceManager": text("mine"), "k8s.cni.cncf.io/resourceName": text("mine"), // not its own to say
	}
	given := vf("0000-03-00-2", own)
	got, problems := Build(Config{Driver: driver, Node: "n1", Pools: everything("sriov-pool")}, []device.Device{given}, nil)
	want := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"n1/sriov-pool": {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{
			Name: "0000-03-00-2",
			Attributes: device.Attributes{
				"driver": text("mlx5_core"), "vendor": text("0x15b3"), "deviceID": text("0x101e"), "pfName": text("ens1f0"),
				"resource.kubernetes.io/pciBusID": text("0000:03:00.2"), "kernelIfName": text(""),
				"pool": text("sriov-pool"), "deviceManager": text("sr-iov"),
				"k8s.cni.cncf.io/resourceName": text("networkdriver.cilium.io/sriov-pool"),
			},
		}}}}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("slices (-want +got):\n%s", d)
	}
	if len(problems) > 0 {
		t.Errorf("problems: %q", problemTexts(problems))
	}
	if *own["pool"].StringValue != "mine" || len(own) != 9 {
		t.Error("the device's own attributes were changed")
	}
}

// TestNoFalseResourceName: where the pool's does not fit, there is none.
func TestNoFalseResourceName(t *testing.T) {
	d := vf("v", device.Attributes{AttributeResourceName: text("its own")})
	name := strings.Repeat("p", 62)
	got, _ := Build(Config{Driver: driver, Node: "n1", Pools: everything(name)}, []device.Device{d}, nil)
	want := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"pool": text(name), "deviceManager": text("sr-iov")}
	if d := cmp.Diff(want, got.Pools["n1/"+name].Slices[0].Devices[0].Attributes); d != "" {
		t.Errorf("attributes (-want +got):\n%s", d)
	}
}

func TestBuild(t *testing.T) {
	long := strings.Repeat("x", 65)
	list := vf("list", device.Attributes{"numbers": {IntValues: []int64{1, 2}}})
	for _, c := range []struct {
		name        string
		config      Config
		devices     []device.Device
		allocations []device.Allocation
		want        map[string][]int
		problems    []string
	}{
		{name: "no pools: everything is withdrawn", devices: dummies(2), want: map[string][]int{}},
		{
			name:   "a pool without devices is one empty slice, one without filter is nothing",
			config: Config{Pools: append(everything("a"), v2alpha1.DevicePool{Name: "b"})}, want: map[string][]int{"n1/a": {0}},
		},
		{name: "as many as fit", config: Config{Pools: everything("a")}, devices: dummies(128), want: map[string][]int{"n1/a": {128}}},
		{name: "one more", config: Config{Pools: everything("a")}, devices: dummies(129), want: map[string][]int{"n1/a": {128, 1}}},
		{name: "T-11", config: Config{Pools: everything("a")}, devices: dummies(300), want: map[string][]int{"n1/a": {128, 128, 44}}},
		{
			name: "lists halve a slice", config: Config{Pools: everything("a")}, devices: append(dummies(128), list),
			want: map[string][]int{"n1/a": {64, 64, 1}},
		},
		{
			name: "T-12", config: Config{Pools: everything("Fast_Net", "fast-net")}, devices: dummies(1),
			want: map[string][]int{"n1/fast-net": {0}},
			problems: []string{
				"pool_invalid: pool Fast_Net: its name: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
				`conflict: pool Fast_Net, device dummy0: it matches the filters of several pools: ["Fast_Net" "fast-net"]`,
			},
		},
		{
			name: "a pool's name is an attribute", config: Config{Pools: everything(long)}, want: map[string][]int{},
			problems: []string{"pool_invalid: pool " + long + ": its name has 65 of 64 bytes, the limit of the attribute pool"},
		},
		{
			name: "a node's name is part of the pool's", config: Config{Node: strings.Repeat("n", 253), Pools: everything("a")}, want: map[string][]int{},
			problems: []string{"pool_invalid: pool a: with the node's name, its name in slices has 255 of 253 bytes"},
		},
		{
			name: "a resource name that is too long", config: Config{Pools: everything(long[:41])}, devices: dummies(1),
			want: map[string][]int{"n1/" + long[:41]: {1}},
			problems: []string{"attribute_left_out: pool " + long[:41] + `: k8s.cni.cncf.io/resourceName would be "networkdriver.cilium.io/` + long[:41] +
				`", with 65 of 64 bytes: its devices cannot be found by a network's resource name`},
		},
		{
			name: "driver", config: Config{Driver: "Cilium", Pools: everything("a")}, want: map[string][]int{},
			problems: []string{`driver_invalid: driver name "Cilium": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`},
		},
		{
			name: "long driver", config: Config{Driver: strings.Repeat("d", 64), Pools: everything("a")}, want: map[string][]int{},
			problems: []string{`driver_invalid: driver name "` + strings.Repeat("d", 64) + `" has 64 of 63 bytes`},
		},
		{
			name:        "a claim has it under another pool, prepared or not",
			config:      Config{Pools: everything("a"), Elsewhere: map[string]string{"dummy0": "sriov-pool", "dummy1": "sriov-pool", "other": "x"}},
			devices:     dummies(3),
			allocations: []device.Allocation{{DeviceName: "dummy1", Manager: device.Dummy, Pool: "a"}},
			want:        map[string][]int{"n1/a": {1}},
			problems: []string{
				`elsewhere: pool a, device dummy0: a claim has it under pool "sriov-pool"`,
				`elsewhere: pool a, device dummy1: a claim has it under pool "sriov-pool"`,
			},
		},
		{
			name: "what allocations say", config: Config{Pools: everything("a")}, devices: dummies(4),
			allocations: []device.Allocation{
				{DeviceName: "dummy1", Pool: "old"},
				{DeviceName: "dummy2", Pool: "a", ShareID: "1"},
				{DeviceName: "dummy2", Pool: "b", ShareID: "2"},
				{DeviceName: "dummy3"},
			},
			want: map[string][]int{"n1/a": {1}},
			problems: []string{
				`ambiguous: device dummy2: its allocations name several pools: ["a" "b"]`,
				`ambiguous: device dummy3: an allocation of it names no pool: [""]`,
				`pool_gone: pool old, device dummy1: it was prepared from a pool that is not offered any more`,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.config.Driver == "" {
				c.config.Driver = driver
			}
			if c.config.Node == "" {
				c.config.Node = "n1"
			}
			got, problems := Build(c.config, c.devices, c.allocations)
			if d := cmp.Diff(c.want, sizes(got)); d != "" {
				t.Errorf("slices (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.problems, problemTexts(problems)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
			validate(t, c.config, got)
		})
	}
}

// TestDevicesThatNoSliceHolds: each is left out, with the reason, and nothing else is.
func TestDevicesThatNoSliceHolds(t *testing.T) {
	many := func(n int) device.Attributes {
		a := device.Attributes{}
		for i := range n {
			a[resourceapi.QualifiedName(fmt.Sprintf("a%d", i))] = text("")
		}
		return a
	}
	for _, c := range []struct {
		name   string // of the device
		attrs  device.Attributes
		reason string // "" when it is offered
	}{
		{"plain", nil, ""},
		{strings.Repeat("n", 63), nil, ""},
		{strings.Repeat("n", 64), nil, "its name: must be no more than 63 "},
		{"0000:03:00.2", nil, "its name: a lowercase RFC 1123 label must consist"},
		{"Dummy0", nil, "its name: a lowercase RFC 1123 label must consist"},
		{"", nil, "its name: a lowercase RFC 1123 label must consist"},
		{"full", many(29), ""},
		{"over-full", many(30), "it has 33 of 32 attributes"},
		{"values", device.Attributes{"a": {IntValues: make([]int64, 45)}}, ""},
		{"over-values", device.Attributes{"a": {IntValues: make([]int64, 46)}}, "its attributes have 49 of 48 values"},
		{"text", device.Attributes{"a": text(strings.Repeat("ä", 32))}, ""},
		{"over-text", device.Attributes{"a": text(strings.Repeat("ä", 32) + "x")}, `attribute "a": its value "` + strings.Repeat("ä", 32) + `x" has 65 of 64 bytes`},
		{"broken-text", device.Attributes{"a": text("\xff")}, `attribute "a": its value "\xff" is no UTF-8`},
		{"text-in-list", device.Attributes{"a": {StringValues: []string{"", strings.Repeat("x", 65)}}}, `attribute "a": its value "` + strings.Repeat("x", 65) + `" has 65`},
		{"version", device.Attributes{"a": version("1.2.3-rc.1+b")}, ""},
		{"no-version", device.Attributes{"a": version("1.2")}, `attribute "a": its value "1.2" is no semantic version`},
		{"no-version-in-list", device.Attributes{"a": {VersionValues: []string{"1.2.3", "v1.2.3"}}}, `attribute "a": its value "v1.2.3" is no semantic version`},
		{"no-value", device.Attributes{"a": {}}, `attribute "a": it has 0 kinds of value, not one`},
		{"two-values", device.Attributes{"a": {StringValue: new(""), BoolValue: new(true)}}, `attribute "a": it has 2 kinds of value, not one`},
		{"empty-list", device.Attributes{"a": {BoolValues: []bool{}}}, `attribute "a": its list of values is empty`},
		{"other-values", device.Attributes{"a": {IntValue: new(int64(1))}, "b": {BoolValue: new(false)}, "c": {BoolValues: []bool{true}}}, ""},
		{"id", device.Attributes{resourceapi.QualifiedName("_" + strings.Repeat("x", 31)): text("")}, ""},
		{"over-id", device.Attributes{resourceapi.QualifiedName("_" + strings.Repeat("x", 32)): text("")}, `attribute "_` + strings.Repeat("x", 32) + `": its name has 33 of 32 bytes`},
		{"no-id", device.Attributes{"a-b": text("")}, `attribute "a-b": its name: a valid C identifier`},
		{"empty-id", device.Attributes{"": text("")}, `attribute "": its name: a valid C identifier`},
		{"domain", device.Attributes{resourceapi.QualifiedName(strings.Repeat("d", 63) + "/a"): text("")}, ""},
		{"over-domain", device.Attributes{resourceapi.QualifiedName(strings.Repeat("d", 64) + "/a"): text("")}, `attribute "` + strings.Repeat("d", 64) + `/a": its domain has 64 of 63 bytes`},
		{"no-domain", device.Attributes{"/a": text("")}, `attribute "/a": its domain: a lowercase RFC 1123 subdomain`},
		{"bad-domain", device.Attributes{"a_b/c": text("")}, `attribute "a_b/c": its domain: a lowercase RFC 1123 subdomain`},
		{"deep", device.Attributes{"a/b/c": text("")}, `attribute "a/b/c": its name: a valid C identifier`},
		{"no-id-in-domain", device.Attributes{"a.b/": text("")}, `attribute "a.b/": its name: a valid C identifier`},
		{"twice", device.Attributes{driver + "/pool": text("")}, `attribute "networkdriver.cilium.io/pool": it is "pool", which is there as well`},
		{"ours", device.Attributes{driver + "/mine": text("")}, ""},
		{"first-by-name", device.Attributes{"b-": text(""), "a": {}, "c": {}}, `attribute "a": it has 0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := Config{Driver: driver, Node: "n1", Pools: everything("p")}
			good := vf("good", device.Attributes{"pfName": text("ens1f0")})
			got, problems := Build(config, []device.Device{vf(c.name, c.attrs), good}, nil)
			validate(t, config, got)
			want, reason := 2, ""
			if c.reason != "" {
				want = 1
			}
			if n := len(got.Pools["n1/p"].Slices[0].Devices); n != want {
				t.Errorf("%d devices are offered, want %d", n, want)
			}
			if len(problems) == 1 && problems[0].Kind == DeviceInvalid && problems[0].Pool == "p" && problems[0].Device == c.name {
				reason = problems[0].Reason
			} else if len(problems) > 0 {
				t.Errorf("problems: %q", problemTexts(problems))
			}
			if !strings.HasPrefix(reason, c.reason) || (reason == "") != (c.reason == "") {
				t.Errorf("reason %q, want %q", reason, c.reason)
			}
		})
	}
}

func TestEqual(t *testing.T) {
	build := func(change func(*Config, *devicetest.Device)) resourceslice.DriverResources {
		c := Config{Driver: driver, Node: "n1", Pools: everything("p")}
		d := vf("v", device.Attributes{
			"t": text("x"), "i": {IntValue: new(int64(1))}, "b": {BoolValue: new(true)}, "v": version("1.0.0"),
			"ts": {StringValues: []string{"x"}}, "is": {IntValues: []int64{1}}, "bs": {BoolValues: []bool{true}}, "vs": {VersionValues: []string{"1.0.0"}},
		})
		if change != nil {
			change(&c, &d)
		}
		r, problems := Build(c, []device.Device{d}, nil)
		if len(problems) > 0 {
			t.Fatalf("problems: %q", problemTexts(problems))
		}
		return r
	}
	first := build(nil)
	if !equal(first, build(nil)) {
		t.Error("two of the same differ")
	}
	for name, change := range map[string]func(*Config, *devicetest.Device){
		"node": func(c *Config, _ *devicetest.Device) { c.Node = "n2" },
		"pool": func(c *Config, _ *devicetest.Device) { c.Pools = everything("q") },
		"pools": func(c *Config, _ *devicetest.Device) {
			c.Pools = append(c.Pools, v2alpha1.DevicePool{Name: "q", Filter: &v2alpha1.DeviceFilter{Drivers: []string{"x"}}})
		},
		"driver":  func(c *Config, _ *devicetest.Device) { c.Driver = "other" },
		"device":  func(_ *Config, d *devicetest.Device) { d.ID = "w" },
		"manager": func(_ *Config, d *devicetest.Device) { d.Kind = device.Dummy },
		"missing": func(_ *Config, d *devicetest.Device) { delete(d.Attrs, "t") },
		"more":    func(_ *Config, d *devicetest.Device) { d.Attrs["u"] = text("x") },
		"kind":    func(_ *Config, d *devicetest.Device) { d.Attrs["t"] = version("1.0.0") },
		"text":    func(_ *Config, d *devicetest.Device) { d.Attrs["t"] = text("y") },
		"int": func(_ *Config, d *devicetest.Device) {
			d.Attrs["i"] = resourceapi.DeviceAttribute{IntValue: new(int64(2))}
		},
		"bool": func(_ *Config, d *devicetest.Device) {
			d.Attrs["b"] = resourceapi.DeviceAttribute{BoolValue: new(false)}
		},
		"version": func(_ *Config, d *devicetest.Device) { d.Attrs["v"] = version("1.0.1") },
		"texts": func(_ *Config, d *devicetest.Device) {
			d.Attrs["ts"] = resourceapi.DeviceAttribute{StringValues: []string{"x", "y"}}
		},
		"ints": func(_ *Config, d *devicetest.Device) {
			d.Attrs["is"] = resourceapi.DeviceAttribute{IntValues: []int64{2}}
		},
		"bools": func(_ *Config, d *devicetest.Device) {
			d.Attrs["bs"] = resourceapi.DeviceAttribute{BoolValues: []bool{false}}
		},
		"versions": func(_ *Config, d *devicetest.Device) {
			d.Attrs["vs"] = resourceapi.DeviceAttribute{VersionValues: []string{"1.0.1"}}
		},
	} {
		if equal(first, build(change)) {
			t.Errorf("another %s: it is called equal", name)
		}
	}
}

// TestBuildFromBefore: what is taken from an earlier result is what would be made anew.
func TestBuildFromBefore(t *testing.T) {
	base := func() device.Attributes {
		return device.Attributes{"a": text("1"), "b": text("2"), "pool": text("not its own")}
	}
	config := Config{Driver: driver, Node: "n1", Pools: everything("p")}
	for name, change := range map[string]func(*Config, *devicetest.Device){
		"nothing":           func(*Config, *devicetest.Device) {},
		"a value":           func(_ *Config, d *devicetest.Device) { d.Attrs["a"] = text("9") },
		"one more":          func(_ *Config, d *devicetest.Device) { d.Attrs["c"] = text("3") },
		"one less":          func(_ *Config, d *devicetest.Device) { delete(d.Attrs, "a") },
		"another":           func(_ *Config, d *devicetest.Device) { delete(d.Attrs, "a"); d.Attrs["c"] = text("1") },
		"a reserved one":    func(_ *Config, d *devicetest.Device) { delete(d.Attrs, "pool"); d.Attrs["deviceManager"] = text("x") },
		"an impossible one": func(_ *Config, d *devicetest.Device) { d.Attrs["a"] = text(strings.Repeat("x", 65)) },
		"the manager":       func(_ *Config, d *devicetest.Device) { d.Kind = device.Dummy },
		"the pool":          func(c *Config, _ *devicetest.Device) { c.Pools = everything("q") },
		"the name":          func(_ *Config, d *devicetest.Device) { d.ID = "w" },
	} {
		before, _ := Build(config, []device.Device{vf("u", base()), vf("v", base())}, nil)
		c, d := config, vf("v", base())
		change(&c, &d)
		devices := []device.Device{vf("u", base()), d}
		got, gotProblems := build(c, devices, nil, before)
		want, wantProblems := Build(c, devices, nil)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-anew +from before):\n%s", name, d)
		}
		if d := cmp.Diff(wantProblems, gotProblems); d != "" {
			t.Errorf("%s: problems (-anew +from before):\n%s", name, d)
		}
		if same := equal(before, got); same != (name == "nothing" || name == "a reserved one") {
			t.Errorf("%s changed: equal is %t", name, same)
		}
	}
}
