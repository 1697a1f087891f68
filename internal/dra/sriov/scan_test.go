// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
)

// sysfs makes a tree as sysfs has it, with PFs that have 64 VFs each.
func sysfs(t testing.TB, pfs int) string {
	t.Helper()
	root := t.TempDir()
	bus := filepath.Join(root, "bus/pci/devices")
	driver := filepath.Join(root, "bus/pci/drivers/mlx5_core")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(bus, 0o755))
	must(os.MkdirAll(driver, 0o755))
	function := func(pf int, addr, name, device string) string {
		dir := filepath.Join(root, "devices", fmt.Sprintf("pci0000:%02x", pf), addr)
		must(os.MkdirAll(filepath.Join(dir, "net", name), 0o755))
		for file, text := range map[string]string{
			"class": "0x020000\n", "vendor": "0x15b3\n", "device": device + "\n", "numa_node": "1\n",
			"uevent": "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:" + strings.ToUpper(device[2:]) + "\nPCI_SLOT_NAME=" + addr + "\n",
		} {
			must(os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
		}
		must(os.Symlink("../../../bus/pci/drivers/mlx5_core", filepath.Join(dir, "driver")))
		must(os.Symlink(filepath.Join("../../../devices", fmt.Sprintf("pci0000:%02x", pf), addr), filepath.Join(bus, addr)))
		return dir
	}
	for pf := range pfs {
		pfAddr := fmt.Sprintf("0000:%02x:00.0", pf)
		dir := function(pf, pfAddr, fmt.Sprintf("ens%df0", pf), "0x101d")
		must(os.WriteFile(filepath.Join(dir, "sriov_totalvfs"), []byte("64\n"), 0o644))
		must(os.WriteFile(filepath.Join(dir, "sriov_numvfs"), []byte("64\n"), 0o644))
		for vf := range 64 {
			addr := fmt.Sprintf("0000:%02x:%02x.%d", pf, 1+vf/8, vf%8)
			vfDir := function(pf, addr, fmt.Sprintf("ens%df0v%d", pf, vf), "0x101e")
			must(os.Symlink("../"+pfAddr, filepath.Join(vfDir, "physfn")))
			must(os.Symlink("../"+addr, filepath.Join(dir, fmt.Sprintf("virtfn%d", vf))))
		}
	}
	return root
}

func scanned(t testing.TB, machine *kernel.Machine) []Device {
	t.Helper()
	functions, err := machine.Functions()
	if err != nil {
		t.Fatal(err)
	}
	return sorted(functions).devices(nil)
}

// The way from sysfs to devices, with the kernel's own reader.
func TestScan(t *testing.T) {
	machine, err := kernel.Open(sysfs(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	devices := scanned(t, machine)
	if len(devices) != 128 {
		t.Fatalf("%d devices", len(devices))
	}
	want := Device{
		Addr: "0000:01:01.2", Driver: "mlx5_core", Vendor: "0x15b3", DeviceID: "0x101e", PFName: "ens1f0", VFID: 2,
		KernelIfaceName: "ens1f0v2", pf: "0000:01:00.0", pcieRoot: "pci0000:01", numaNode: 1,
	}
	if devices[66] != want {
		t.Errorf("%+v, want %+v", devices[66], want)
	}
}

func BenchmarkScan1024(b *testing.B) {
	machine, err := kernel.Open(sysfs(b, 16))
	if err != nil {
		b.Fatal(err)
	}
	defer machine.Close()
	for b.Loop() {
		if n := len(scanned(b, machine)); n != 1024 {
			b.Fatalf("%d devices", n)
		}
	}
}
