// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/internal/inspect"
)

// card is a machine whose driver knows devlink, or does not.
type card struct {
	*kerneltest.Machine
	mode string
	err  error
}

func (c card) SwitchMode(kernel.PCIAddr) (string, error) { return c.mode, c.err }

func newCard(t *testing.T) card {
	t.Helper()
	const pf = kernel.PCIAddr("0000:03:00.0")
	m := kerneltest.NewMachine()
	m.AddPF(pf, "ens1f0", 8)
	if err := m.SetNumVFs(pf, 2); err != nil {
		t.Fatal(err)
	}
	if err := m.SetVF(pf, 1, kernel.VFChange{VLAN: new(7), QoS: new(3)}); err != nil {
		t.Fatal(err)
	}
	return card{Machine: m, err: fs.ErrNotExist}
}

func TestLookAtNIC(t *testing.T) {
	c, sysfs := newCard(t), t.TempDir()
	c.ChangeFunction(kerneltest.VFAddr("0000:03:00.0", 0), func(f *kernel.Function) { f.IOMMUGroup = "17" })
	driver := filepath.Join(sysfs, "bus/pci/drivers", functionOf(t, c).Driver, "module")
	if err := os.MkdirAll(driver, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(driver, "version"), []byte("5.6.0-k\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n, err := inspect.LookAtNIC(c, sysfs, "ens1f0")
	if err != nil {
		t.Fatal(err)
	}
	want := &inspect.NIC{
		Interface: "ens1f0", PCIAddress: "0000:03:00.0", Driver: functionOf(t, c).Driver, DriverVersion: "5.6.0-k", SwitchMode: "unknown", IOMMU: true,
		TotalVFs: 8, NumVFs: 2, Problems: []string{}, VFs: []inspect.NICVF{
			{ID: 0, PCIAddress: "0000:03:10.0", Interface: "ens1f0v0", IOMMUGroup: "17"}, {ID: 1, PCIAddress: "0000:03:10.2", Interface: "ens1f0v1", VLAN: 7, QoS: 3},
		},
	}
	ignore := cmp.Options{
		cmpopts.IgnoreFields(inspect.NIC{}, "Kernel", "Vendor", "Device", "NUMANode", "PCIeRoot"),
		cmpopts.IgnoreFields(inspect.NICVF{}, "MAC", "Trust", "Spoof", "Driver"),
	}
	if d := cmp.Diff(want, n, ignore); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if n.Kernel == "" || n.VFs[0].MAC == "" || n.VFs[0].Driver == "" {
		t.Errorf("report %+v", n)
	}
	var text bytes.Buffer
	if err := n.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"2 of 8", "0000:03:10.2", "5.6.0-k", "unknown"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("the table lacks %q:\n%s", part, text.String())
		}
	}
}

func functionOf(t *testing.T, c card) kernel.Function {
	t.Helper()
	f, err := c.Function("0000:03:00.0")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLookAtNICFaults(t *testing.T) {
	c := newCard(t)
	c.AddLink(kernel.Namespace{}, kernel.Link{Name: "br0", Kind: "bridge"})
	for name, want := range map[string]string{"none": "interface none", "br0": "no PCI device"} {
		if _, err := inspect.LookAtNIC(c, t.TempDir(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.Fail("VF", errors.New("the card does not answer"))
	c.mode, c.err = "switchdev", nil
	n, err := inspect.LookAtNIC(c, t.TempDir(), "ens1f0")
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Problems) != 2 || !strings.Contains(n.Problems[0], "does not answer") || len(n.VFs) != 2 || n.SwitchMode != "switchdev" {
		t.Errorf("report %+v", n)
	}
	vf, err := inspect.LookAtNIC(c, t.TempDir(), "ens1f0v1")
	if err != nil || vf.PF != "0000:03:00.0" {
		t.Errorf("a virtual function: %+v, %v", vf, err)
	}
}
