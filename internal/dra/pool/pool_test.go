// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
	"github.com/weftnet/weft/internal/dra/pool"
)

func vf(name string) devicetest.Device {
	return devicetest.Device{
		ID: name, Kind: device.SRIOV, Addr: "0000:03:00." + name, Driver: "mlx5_core", Vendor: "0x15b3", DeviceID: "0x101e",
		PFName: "ens1f0", KernelIfaceName: "ens1f0v" + name,
	}
}

func dummy(name string) devicetest.Device {
	return devicetest.Device{ID: name, Kind: device.Dummy, KernelIfaceName: name}
}

func alloc(pool string, d devicetest.Device, share string) device.Allocation {
	return device.Allocation{DeviceName: d.ID, Manager: d.Kind, PreparedDevice: d, Pool: pool, ShareID: share}
}

func pools(all ...v2alpha1.DevicePool) []v2alpha1.DevicePool { return all }

func filtered(name string, f v2alpha1.DeviceFilter) v2alpha1.DevicePool {
	return v2alpha1.DevicePool{Name: name, Filter: &f}
}

// names are the devices' names by pool.
func names(a pool.Assignment) map[string][]string {
	all := map[string][]string{}
	for name, devices := range a.Pools {
		all[name] = []string{}
		for _, d := range devices {
			all[name] = append(all[name], d.Name())
		}
	}
	return all
}

