// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"strings"
)

// ParsePCIAddr reads an address as sysfs writes it: domain of at least four digits, bus, device,
// function, in lower case.
func ParsePCIAddr(s string) (PCIAddr, error) {
	bad := fmt.Errorf("%q is no PCI address", s)
	domain, rest, ok := strings.Cut(s, ":")
	const least, most, tail = 4, 8, len("03:00.1")
	if !ok || len(domain) < least || len(domain) > most || len(rest) != tail {
		return "", bad
	}
	if rest[2] != ':' || rest[5] != '.' || rest[6] > '7' || rest[3] > '1' {
		return "", bad
	}
	if strings.Trim(domain+rest[:2]+rest[3:5]+rest[6:], "0123456789abcdef") != "" {
		return "", bad
	}
	return PCIAddr(s), nil
}

// pcieRoot is the root in the path of a device below /sys/devices.
func pcieRoot(device string) string {
	for part := range strings.SplitSeq(device, "/") {
		if digits, ok := strings.CutPrefix(part, "pci"); ok && strings.Contains(digits, ":") {
			return part
		}
	}
	return ""
}
