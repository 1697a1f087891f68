// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/host/kernel"
)

// tree makes a sysfs: files by path and text, links by path and "-> target".
func tree(t *testing.T, files map[string]string) *kernel.Machine {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "bus/pci/devices"), 0o755))
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			must(t, os.Symlink(target, path))
		} else {
			must(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
	m, err := kernel.Open(dir)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return m
}

const (
	listed = "bus/pci/devices/"
	root   = "devices/pci0000:00/0000:00:02.0/"
)

// card is a PF with two VFs behind a bridge, and a disk beside it.
func card() map[string]string {
	files := map[string]string{
		"devices/pci0000:00/0000:00:03.0/class": "0x010000\n",
		listed + "0000:00:03.0":                 "-> ../../../devices/pci0000:00/0000:00:03.0",
		root + "0000:03:00.0/sriov_totalvfs":    "8\n",
		root + "0000:03:00.0/sriov_numvfs":      "2\n",
		root + "0000:03:00.0/virtfn0":           "-> ../0000:03:00.2",
		root + "0000:03:00.0/virtfn1":           "-> ../0000:03:00.3",
		root + "0000:03:00.0/net/ens1f0/x":      "",
		root + "0000:03:00.2/physfn":            "-> ../0000:03:00.0",
		root + "0000:03:00.3/physfn":            "-> ../0000:03:00.0",
		root + "0000:03:00.2/net/ens1f0v0/x":    "",
		root + "0000:03:00.2/iommu_group":       "-> ../../../../kernel/iommu_groups/17",
	}
	for addr, driver := range map[string]string{"0000:03:00.0": "mlx5_core", "0000:03:00.2": "mlx5_core", "0000:03:00.3": ""} {
		files[listed+addr] = "-> ../../../" + root + addr
		files[root+addr+"/class"] = "0x020000\n"
		files[root+addr+"/vendor"] = "0x15b3\n"
		files[root+addr+"/device"] = "0x101d\n"
		files[root+addr+"/numa_node"] = "1\n"
		if driver != "" {
			files[root+addr+"/driver"] = "-> ../../../../bus/pci/drivers/" + driver
		}
	}
	return files
}

func cardFunctions() []kernel.Function {
	f := kernel.Function{
		Class: 0x020000, Vendor: "0x15b3", Device: "0x101d", Driver: "mlx5_core", VFID: -1, NUMANode: 1, PCIeRoot: "pci0000:00",
	}
	pf, first, second := f, f, f
	pf.Addr, pf.TotalVFs, pf.NumVFs, pf.Netdevs = "0000:03:00.0", 8, 2, []string{"ens1f0"}
	first.Addr, first.PF, first.VFID, first.Netdevs, first.IOMMUGroup = "0000:03:00.2", pf.Addr, 0, []string{"ens1f0v0"}, "17"
	second.Addr, second.PF, second.VFID, second.Driver = "0000:03:00.3", pf.Addr, 1, ""
	return []kernel.Function{pf, first, second}
}

func TestFunctions(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(files map[string]string)
		want    func(all []kernel.Function) []kernel.Function
		wantErr string
	}{
		"a card": {},
		"representors": {
			change: func(files map[string]string) {
				delete(files, root+"0000:03:00.0/net/ens1f0/x")
				files[root+"0000:03:00.0/net/ens1f0/phys_port_name"] = "p0\n"
				files[root+"0000:03:00.0/net/a_pf0vf0/phys_port_name"] = "pf0vf0\n"
				files[root+"0000:03:00.0/net/b_pf0vf1/phys_port_name"] = "c1pf0vf1\n"
			},
			want: func(all []kernel.Function) []kernel.Function {
				all[0].Netdevs = []string{"ens1f0", "a_pf0vf0", "b_pf0vf1"}
				return all
			},
		},
		"told by uevent": {
			change: func(files map[string]string) {
				for _, addr := range []string{"0000:03:00.0", "0000:03:00.2", "0000:03:00.3"} {
					for _, attr := range []string{"class", "vendor", "device"} {
						delete(files, root+addr+"/"+attr)
					}
					delete(files, root+addr+"/driver")
					files[root+addr+"/uevent"] = "PCI_CLASS=20000\nPCI_ID=15B3:101D\nPCI_SUBSYS_ID=15B3:0001\n"
				}
				files[root+"0000:03:00.0/uevent"] += "DRIVER=mlx5_core\n"
				files[root+"0000:03:00.2/driver"] = "-> ../../../../bus/pci/drivers/mlx5_core"
				files["devices/pci0000:00/0000:00:03.0/uevent"] = "DRIVER=nvme\nPCI_CLASS=10802\nPCI_ID=8086:0001\n"
			},
		},
		"uevents that tell too little": {
			change: func(files map[string]string) {
				files[root+"0000:03:00.0/uevent"] = "DRIVER=other\nPCI_CLASS=20000\nPCI_ID=15B3\n"
				files[root+"0000:03:00.2/uevent"] = "DRIVER=other\nPCI_CLASS=0x20000\nPCI_ID=15B3:101D\n"
				files[root+"0000:03:00.3/uevent"] = "-> /etc/passwd"
			},
		},
		"one without uevent beside others": {
			change: func(files map[string]string) {
				for _, addr := range []string{"0000:03:00.0", "0000:03:00.3"} {
					files[root+addr+"/uevent"] = "PCI_CLASS=20000\nPCI_ID=15B3:101D\n"
				}
			},
		},
		"an attribute that is no number": {
			change: func(files map[string]string) { files[root+"0000:03:00.2/numa_node"] = "all\n" },
			want: func(all []kernel.Function) []kernel.Function {
				all[1].NUMANode = -1
				return all
			},
			wantErr: "read PCI function 0000:03:00.2: read numa_node",
		},
		"a class that is no number": {
			change:  func(files map[string]string) { files[root+"0000:03:00.3/class"] = "network\n" },
			want:    func(all []kernel.Function) []kernel.Function { return all[:2] },
			wantErr: "read class of 0000:03:00.3",
		},
		"a VF that its PF does not know": {
			change: func(files map[string]string) { delete(files, root+"0000:03:00.0/virtfn1") },
			want: func(all []kernel.Function) []kernel.Function {
				all[2].VFID = -1
				return all
			},
			wantErr: "PF 0000:03:00.0 has no virtfn link to 0000:03:00.3",
		},
		"one that goes while it is read": {
			change: func(files map[string]string) { delete(files, root+"0000:03:00.3/class") },
			want:   func(all []kernel.Function) []kernel.Function { return all[:2] },
		},
		"a name that is no address": {
			change:  func(files map[string]string) { files[listed+"nonsense/class"] = "0x020000\n" },
			wantErr: `"nonsense" is no PCI address`,
		},
		"links that lead out": {
			change: func(files map[string]string) {
				delete(files, root+"0000:03:00.3/class")
				files[root+"0000:03:00.3/class"] = "-> /etc/passwd"
			},
			want:    func(all []kernel.Function) []kernel.Function { return all[:2] },
			wantErr: "class: is a link, and must be none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			files, want := card(), cardFunctions()
			if test.change != nil {
				test.change(files)
			}
			if test.want != nil {
				want = test.want(want)
			}
			all, err := tree(t, files).Functions()
			if diff := cmp.Diff(want, all); diff != "" {
				t.Errorf("(-want +is):\n%s", diff)
			}
			if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("error is %v, not %q", err, test.wantErr)
			}
		})
	}
}

