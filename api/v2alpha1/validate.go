// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of a configuration. Those of names are the Kubernetes API's.
const (
	MaxDriverName    = 63
	MaxPoolName      = 64  // the pool's name is the value of a device attribute
	MaxSlicePoolName = 253 // <node>/<pool>
	MaxPools         = 64
	MaxFilterValues  = 256 // of one field
	MaxIfaces        = 256
	MaxVFCount       = 65535 // a PCI function counts its VFs in 16 bits
	MaxDummyCount    = 4096
	MaxSeconds       = 3600
	MaxAttempts      = 1000000

	maxIfName = 15 // the kernel's IFNAMSIZ without the byte that ends it
	maxPath   = 1024
	maxDriver = 64 // of a kernel driver: the limit of a device attribute
)

// Validate finds everything that is wrong with the spec, whatever node it is for. The error joins
// one *field.Error per fault, each of which names the field, from "spec" on, and its value.
func (s *CiliumNetworkDriverNodeConfigSpec) Validate() error {
	return joined(s.Faults(field.NewPath("spec")))
}

// ValidateFor is Validate for the node that the spec is for, whose name is part of its pools'.
func (s *CiliumNetworkDriverNodeConfigSpec) ValidateFor(node string) error {
	spec := field.NewPath("spec")
	faults := s.Faults(spec)
	if reasons := validation.IsDNS1123Subdomain(node); len(reasons) > 0 {
		faults = append(faults, field.Invalid(field.NewPath("metadata", "name"), node, reasons[0]))
	}
	for i, p := range s.Pools {
		// A name that is too long in itself is said already.
		if n := len(node) + len("/") + len(p.Name); n > MaxSlicePoolName && len(p.Name) <= MaxPoolName {
			faults = append(faults, field.Invalid(spec.Child("pools").Index(i).Child("name"), p.Name,
				fmt.Sprintf("with the node's name %q before it, it has %d bytes, of which a ResourceSlice takes %d", node, n, MaxSlicePoolName)))
		}
	}
	return joined(faults)
}

// Validate is that of the nodes' spec, and of the selector.
func (s *CiliumNetworkDriverClusterConfigSpec) Validate() error {
	return joined(s.Faults(field.NewPath("spec")))
}

// joined is an error with all faults, nil without any.
func joined(faults field.ErrorList) error {
	all := make([]error, len(faults))
	for i, f := range faults {
		all[i] = f
	}
	return errors.Join(all...)
}

// Faults are what Validate joins, for a spec that stands at path.
func (s *CiliumNetworkDriverClusterConfigSpec) Faults(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if s.NodeSelector != nil {
		faults = append(faults, selectorFaults(path.Child("nodeSelector"), s.NodeSelector)...)
	}
	if s.Spec == nil {
		return append(faults, field.Required(path.Child("spec"), "it is what the selected nodes get"))
	}
	return append(faults, s.Spec.Faults(path.Child("spec"))...)
}

// selectorFaults: the API's own words, but those for an operator name no operator that there is.
func selectorFaults(path *field.Path, selector *metav1.LabelSelector) field.ErrorList {
	faults := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
	for _, f := range faults {
		if strings.HasSuffix(f.Field, ".operator") {
			f.Detail = "must be In, NotIn, Exists or DoesNotExist"
		}
	}
	return faults
}

// Faults are what Validate joins, for a spec that stands at path.
func (s *CiliumNetworkDriverNodeConfigSpec) Faults(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	if s.DriverName != "" {
		faults = append(faults, subdomain(path.Child("driverName"), s.DriverName, MaxDriverName)...)
	}
	faults = append(faults, between(path.Child("draRegistrationRetryInterval"), s.DRARegistrationRetryInterval, MaxSeconds)...)
	faults = append(faults, between(path.Child("draRegistrationTimeout"), s.DRARegistrationTimeout, MaxSeconds)...)
	faults = append(faults, between(path.Child("draRegistrationMaxAttempts"), s.DRARegistrationMaxAttempts, MaxAttempts)...)
	if m := s.DeviceManagerConfigs; m != nil {
		at := path.Child("deviceManagerConfigs")
		if m.SRIOV != nil {
			faults = append(faults, m.SRIOV.faults(at.Child("sriov"))...)
		}
		if m.Dummy != nil {
			faults = append(faults, between(at.Child("dummy", "count"), int64(m.Dummy.Count), MaxDummyCount)...)
		}
	}
	return append(faults, poolFaults(path.Child("pools"), s.Pools)...)
}

func (c *SRIOVConfig) faults(at *field.Path) field.ErrorList {
	var faults field.ErrorList
	root, where := c.SysBusPCIDevPath, at.Child("sysBusPCIDevPath")
	switch {
	case root == "":
	case len(root) > maxPath:
		faults = append(faults, field.TooLong(where, root, maxPath))
	case !path.IsAbs(root) || strings.ContainsRune(root, 0):
		faults = append(faults, field.Invalid(where, root, "must be an absolute path, the root of sysfs"))
	case path.Clean(root) != strings.TrimSuffix(root, "/") && root != "/":
		faults = append(faults, field.Invalid(where, root, "must be a path without ., .. and double slashes: "+path.Clean(root)))
	}
	if len(c.Ifaces) > MaxIfaces {
		faults = append(faults, field.TooMany(at.Child("ifaces"), len(c.Ifaces), MaxIfaces))
	}
	seen := map[string]bool{}
	for i, iface := range c.Ifaces {
		at := at.Child("ifaces").Index(i)
		faults = append(faults, ifName(at.Child("ifName"), iface.IfName)...)
		if seen[iface.IfName] {
			faults = append(faults, field.Duplicate(at.Child("ifName"), iface.IfName))
		}
		seen[iface.IfName] = true
		faults = append(faults, between(at.Child("vfCount"), int64(iface.VFCount), MaxVFCount)...)
	}
	return faults
}

