// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

// attributeDeviceID is what tools of the network plumbing group look for: the address that a NAD's
// delegate is given as its deviceID.
const attributeDeviceID resourceapi.QualifiedName = "k8s.cni.cncf.io/deviceID"

var _ device.Grouped = Device{}

// Device is a virtual function. It is a value: nobody changes it.
type Device struct {
	Addr            kernel.PCIAddr
	Driver          string // "" when none is bound
	Vendor          string
	DeviceID        string
	PFName          string // "" while the PF has no link in the host's network namespace
	VFID            int
	KernelIfaceName string // "" while it has no link in the host's network namespace

	// What follows is of this moment and not part of what is stored.
	pf         kernel.PCIAddr
	pcieRoot   string
	numaNode   int // -1: none is known
	iommuGroup string
}

// fromFunction gives the device of a VF and its PF, which may be the zero value.
func fromFunction(vf, pf kernel.Function) Device {
	return Device{
		Addr: vf.Addr, Driver: vf.Driver, Vendor: vf.Vendor, DeviceID: vf.Device,
		PFName: first(pf.Netdevs), VFID: vf.VFID, KernelIfaceName: first(vf.Netdevs),
		pf: vf.PF, pcieRoot: vf.PCIeRoot, numaNode: vf.NUMANode, iommuGroup: vf.IOMMUGroup,
	}
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// Name is the PCI address as a DNS label.
func (d Device) Name() string {
	return strings.NewReplacer(":", "-", ".", "-").Replace(string(d.Addr))
}

// Manager is device.SRIOV.
func (d Device) Manager() device.ManagerType { return device.SRIOV }

// Attributes are the VF's. One that the API would not take is left out: cut short it would be equal
// to another's.
func (d Device) Attributes() device.Attributes {
	all := device.Attributes{}
	text := func(name resourceapi.QualifiedName, value string) {
		if len(value) <= resourceapi.DeviceAttributeMaxValueLength && utf8.ValidString(value) {
			all[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	text("driver", d.Driver)
	text("vendor", d.Vendor)
	text("deviceID", d.DeviceID)
	text("pfName", d.PFName)
	text("kernelIfName", d.KernelIfaceName)
	text(attributeDeviceID, string(d.Addr))
	// The helper refuses an address of a wider domain, which the standard has no form for.
	if a, err := deviceattribute.GetPCIBusIDAttribute(string(d.Addr)); err == nil {
		all[a.Name] = a.Value
	}
	if d.pcieRoot != "" {
		text(deviceattribute.StandardDeviceAttributePCIeRoot, d.pcieRoot)
	}
	if d.numaNode >= 0 {
		all[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{
			IntValue: new(int64(d.numaNode)),
		}
	}
	return all
}

// Matches says whether the VF passes the filter. ParentIfNames is no constraint for a VF.
func (d Device) Matches(filter *v2alpha1.DeviceFilter) bool {
	if filter == nil {
		return false
	}
	passes := func(allowed []string, value string) bool {
		return len(allowed) == 0 || value != "" && slices.Contains(allowed, value)
	}
	return passes(filter.IfNames, d.KernelIfaceName) &&
		passes(filter.PFNames, d.PFName) &&
		passes(filter.PCIAddrs, string(d.Addr)) &&
		passes(filter.VendorIDs, d.Vendor) &&
		passes(filter.DeviceIDs, d.DeviceID) &&
		(len(filter.Drivers) == 0 || slices.Contains(filter.Drivers, d.Driver)) // "" is a VF without one
}

// Merge takes over the name of a link that is in a pod, and the PF's while that has none here. A VF
// that has another driver now has another link, if any.
func (d Device) Merge(prepared device.Device) device.Device {
	p, ok := prepared.(Device)
	if !ok || p.Addr != d.Addr || p.Driver != d.Driver {
		return d
	}
	if d.KernelIfaceName == "" {
		d.KernelIfaceName = p.KernelIfaceName
	}
	if d.PFName == "" {
		d.PFName = p.PFName
	}
	return d
}

// Group is the IOMMU group. Its device file is one process': with a VF that is handed over as that, a pod
// has all of the group.
func (d Device) Group() (name string, whole bool) {
	if d.iommuGroup == "" {
		return "", false
	}
	return "IOMMU group " + d.iommuGroup, isVFIO(d.Driver)
}

// Check refuses what can never be handed over.
func (d Device) Check(config v2alpha1.DeviceConfig) error {
	switch {
	case d.Driver == "":
		return fmt.Errorf("VF %s has no driver, so there is nothing that a pod could be given: "+
			"bind it to its network driver or to vfio-pci", d.Addr)
	case isVFIO(d.Driver) && config.PodIfName != "":
		return fmt.Errorf("podIfName %q: VF %s is bound to %s and has no network interface that could be named",
			config.PodIfName, d.Addr, d.Driver)
	case slices.Contains([]string{"uio_pci_generic", "igb_uio", "pci-stub"}, d.Driver):
		return fmt.Errorf("VF %s is bound to %s, which a pod cannot be given: bind it to its network driver or to vfio-pci",
			d.Addr, d.Driver)
	}
	return nil
}

// isVFIO knows vfio-pci and its variants for single NICs (mlx5_vfio_pci).
func isVFIO(driver string) bool {
	return strings.HasSuffix(strings.ReplaceAll(driver, "_", "-"), "vfio-pci")
}

// restore reads a device's JSON. Other keys, missing ones, other cases of letters and values of
// another type are fine: the address is all that is needed to give a VF back.
func restore(data json.RawMessage) (Device, error) {
	d := Device{numaNode: -1}
	var mismatch *json.UnmarshalTypeError
	if err := json.Unmarshal(data, &d); err != nil && !errors.As(err, &mismatch) {
		return Device{}, fmt.Errorf("read VF: %w", err)
	}
	addr, err := parseAddr(string(d.Addr))
	if err != nil {
		return Device{}, fmt.Errorf("read VF: %w", err)
	}
	d.Addr = addr
	return d, nil
}

// parseAddr accepts what sysfs may have for a name, so that nothing else ever becomes part of a path.
func parseAddr(s string) (kernel.PCIAddr, error) {
	hex := func(s string, minimum, maximum int) bool {
		return len(s) >= minimum && len(s) <= maximum && strings.Trim(s, "0123456789abcdef") == ""
	}
	lower := strings.ToLower(s)
	slot, function, dot := strings.Cut(lower, ".")
	parts := strings.Split(slot, ":")
	if !dot || len(parts) != 3 || !hex(parts[0], 4, 8) || !hex(parts[1], 2, 2) || !hex(parts[2], 2, 2) ||
		!hex(function, 1, 1) || function > "7" {
		return "", fmt.Errorf("address %q is no PCI address like 0000:03:00.1", s)
	}
	return kernel.PCIAddr(lower), nil
}