func TestFunction(t *testing.T) {
	m := tree(t, card())
	for _, want := range cardFunctions() {
		if is, err := m.Function(want.Addr); err != nil || cmp.Diff(want, is) != "" {
			t.Errorf("%s: %v\n%s", want.Addr, err, cmp.Diff(want, is))
		}
	}
	if _, err := m.Function("0000:03:00.7"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := m.Function("../0000:03:00.2"); err == nil {
		t.Error("a path was taken for an address")
	}
	if _, err := m.VF("0000:03:00.0", 0); !errors.Is(err, kernel.ErrNoLink) {
		t.Errorf("VF of a PF whose link is not there: %v", err)
	}
}

func TestOpenWithoutSysfs(t *testing.T) {
	if _, err := kernel.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	m, err := kernel.Open(t.TempDir())
	must(t, err)
	defer m.Close()
	if _, err := m.Functions(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestSetNumVFsWrites(t *testing.T) {
	m := tree(t, card())
	must(t, m.SetNumVFs("0000:03:00.0", 4))
	if f, err := m.Function("0000:03:00.0"); err != nil || f.NumVFs != 4 {
		t.Errorf("%+v, %v", f, err)
	}
	if err := m.SetNumVFs("0000:03:00.2", 4); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := m.SetNumVFs("../x", 4); err == nil {
		t.Error("a path was taken for an address")
	}
}

func TestParsePCIAddr(t *testing.T) {
	for s, good := range map[string]bool{
		"0000:03:00.1": true, "10000:e1:1f.7": true, "0000:03:00.8": false, "0000:03:20.0": false, "0000:3:00.1": false,
		"0000:03:00:1": false, "0000:0g:00.1": false, "0000:03:00.1 ": false, "": false, "000:03:00.1": false,
		"0000:03:0F.1": false, "123456789:03:00.1": false,
	} {
		if addr, err := kernel.ParsePCIAddr(s); (err == nil) != good || good && string(addr) != s {
			t.Errorf("%q: %q, %v", s, addr, err)
		}
	}
}

func TestChangeValidate(t *testing.T) {
	good := kernel.VFChange{VLAN: new(4094), QoS: new(7), MAC: mac("02:00:00:00:00:01"), Trust: new(true)}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if err := (kernel.VFChange{VLAN: new(4095)}).Validate(); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}