func poolFaults(at *field.Path, pools []DevicePool) field.ErrorList {
	var faults field.ErrorList
	if len(pools) > MaxPools {
		faults = append(faults, field.TooMany(at, len(pools), MaxPools))
	}
	names, links := map[string]bool{}, map[string]int{}
	for i, p := range pools {
		at := at.Index(i)
		if p.Name == "" {
			faults = append(faults, field.Required(at.Child("name"), "a pool has a name"))
		} else {
			faults = append(faults, subdomain(at.Child("name"), p.Name, MaxPoolName)...)
		}
		if names[p.Name] {
			faults = append(faults, field.Duplicate(at.Child("name"), p.Name))
		}
		names[p.Name] = true
		if p.Filter == nil {
			continue
		}
		faults = append(faults, p.Filter.faults(at.Child("filter"))...)
		for j, link := range p.Filter.IfNames {
			if first, seen := links[link]; !seen {
				links[link] = i
			} else if first != i {
				faults = append(faults, field.Invalid(at.Child("filter", "ifNames").Index(j), link,
					fmt.Sprintf("names one device, which is of pools[%d] (%q) already", first, pools[first].Name)))
			}
		}
	}
	return faults
}

func (f *DeviceFilter) faults(at *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, list := range []struct {
		name   string
		values []string
		check  func(*field.Path, string) field.ErrorList
	}{
		{"deviceManagers", f.DeviceManagers, manager},
		{"ifNames", f.IfNames, ifName},
		{"pfNames", f.PFNames, ifName},
		{"parentIfNames", f.ParentIfNames, ifName},
		{"pciAddrs", f.PCIAddrs, pciAddr},
		{"vendorIDs", f.VendorIDs, pciID},
		{"deviceIDs", f.DeviceIDs, pciID},
		{"drivers", f.Drivers, driver},
	} {
		at := at.Child(list.name)
		if len(list.values) > MaxFilterValues {
			faults = append(faults, field.TooMany(at, len(list.values), MaxFilterValues))
		}
		seen := map[string]bool{}
		for i, v := range list.values {
			faults = append(faults, list.check(at.Index(i), v)...)
			if seen[v] {
				faults = append(faults, field.Duplicate(at.Index(i), v))
			}
			seen[v] = true
		}
	}
	return faults
}

func between(at *field.Path, n, most int64) field.ErrorList {
	if n < 0 || n > most {
		return field.ErrorList{field.Invalid(at, n, fmt.Sprintf("must be 0 to %d", most))}
	}
	return nil
}

func subdomain(at *field.Path, name string, most int) field.ErrorList {
	if len(name) > most {
		return field.ErrorList{field.Invalid(at, name, fmt.Sprintf("has %d bytes, must have at most %d", len(name), most))}
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return field.ErrorList{field.Invalid(at, name, "must be a lower-case DNS subdomain: letters a to z, digits and hyphens, in parts that dots separate and that begin and end with a letter or digit")}
	}
	return nil
}

// ifName is the kernel's rule for the name of a link.
func ifName(at *field.Path, name string) field.ErrorList {
	if reason := linkFault(name); reason != "" {
		return field.ErrorList{field.Invalid(at, name, reason)}
	}
	return nil
}

func linkFault(name string) string {
	switch {
	case name == "":
		return "must not be empty"
	case len(name) > maxIfName:
		return fmt.Sprintf("has %d bytes, the name of an interface at most %d", len(name), maxIfName)
	case name == "." || name == "..":
		return "cannot be the name of an interface"
	}
	for _, c := range []byte(name) {
		// 0xa0 is a white space to the kernel, which reads bytes.
		if c == '/' || c == ':' || c == 0 || c == ' ' || c == 0xa0 || c >= '\t' && c <= '\r' {
			return "must hold no slash, colon or white space, as the name of an interface"
		}
	}
	return ""
}

func manager(at *field.Path, name string) field.ErrorList {
	if name == "" || len(name) > MaxDriverName {
		return field.ErrorList{field.Invalid(at, name, "must be the name of a device manager: sr-iov, dummy")}
	}
	return nil
}

func driver(at *field.Path, name string) field.ErrorList {
	if len(name) > maxDriver {
		return field.ErrorList{field.Invalid(at, name, fmt.Sprintf("has %d bytes, must have at most %d", len(name), maxDriver))}
	}
	return nil
}

func pciAddr(at *field.Path, addr string) field.ErrorList {
	if !regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`).MatchString(addr) {
		return field.ErrorList{field.Invalid(at, addr, "must be a PCI address with domain, in lower case, such as 0000:03:00.2")}
	}
	return nil
}

func pciID(at *field.Path, id string) field.ErrorList {
	if !regexp.MustCompile(`^0x[0-9a-f]{4}$`).MatchString(id) {
		return field.ErrorList{field.Invalid(at, id, "must be 0x and four hexadecimal digits in lower case, such as 0x15b3")}
	}
	return nil
}