func TestAssign(t *testing.T) {
	mlx, ens := v2alpha1.DeviceFilter{Drivers: []string{"mlx5_core"}}, v2alpha1.DeviceFilter{PFNames: []string{"ens1f0"}}
	every, none := v2alpha1.DeviceFilter{}, v2alpha1.DeviceFilter{Drivers: []string{"other"}}
	for _, c := range []struct {
		name        string
		devices     []device.Device
		allocations []device.Allocation
		pools       []v2alpha1.DevicePool
		want        map[string][]string
		withheld    []pool.Withheld
		conflicts   []pool.Conflict
	}{
		{name: "nothing", want: map[string][]string{}},
		{
			name: "T-16: no filter, empty filter", devices: []device.Device{vf("2"), dummy("dummy0")},
			pools: pools(v2alpha1.DevicePool{Name: "a"}, filtered("b", every), v2alpha1.DevicePool{Name: "c"}),
			want:  map[string][]string{"b": {"2", "dummy0"}},
		},
		{
			name: "a pool that nothing matches is offered all the same", devices: []device.Device{vf("2")},
			pools: pools(filtered("a", none)), want: map[string][]string{"a": {}},
		},
		{
			name: "deviceManagers", devices: []device.Device{vf("2"), dummy("dummy0")},
			pools: pools(filtered("s", v2alpha1.DeviceFilter{DeviceManagers: []string{"sr-iov"}}),
				filtered("d", v2alpha1.DeviceFilter{DeviceManagers: []string{"other", "dummy"}})),
			want: map[string][]string{"s": {"2"}, "d": {"dummy0"}},
		},
		{
			name: "T-14: several match, the first of the alphabet has it", devices: []device.Device{vf("3"), vf("2")},
			pools: pools(filtered("b", ens), filtered("a", mlx)),
			want:  map[string][]string{"a": {"2", "3"}, "b": {}},
			conflicts: []pool.Conflict{
				{Device: "2", Pool: "a", Pools: []string{"a", "b"}}, {Device: "3", Pool: "a", Pools: []string{"a", "b"}},
			},
		},
		{
			name: "T-14: prepared, then the filter changed", devices: []device.Device{vf("2"), vf("3")},
			allocations: []device.Allocation{alloc("a", vf("2"), "")},
			pools:       pools(filtered("a", none), filtered("b", ens)),
			want:        map[string][]string{"a": {"2"}, "b": {"3"}},
		},
		{
			name: "prepared in the second of the alphabet", devices: []device.Device{vf("2")},
			allocations: []device.Allocation{alloc("b", vf("2"), "")},
			pools:       pools(filtered("a", mlx), filtered("b", ens)),
			want:        map[string][]string{"a": {}, "b": {"2"}},
			conflicts:   []pool.Conflict{{Device: "2", Pool: "b", Pools: []string{"a", "b"}}},
		},
		{
			name: "prepared from a pool that is gone", devices: []device.Device{vf("2")},
			allocations: []device.Allocation{alloc("old", vf("2"), "")},
			pools:       pools(filtered("a", mlx)),
			want:        map[string][]string{"a": {}},
			withheld:    []pool.Withheld{{Device: "2", Reason: pool.Gone, Pools: []string{"old"}}},
		},
		{
			name: "prepared from a pool that lost its filter", devices: []device.Device{vf("2")},
			allocations: []device.Allocation{alloc("a", vf("2"), "")},
			pools:       pools(v2alpha1.DevicePool{Name: "a"}),
			want:        map[string][]string{},
			withheld:    []pool.Withheld{{Device: "2", Reason: pool.Gone, Pools: []string{"a"}}},
		},
		{
			name: "allocations of several pools", devices: []device.Device{vf("2"), vf("3")},
			allocations: []device.Allocation{alloc("b", vf("2"), "s1"), alloc("a", vf("2"), "s2"), alloc("b", vf("2"), "s3")},
			pools:       pools(filtered("a", every), filtered("b", none)),
			want:        map[string][]string{"a": {"3"}, "b": {}},
			withheld:    []pool.Withheld{{Device: "2", Reason: pool.Ambiguous, Pools: []string{"a", "b"}}},
		},
		{
			name: "shares of one pool", devices: []device.Device{vf("2")},
			allocations: []device.Allocation{alloc("b", vf("2"), "s1"), alloc("b", vf("2"), "s2")},
			pools:       pools(filtered("b", none)),
			want:        map[string][]string{"b": {"2"}},
		},
		{
			name: "allocation without pool", devices: []device.Device{vf("2")},
			allocations: []device.Allocation{alloc("", vf("2"), ""), alloc("a", vf("2"), "s")},
			pools:       pools(filtered("a", every), filtered("b", every)),
			want:        map[string][]string{"a": {}, "b": {}},
			withheld:    []pool.Withheld{{Device: "2", Reason: pool.Unnamed, Pools: []string{"", "a"}}},
			conflicts:   []pool.Conflict{{Device: "2", Pool: "", Pools: []string{"a", "b"}}},
		},
		{
			name: "T-57: prepared and no longer reported", devices: []device.Device{dummy("dummy0")},
			allocations: []device.Allocation{alloc("d", dummy("dummy4"), ""), alloc("old", dummy("dummy5"), "")},
			pools:       pools(filtered("d", every)),
			want:        map[string][]string{"d": {"dummy0", "dummy4"}},
			withheld:    []pool.Withheld{{Device: "dummy5", Reason: pool.Gone, Pools: []string{"old"}}},
		},
		{
			name:        "a row whose device has another name or none",
			allocations: []device.Allocation{{DeviceName: "x", PreparedDevice: dummy("y"), Pool: "d"}, {DeviceName: "z", Pool: "d"}},
			pools:       pools(filtered("d", every)), want: map[string][]string{"d": {}},
		},
		{
			name: "what validation refuses never offers a device twice", devices: []device.Device{vf("2"), nil, vf("2")},
			pools: pools(filtered("a", none), filtered("a", every)), want: map[string][]string{"a": {}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := pool.Assign(c.devices, c.allocations, c.pools)
			if d := cmp.Diff(c.want, names(got)); d != "" {
				t.Errorf("pools (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.withheld, got.Withheld); d != "" {
				t.Errorf("withheld (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.conflicts, got.Conflicts); d != "" {
				t.Errorf("conflicts (-want +got):\n%s", d)
			}
		})
	}
}

// TestReportedBeforePrepared: a device that is there is offered as it is now.
func TestReportedBeforePrepared(t *testing.T) {
	now, then := vf("2"), vf("2")
	now.PFName, then.PFName = "ens1f0np0", "ens1f0"
	got := pool.Assign([]device.Device{now}, []device.Allocation{alloc("p", then, "")}, pools(filtered("p", v2alpha1.DeviceFilter{})))
	if d := cmp.Diff([]device.Device{now}, got.Pools["p"]); d != "" {
		t.Errorf("offered (-want +got):\n%s", d)
	}
}

// TestSeveralFields: the fields of a filter are ANDed, the values of a field ORed.
func TestSeveralFields(t *testing.T) {
	for _, c := range []struct {
		filter v2alpha1.DeviceFilter
		want   bool
	}{
		{v2alpha1.DeviceFilter{DeviceManagers: []string{"sr-iov"}, PFNames: []string{"x", "ens1f0"}, VendorIDs: []string{"0x15b3"}}, true},
		{v2alpha1.DeviceFilter{DeviceManagers: []string{"sr-iov"}, PFNames: []string{"x"}}, false},
		{v2alpha1.DeviceFilter{DeviceManagers: []string{"dummy"}, PFNames: []string{"ens1f0"}}, false},
		{v2alpha1.DeviceFilter{DeviceManagers: []string{"SR-IOV"}}, false},
		{v2alpha1.DeviceFilter{DeviceManagers: []string{""}}, false},
	} {
		got := len(pool.Assign([]device.Device{vf("2")}, nil, pools(filtered("p", c.filter))).Pools["p"]) == 1
		if got != c.want {
			t.Errorf("%+v matches %t, want %t", c.filter, got, c.want)
		}
	}
}

// TestAssignProperties: whatever there is, a device is in at most one pool; what is prepared is
// in the pool of its allocations or in none; and no order of the input changes the outcome.
func TestAssignProperties(t *testing.T) {
	name, poolName := rapid.SampledFrom([]string{"d0", "d1", "d2", "d3"}), rapid.SampledFrom([]string{"a", "b", "c"})
	dev := rapid.Custom(func(t *rapid.T) devicetest.Device {
		return devicetest.Device{
			ID: name.Draw(t, "name"), Kind: rapid.SampledFrom([]device.ManagerType{device.SRIOV, device.Dummy}).Draw(t, "kind"),
			PFName: rapid.SampledFrom([]string{"", "x"}).Draw(t, "pf"), Driver: rapid.SampledFrom([]string{"", "y"}).Draw(t, "driver"),
		}
	})
	some := func(values ...string) *rapid.Generator[[]string] {
		return rapid.SliceOfN(rapid.SampledFrom(values), 0, 1)
	}
	config := rapid.Custom(func(t *rapid.T) v2alpha1.DevicePool {
		p := v2alpha1.DevicePool{Name: poolName.Draw(t, "pool")}
		if rapid.IntRange(0, 3).Draw(t, "filtered") > 0 {
			p.Filter = &v2alpha1.DeviceFilter{
				DeviceManagers: some("sr-iov", "dummy").Draw(t, "managers"),
				PFNames:        some("", "x").Draw(t, "pfs"), Drivers: some("y", "z").Draw(t, "drivers"),
			}
		}
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		configs := rapid.SliceOfNDistinct(config, 0, 3, func(p v2alpha1.DevicePool) string { return p.Name }).Draw(t, "pools")
		var devices []device.Device
		for _, d := range rapid.SliceOfDistinct(dev, devicetest.Device.Name).Draw(t, "devices") {
			devices = append(devices, d)
		}
		var rows []device.Allocation
		pinned := map[string][]string{}
		for i := range rapid.IntRange(0, 4).Draw(t, "allocations") {
			a := alloc(poolName.Draw(t, "of"), dev.Draw(t, "prepared"), fmt.Sprint(i))
			rows = append(rows, a)
			pinned[a.DeviceName] = append(pinned[a.DeviceName], a.Pool)
		}
		got := pool.Assign(devices, rows, configs)
		in := map[string]string{}
		for p, list := range got.Pools {
			if !slices.ContainsFunc(configs, func(c v2alpha1.DevicePool) bool { return c.Name == p && c.Filter != nil }) {
				t.Fatalf("pool %s is offered and has no filter", p)
			}
			for _, d := range list {
				if other, twice := in[d.Name()]; twice {
					t.Fatalf("%s is in %s and %s", d.Name(), other, p)
				}
				in[d.Name()] = p
			}
		}
		for name, of := range pinned {
			slices.Sort(of)
			of = slices.Compact(of)
			at, offered := in[name]
			if offered && (len(of) != 1 || of[0] != at) {
				t.Fatalf("%s is offered in %s and its allocations name %q", name, at, of)
			}
			held := slices.ContainsFunc(got.Withheld, func(w pool.Withheld) bool { return w.Device == name })
			if held == offered {
				t.Fatalf("%s: withheld %t, offered %t", name, held, offered)
			}
		}
		// Prepared devices that are not reported are taken from the first allocation: those stay in order.
		again := pool.Assign(rapid.Permutation(devices).Draw(t, "order"), rows, rapid.Permutation(configs).Draw(t, "order of pools"))
		if d := cmp.Diff(got, again, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("another order gives another assignment (-first +second):\n%s", d)
		}
	})
}
