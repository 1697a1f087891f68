// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SwitchMode tells the mode of a PF's embedded switch, as devlink calls it ("legacy", "switchdev").
// fs.ErrNotExist: its driver does not say, or the kernel has no devlink.
func (m *Machine) SwitchMode(pf PCIAddr) (string, error) {
	if _, err := ParsePCIAddr(string(pf)); err != nil {
		return "", err
	}
	dev, err := netlink.DevLinkGetDeviceByName("pci", string(pf))
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		return "", fmt.Errorf("read the switch mode of %s: %w", pf, fs.ErrNotExist)
	case err != nil:
		return "", fmt.Errorf("read the switch mode of %s: %w", pf, err)
	case dev.Attrs.Eswitch.Mode == "":
		return "", fmt.Errorf("read the switch mode of %s: %w", pf, fs.ErrNotExist)
	}
	return dev.Attrs.Eswitch.Mode, nil
}
