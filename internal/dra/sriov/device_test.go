// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
)

// vf2 is the first VF of the cases' fixture.
func vf2() Device {
	return Device{
		Addr: "0000:03:00.2", Driver: "mlx5_core", Vendor: "0x15b3", DeviceID: "0x101e", PFName: "ens1f0",
		VFID: 0, KernelIfaceName: "ens1f0v0", pf: "0000:03:00.0", pcieRoot: "pci0000:00", numaNode: 1,
	}
}

func attributes(texts map[string]string) device.Attributes {
	all := device.Attributes{}
	for name, value := range texts {
		all[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{StringValue: &value}
	}
	return all
}

// T-1, with those of decision 11 and the standard ones.
func TestAttributes(t *testing.T) {
	want := attributes(map[string]string{
		"driver": "mlx5_core", "vendor": "0x15b3", "deviceID": "0x101e", "pfName": "ens1f0", "kernelIfName": "ens1f0v0",
		"resource.kubernetes.io/pciBusID": "0000:03:00.2", "resource.kubernetes.io/pcieRoot": "pci0000:00",
		"k8s.cni.cncf.io/deviceID": "0000:03:00.2",
	})
	want["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: new(int64(1))}
	if diff := cmp.Diff(want, vf2().Attributes()); diff != "" {
		t.Error(diff)
	}
	if got := vf2().Name(); got != "0000-03-00-2" {
		t.Errorf("name %q", got)
	}
}

func TestAttributesThatTheAPIRefuses(t *testing.T) {
	d := Device{Addr: "10000:03:00.2", Driver: strings.Repeat("x", 65), PFName: "en\xff", numaNode: -1}
	// Empty texts are fine; a wider PCI domain has no standard form; no NUMA node is no attribute.
	want := attributes(map[string]string{
		"vendor": "", "deviceID": "", "kernelIfName": "", "k8s.cni.cncf.io/deviceID": "10000:03:00.2",
	})
	if diff := cmp.Diff(want, d.Attributes()); diff != "" {
		t.Error(diff)
	}
	d.Driver = strings.Repeat("x", 64)
	if _, ok := d.Attributes()["driver"]; !ok {
		t.Error("a driver of 64 bytes is left out")
	}
}

// T-18, but for DeviceManagers, which is not the device's.
func TestMatches(t *testing.T) {
	vfio := vf2()
	vfio.Driver, vfio.KernelIfaceName = "vfio-pci", ""
	free := vf2()
	free.Driver, free.KernelIfaceName = "", ""
	one := func(value string) []string { return []string{"other", value} }
	tests := []struct {
		name   string
		dev    Device
		filter *v2alpha1.DeviceFilter
		want   bool
	}{
		{"none", vf2(), nil, false},
		{"empty", vf2(), &v2alpha1.DeviceFilter{}, true},
		{"ifNames", vf2(), &v2alpha1.DeviceFilter{IfNames: one("ens1f0v0")}, true},
		{"ifNames is no prefix", vf2(), &v2alpha1.DeviceFilter{IfNames: one("ens1f0v")}, false},
		{"ifNames of a VF without link", vfio, &v2alpha1.DeviceFilter{IfNames: one("")}, false},
		{"pfNames", vf2(), &v2alpha1.DeviceFilter{PFNames: one("ens1f0")}, true},
		{"other pfNames", vf2(), &v2alpha1.DeviceFilter{PFNames: one("ens1f1")}, false},
		{"parentIfNames", vf2(), &v2alpha1.DeviceFilter{ParentIfNames: one("x")}, true},
		{"pciAddrs", vf2(), &v2alpha1.DeviceFilter{PCIAddrs: one("0000:03:00.2")}, true},
		{"other pciAddrs", vf2(), &v2alpha1.DeviceFilter{PCIAddrs: one("0000:03:00.3")}, false},
		{"vendorIDs", vf2(), &v2alpha1.DeviceFilter{VendorIDs: one("0x15b3")}, true},
		{"vendorIDs without 0x", vf2(), &v2alpha1.DeviceFilter{VendorIDs: one("15b3")}, false},
		{"deviceIDs", vf2(), &v2alpha1.DeviceFilter{DeviceIDs: one("0x101e")}, true},
		{"other deviceIDs", vf2(), &v2alpha1.DeviceFilter{DeviceIDs: one("0x101f")}, false},
		{"drivers", vfio, &v2alpha1.DeviceFilter{Drivers: one("vfio-pci")}, true},
		{"other drivers", vf2(), &v2alpha1.DeviceFilter{Drivers: one("vfio-pci")}, false},
		{"no driver", free, &v2alpha1.DeviceFilter{Drivers: one("")}, true},
		{"no driver, and another", vf2(), &v2alpha1.DeviceFilter{Drivers: one("")}, false},
		{"any driver", free, &v2alpha1.DeviceFilter{Drivers: one("vfio-pci")}, false},
		{"all of them", vf2(), &v2alpha1.DeviceFilter{
			IfNames: one("ens1f0v0"), PFNames: one("ens1f0"), PCIAddrs: one("0000:03:00.2"),
			VendorIDs: one("0x15b3"), DeviceIDs: one("0x101e"), Drivers: one("mlx5_core"),
		}, true},
		{"all but one", vf2(), &v2alpha1.DeviceFilter{IfNames: one("ens1f0v0"), PFNames: one("x")}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.dev.Matches(test.filter); got != test.want {
				t.Errorf("matches %t, want %t", got, test.want)
			}
		})
	}
}

// T-19.
func TestMerge(t *testing.T) {
	away := vf2()
	away.KernelIfaceName, away.PFName = "", ""
	if diff := cmp.Diff(device.Device(vf2()), away.Merge(vf2()), cmp.AllowUnexported(Device{})); diff != "" {
		t.Error(diff)
	}
	rebound := away
	rebound.Driver = "vfio-pci"
	if got := rebound.Merge(vf2()); got != rebound {
		t.Errorf("a VF with another driver took over %v", got)
	}
	renamed := vf2()
	renamed.KernelIfaceName, renamed.PFName = "ens1f0np0v0", "ens1f0np0"
	if got := renamed.Merge(vf2()); got != renamed {
		t.Errorf("new names were lost: %v", got)
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		driver string
		config v2alpha1.DeviceConfig
		says   string // "" when it is fine
	}{
		{"link", "mlx5_core", v2alpha1.DeviceConfig{PodIfName: "net1", VLAN: 5}, ""},
		{"vfio", "vfio-pci", v2alpha1.DeviceConfig{VLAN: 5}, ""},
		{"vfio with a name", "vfio-pci", v2alpha1.DeviceConfig{PodIfName: "net1"}, `podIfName "net1"`},
		{"vfio of the vendor with a name", "mlx5_vfio_pci", v2alpha1.DeviceConfig{PodIfName: "net1"}, "mlx5_vfio_pci"},
		{"no driver", "", v2alpha1.DeviceConfig{}, "0000:03:00.2 has no driver"},
		{"uio", "uio_pci_generic", v2alpha1.DeviceConfig{}, "uio_pci_generic"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := vf2()
			d.Driver = test.driver
			err := d.Check(test.config)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

// The keys of the claim's status entry, which other drivers wrote and will read.
func TestJSON(t *testing.T) {
	const text = `{"Addr":"0000:03:00.2","Driver":"mlx5_core","Vendor":"0x15b3","DeviceID":"0x101e","PFName":"ens1f0","VFID":0,"KernelIfaceName":"ens1f0v0"}`
	got, err := json.Marshal(vf2())
	if err != nil || string(got) != text {
		t.Errorf("%s, %v", got, err)
	}
}

func TestRestoreDevice(t *testing.T) {
	full := Device{
		Addr: "0000:03:00.2", Driver: "mlx5_core", Vendor: "0x15b3", DeviceID: "0x101e", PFName: "ens1f0", VFID: 1,
		KernelIfaceName: "v", numaNode: -1,
	}
	tests := []struct {
		name string
		text string
		want Device
		says string
	}{
		{
			name: "whole", want: full,
			text: `{"Addr":"0000:03:00.2","Driver":"mlx5_core","Vendor":"0x15b3","DeviceID":"0x101e","PFName":"ens1f0","VFID":1,"KernelIfaceName":"v"}`,
		},
		{
			name: "lower case and more", want: full,
			text: `{"addr":"0000:03:00.2","driver":"mlx5_core","vendor":"0x15b3","deviceid":"0x101e","pfname":"ens1f0","vfid":1,"kernelifacename":"v","new":[]}`,
		},
		{name: "address only", text: `{"Addr":"0000:03:00.A"}`, says: `"0000:03:00.A"`},
		{name: "upper case address", text: `{"Addr":"0000:3B:00.2"}`, want: Device{Addr: "0000:3b:00.2", numaNode: -1}},
		{name: "another type", text: `{"VFID":"1","Addr":"0000:03:00.2"}`, want: Device{Addr: "0000:03:00.2", numaNode: -1}},
		{name: "wide domain", text: `{"Addr":"10000:03:00.2"}`, want: Device{Addr: "10000:03:00.2", numaNode: -1}},
		{name: "a path", text: `{"Addr":"../../../etc"}`, says: "no PCI address"},
		{name: "nothing", text: `null`, says: "no PCI address"},
		{name: "no object", text: `7`, says: "no PCI address"},
		{name: "no JSON", text: `{"Addr":`, says: "read VF"},
		{name: "empty", text: ``, says: "read VF"},
	}
	m := New(Config{})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := m.RestoreDevice(json.RawMessage(test.text))
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%v, %v; want an error with %q", got, err, test.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(device.Device(test.want), got, cmp.AllowUnexported(Device{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever is in a status: no panic, and what is accepted is stable and fit for a ResourceSlice.
func FuzzRestoreDevice(f *testing.F) {
	f.Add(`{"Addr":"0000:03:00.2","VFID":1}`)
	f.Add(`{"addr":"10000:03:00.7","Driver":null}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := restore(json.RawMessage(text))
		if err != nil {
			return
		}
		if name := d.Name(); len(name) > 63 || strings.Trim(name, "abcdef0123456789-") != "" {
			t.Fatalf("name %q", name)
		}
		for name, a := range d.Attributes() {
			if a.StringValue != nil && len(*a.StringValue) > 64 {
				t.Fatalf("%s is %q", name, *a.StringValue)
			}
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		// JSON has no invalid UTF-8, so it is the second reading that must be the third.
		second, err := restore(again)
		if err != nil || second != d {
			t.Fatalf("%v, %v after %v", second, err, d)
		}
	})
}
