// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
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
	}, cards, "cat files/in; echo $COLOUR $WEFT_VM $WEFT_VM_KERNEL; ls /sys/kernel/iommu_groups | wc -l; echo back > /share/out", "exit 7", "printf unfinished; exit 3", "(sleep 0.1 &); kill -9 $$")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(vm.Result{Status: 7, Statuses: []int{0, 0, 7, 3, 137}}, r); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	for _, want := range []string{"2 driver igb\n", "4 driver igbvf\n", "given\nblue 1 6.12\n", "unfinished\n"} {
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
	if r, out, err := boot(t, vm.Options{Timeout: 40 * time.Second}, "echo here", "sleep 1000"); !errors.Is(err, vm.ErrTimeout) || !strings.Contains(out, "here\n") {
		t.Errorf("a hang gives %v, %v:\n%s", r, err, out)
	}
	if r, out, err := boot(t, vm.Options{}, "echo here; echo c > /proc/sysrq-trigger; sleep 1000"); !errors.Is(err, vm.ErrDied) || !strings.Contains(out, "here\n") || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("a panic gives %v, %v:\n%s", r, err, out)
	}
	if r, _, err := boot(t, vm.Options{}); err == nil {
		t.Errorf("a machine without commands gives %v", r)
	}
	if _, _, err := boot(t, vm.Options{Modules: []string{"no-such-module"}}, "true"); err == nil || !strings.Contains(err.Error(), "no module no_such_module") {
		t.Errorf("a module that is not there gives %v", err)
	}
}

const ownerEnv = "WEFT_TEST_VM_OWNER"

// QEMU ends with the process that started it, also when that cannot say good-bye.
func TestOwnerIsKilled(t *testing.T) {
	if os.Getenv(ownerEnv) != "" {
		_, _, err := boot(t, vm.Options{}, "sleep 1000")
		t.Fatal(err)
	}
	if err := vm.QemuFault(t.Context()); err != nil && os.Getenv("WEFT_CI") == "" {
		t.Skip(err)
	}
	owner := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOwnerIsKilled$")
	tmp := t.TempDir()
	owner.Env = append(os.Environ(), ownerEnv+"=1", "TMPDIR="+tmp)
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	t.Cleanup(func() {
		if !killed {
			owner.Process.Kill() //nolint:errcheck // it has ended by itself
			owner.Wait()         //nolint:errcheck // as above
		}
	})
	until(t, "QEMU runs", func() bool { return emulators(t, tmp) == 1 })
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed = true
	if err := owner.Wait(); err == nil {
		t.Error("the owner was not killed")
	}
	until(t, "QEMU is gone", func() bool { return emulators(t, tmp) == 0 })
}

// emulators counts the processes of QEMU that boot from below a directory.
func emulators(t *testing.T, dir string) (n int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if line, err := os.ReadFile(path); err == nil && bytes.HasPrefix(line, []byte(vm.Qemu)) && bytes.Contains(line, []byte(dir+"/")) {
			n++
		}
	}
	return n
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(2 * time.Minute); !done(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("it does not come to that %s", what)
		}
	}
}
