// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/test/lab/build"
	"github.com/weftnet/weft/test/lab/vm"
)

// boot runs shell commands in a machine.
func boot(t *testing.T, o vm.Options, commands ...string) (vm.Result, string, error) {
	t.Helper()
	if err := vm.QemuFault(t.Context()); err != nil && os.Getenv("WEFT_CI") == "" {
		t.Skip(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	root, err := build.Root(here)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		o.Commands = append(o.Commands, []string{"/bin/sh", "-c", c})
	}
	var out bytes.Buffer
	o.Stdout = &out
	r, err := vm.Store{Dir: filepath.Join(root, ".cache/lab/vm"), Progress: os.Stderr}.Run(t.Context(), o)
	return r, out.String(), err
}

// cards lists the drivers of the machine's PCI network functions, and how many have each.
const cards = `for d in /sys/bus/pci/devices/*; do [ -e $d/net ] && echo "driver $(basename $(readlink $d/driver))"; done | sort | uniq -c`

func TestMachine(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte("given\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	share := t.TempDir()
	r, out, err := boot(t, vm.Options{
		VFs: 2, PFs: 2, IOMMU: true, Env: []string{"COLOUR=blue"}, Share: share,
		Files: map[string]string{"/test/files": dir},
	}, cards, "cat files/in; echo $COLOUR $WEFT_VM $WEFT_VM_KERNEL; ls /sys/kernel/iommu_groups | wc -l; echo back > /share/out", "exit 7", "exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(vm.Result{Status: 7, Statuses: []int{0, 0, 7, 3}}, r); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	for _, want := range []string{"2 driver igb\n", "4 driver igbvf\n", "given\nblue 1 6.12\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("output has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "6.12\n0\n") {
		t.Errorf("there are no IOMMU groups:\n%s", out)
	}
	if back, err := os.ReadFile(filepath.Join(share, "out")); err != nil || string(back) != "back\n" {
		t.Errorf("shared directory has %q, %v", back, err)
	}
}

// A disk outlives the machine; the other kernel has the same modules.
func TestReboot(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := vm.MakeDisk(t.Context(), disk, 16); err != nil {
		t.Fatal(err)
	}
	if r, out, err := boot(t, vm.Options{Disk: disk}, "cp /proc/sys/kernel/random/boot_id /disk/first"); err != nil || r.Status != 0 {
		t.Fatal(r, err, out)
	}
	r, out, err := boot(t, vm.Options{Disk: disk, Kernel: vm.Old, VFs: 1}, "! cmp /proc/sys/kernel/random/boot_id /disk/first && uname -r", cards)
	if err != nil || r.Status != 0 {
		t.Fatal(r, err, out)
	}
	if !strings.Contains(out, "6.1.") || !strings.Contains(out, "1 driver igbvf\n") {
		t.Errorf("output is\n%s", out)
	}
}

func TestFailures(t *testing.T) {
	// A command that hangs, and a kernel that panics, are no failed commands.
	if r, out, err := boot(t, vm.Options{Timeout: 25 * time.Second}, "echo here", "sleep 1000"); !errors.Is(err, vm.ErrTimeout) || !strings.Contains(out, "here\n") {
		t.Errorf("a hang gives %v, %v:\n%s", r, err, out)
	}
	if r, out, err := boot(t, vm.Options{}, "echo here; echo c > /proc/sysrq-trigger; sleep 1000"); !errors.Is(err, vm.ErrDied) || !strings.Contains(out, "here\n") || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("a panic gives %v, %v:\n%s", r, err, out)
	}
	if _, _, err := boot(t, vm.Options{Modules: []string{"no-such-module"}}); err == nil || !strings.Contains(err.Error(), "no module no_such_module") {
		t.Errorf("a module that is not there gives %v", err)
	}
}
