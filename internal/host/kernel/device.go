// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// PCIAddr is the address of a PCI function, as sysfs writes it: "0000:03:00.1".
type PCIAddr string

// Function is a PCI network function as sysfs shows it.
type Function struct {
	Addr       PCIAddr
	Class      uint32  // 0x020000 is Ethernet
	Vendor     string  // "0x8086"
	Device     string  // "0x10ca"
	Driver     string  // "" when none is bound
	PF         PCIAddr // of a VF: its physical function; "" for everything else
	VFID       int     // of a VF: N of the PF's virtfnN; -1 for everything else
	TotalVFs   int     // of a PF: how many it can have; 0 without SR-IOV
	NumVFs     int     // of a PF: how many it has
	NUMANode   int     // -1 when it has none
	PCIeRoot   string  // "pci0000:00"
	IOMMUGroup string  // "" without an IOMMU
	// Netdevs are the names of its links in the network namespace that sysfs was mounted in,
	// the uplink first where there are representors.
	Netdevs []string
}

// Namespace names a network namespace. The zero value is the host's own: that of the process.
type Namespace struct {
	Path string `json:"path,omitempty"` // a bind mount, or /proc/<pid>/ns/net
	// ID is the inode of the namespace; not 0: what is at Path must be that one, otherwise
	// the namespace is gone (fs.ErrNotExist).
	ID uint64 `json:"id,omitempty"`
}

// LinkState is what a link had before Weft touched it, and gets back.
type LinkState struct {
	Name     string           `json:"name"`
	AltNames []string         `json:"altNames,omitempty"`
	MAC      net.HardwareAddr `json:"mac,omitempty"`
	MTU      int              `json:"mtu,omitempty"`
	Up       bool             `json:"up,omitempty"`
}

// VF is the state of a virtual function that its PF keeps, as the PF's driver shows it.
type VF struct {
	ID    int              `json:"id"`
	MAC   net.HardwareAddr `json:"mac,omitempty"` // all zero or empty: the PF set none
	VLAN  int              `json:"vlan"`          // 0: none
	QoS   int              `json:"qos"`
	Trust *bool            `json:"trust,omitempty"` // nil: the driver does not show it
	Spoof *bool            `json:"spoof,omitempty"` // nil: the driver does not show it
}

// VFChange says what of a VF is to be set; nil leaves it alone, but VLAN 0 without QoS clears the
// QoS as well.
type VFChange struct {
	MAC   net.HardwareAddr // all zero: the PF no longer fixes one
	VLAN  *int             // 0 to 4094; 0 clears it
	QoS   *int             // 0 to 7
	Trust *bool
	Spoof *bool
}

// StateOf is what is to be known of a link in order to restore it.
func StateOf(l Link) LinkState {
	return LinkState{Name: l.Name, AltNames: l.AltNames, MAC: l.MAC, MTU: l.MTU, Up: l.Up}
}

// Validate says what of a change no VF can have.
func (c VFChange) Validate() error {
	const maxVLAN, maxQoS, macLen = 4094, 7, 6
	switch {
	case c.VLAN != nil && (*c.VLAN < 0 || *c.VLAN > maxVLAN):
		return fmt.Errorf("VLAN %d: %w", *c.VLAN, unix.EINVAL)
	case c.QoS != nil && (*c.QoS < 0 || *c.QoS > maxQoS):
		return fmt.Errorf("QoS %d: %w", *c.QoS, unix.EINVAL)
	case c.MAC != nil && len(c.MAC) != macLen:
		return fmt.Errorf("address %s: %w", c.MAC, unix.EINVAL)
	}
	return nil
}
