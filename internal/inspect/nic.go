// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
)

// NIC is all that a report about a network card has to say, as its kernel and driver tell it.
type NIC struct {
	Kernel        string   `json:"kernel"`
	Interface     string   `json:"interface"`
	PCIAddress    string   `json:"pciAddress"`
	Vendor        string   `json:"vendor"`
	Device        string   `json:"device"`
	Driver        string   `json:"driver"`
	DriverVersion string   `json:"driverVersion,omitempty"` // of one that is not the kernel's own
	SwitchMode    string   `json:"switchMode"`              // "legacy", "switchdev"; "unknown": the driver does not tell
	NUMANode      int      `json:"numaNode"`                // -1: none
	PCIeRoot      string   `json:"pcieRoot"`
	IOMMU         bool     `json:"iommu"`
	PF            string   `json:"pf,omitempty"` // the interface is a virtual function of this one
	TotalVFs      int      `json:"totalVFs"`
	NumVFs        int      `json:"numVFs"`
	VFs           []NICVF  `json:"vfs"`
	Problems      []string `json:"problems"` // what could not be read, and why
}

// NICVF is a virtual function, as itself and as its PF see it.
type NICVF struct {
	ID         int    `json:"id"`
	PCIAddress string `json:"pciAddress"`
	Driver     string `json:"driver"`
	Interface  string `json:"interface"` // "": none in this network namespace
	IOMMUGroup string `json:"iommuGroup,omitempty"`
	MAC        string `json:"mac"`
	VLAN       int    `json:"vlan"`
	QoS        int    `json:"qos"`
	Trust      *bool  `json:"trust,omitempty"`
	Spoof      *bool  `json:"spoofCheck,omitempty"`
}

// cards is what is needed of kernel.Machine.
type cards interface {
	Functions() ([]kernel.Function, error)
	LinkOf(ns kernel.Namespace, addr kernel.PCIAddr) (kernel.Link, error)
	Link(ns kernel.Namespace, name string) (kernel.Link, error)
	VF(pf kernel.PCIAddr, vf int) (kernel.VF, error)
	SwitchMode(pf kernel.PCIAddr) (string, error)
}

// LookAtNIC describes the card of an interface of this network namespace, which may be called by an
// alternative name. It changes nothing. A fault of a part is in the report.
func LookAtNIC(machine cards, sysfs, name string) (*NIC, error) {
	link, err := machine.Link(kernel.Namespace{}, name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	if link.PCI == "" {
		return nil, fmt.Errorf("interface %s is no PCI device (kind %q): there is nothing to say about SR-IOV", name, link.Kind)
	}
	functions, err := machine.Functions()
	n := &NIC{Interface: link.Name, PCIAddress: string(link.PCI), Kernel: release(), VFs: []NICVF{}, Problems: []string{}}
	n.problem(err)
	i := slices.IndexFunc(functions, func(f kernel.Function) bool { return f.Addr == link.PCI })
	if i < 0 {
		return nil, errors.Join(fmt.Errorf("interface %s: its PCI device %s is no network function below %s", name, link.PCI, sysfs), err)
	}
	n.describe(functions[i], machine, sysfs)
	for _, f := range functions {
		n.IOMMU = n.IOMMU || f.IOMMUGroup != ""
		if f.PF == link.PCI {
			n.VFs = append(n.VFs, n.vf(f, machine))
		}
	}
	slices.SortFunc(n.VFs, func(a, b NICVF) int { return a.ID - b.ID })
	return n, nil
}

func (n *NIC) problem(err error) {
	if err != nil {
		n.Problems = append(n.Problems, err.Error())
	}
}

func (n *NIC) describe(f kernel.Function, machine cards, sysfs string) {
	n.Vendor, n.Device, n.Driver, n.NUMANode, n.PCIeRoot = f.Vendor, f.Device, f.Driver, f.NUMANode, f.PCIeRoot
	n.PF, n.TotalVFs, n.NumVFs, n.SwitchMode = string(f.PF), f.TotalVFs, f.NumVFs, "unknown"
	if mode, err := machine.SwitchMode(f.Addr); err == nil {
		n.SwitchMode = mode
	} else if !errors.Is(err, fs.ErrNotExist) {
		n.problem(err)
	}
	version, err := os.ReadFile(filepath.Join(sysfs, "bus/pci/drivers", f.Driver, "module/version"))
	if err == nil {
		n.DriverVersion = strings.TrimSpace(string(version))
	} else if !errors.Is(err, fs.ErrNotExist) {
		n.problem(err)
	}
}

func (n *NIC) vf(f kernel.Function, machine cards) NICVF {
	vf := NICVF{ID: f.VFID, PCIAddress: string(f.Addr), Driver: f.Driver, IOMMUGroup: f.IOMMUGroup}
	if link, err := machine.LinkOf(kernel.Namespace{}, f.Addr); err == nil {
		vf.Interface = link.Name
	} else if !errors.Is(err, kernel.ErrNoLink) {
		n.problem(err)
	}
	state, err := machine.VF(f.PF, f.VFID)
	if err != nil {
		n.problem(err)
		return vf
	}
	vf.MAC, vf.VLAN, vf.QoS, vf.Trust, vf.Spoof = state.MAC.String(), state.VLAN, state.QoS, state.Trust, state.Spoof
	return vf
}

func release() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(name.Release[:])
}

// WriteTable writes the report for people.
func (n *NIC) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	driver := n.Driver
	if n.DriverVersion != "" {
		driver += " " + n.DriverVersion
	}
	for _, line := range [][2]string{
		{"kernel", n.Kernel},
		{"interface", n.Interface},
		{"PCI address", n.PCIAddress + " (" + n.Vendor + ":" + n.Device + ")"},
		{"driver", driver},
		{"switch mode", n.SwitchMode},
		{"NUMA node", fmt.Sprint(n.NUMANode)},
		{"PCIe root", n.PCIeRoot},
		{"IOMMU", map[bool]string{true: "yes", false: "no: vfio-pci takes no virtual function"}[n.IOMMU]},
		{"virtual functions", n.counts()},
	} {
		fmt.Fprintf(t, "%s:\t%s\n", line[0], cell(line[1]))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(n.VFs) > 0 {
		fmt.Fprintln(t, "\nVF\tPCI ADDRESS\tDRIVER\tINTERFACE\tIOMMU GROUP\tMAC\tVLAN\tQOS\tTRUST\tSPOOF CHECK")
	}
	for _, vf := range n.VFs {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", vf.ID, cell(vf.PCIAddress), dash(cell(vf.Driver)), dash(cell(vf.Interface)), dash(cell(vf.IOMMUGroup)),
			dash(vf.MAC), vf.VLAN, vf.QoS, onOff(vf.Trust), onOff(vf.Spoof))
	}
	if len(n.Problems) > 0 {
		fmt.Fprintln(t, "\nWhat could not be read:")
	}
	for _, p := range n.Problems {
		fmt.Fprintln(t, "  "+cell(p))
	}
	return t.Flush()
}

func (n *NIC) counts() string {
	switch {
	case n.PF != "":
		return "it is one itself, of " + n.PF
	case n.TotalVFs == 0:
		return "none possible: no SR-IOV (firmware or BIOS may have it off)"
	}
	return fmt.Sprintf("%d of %d", n.NumVFs, n.TotalVFs)
}

func onOff(b *bool) string {
	switch {
	case b == nil:
		return "-"
	case *b:
		return "on"
	}
	return "off"
}
