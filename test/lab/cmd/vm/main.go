// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command vm runs Weft's tests in a machine with a real SR-IOV NIC (package vm), opens a shell in
// one, and installs what that needs.
//
// It owns the list of the packages whose tests have something to say there (suites.go).
//
// Implements: architecture 5 (SR-IOV).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weftnet/weft/test/lab/build"
	"github.com/weftnet/weft/test/lab/vm"
)

const usage = `usage: vm install          install QEMU (as root, on Debian 12)
       vm test [PACKAGE…]  run the tests of these packages, or of all that have some for the machine
       vm shell            a shell in a machine with two cards and four virtual functions on each;
                           "exit" ends it

flags of test:
  -kernel 6.12|6.1|both    default: both
  -run REGEXP              only these tests

examples:
  vm test
  vm test -kernel 6.12 -run TestRules internal/host/kernel
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1) //nolint:gocritic // stop only matters while running
	}
}

func run(ctx context.Context, args []string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := build.Root(here)
	if err != nil {
		return err
	}
	store := vm.Store{Dir: filepath.Join(root, ".cache/lab/vm"), Progress: os.Stderr}
	if len(args) == 0 {
		args = []string{"help"}
	}
	switch args[0] {
	case "install":
		return store.Install(ctx)
	case "test":
		return test(ctx, store, root, args[1:])
	case "shell":
		return shell(ctx, store, root)
	case "help", "-h", "--help":
		fmt.Print(usage)
		return nil
	}
	return fmt.Errorf("there is no command %q\n%s", args[0], usage)
}

// shell gives a person a machine. The programs of this tree are in /weft, where they were built.
func shell(ctx context.Context, store vm.Store, root string) error {
	const forever = 24 * time.Hour
	files, err := programs(ctx)
	if err != nil {
		return err
	}
	if bin := filepath.Join(root, "bin"); exists(bin) {
		files["/weft"] = bin
	}
	fmt.Fprintln(os.Stderr, `vm: booting; "exit" ends the machine, and nothing of it is kept`)
	_, err = store.Run(ctx, vm.Options{
		PFs: 2, VFs: 4, IOMMU: true, Timeout: forever, Stdin: os.Stdin, Stdout: os.Stdout, Memory: 2048, Files: files,
		Commands: [][]string{{"/bin/setsid", "-c", "/bin/sh", "-c", "exec sh -i </dev/ttyS0 >/dev/ttyS0 2>&1"}},
		Env:      []string{"PS1=machine# "},
	})
	return err
}

// programs are those of this machine that tests and people use, in full.
func programs(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	for _, name := range []string{"ip", "nsenter"} { // busybox's nsenter would run busybox's ip
		files, err := vm.Program(ctx, name)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, files)
	}
	return all, nil
}

func test(ctx context.Context, store vm.Store, root string, args []string) error {
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	kernel := flags.String("kernel", "both", "")
	pattern := flags.String("run", ".", "")
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen := choose(flags.Args())
	if err := vm.QemuFault(ctx); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "weft-vm-tests")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, s := range chosen {
		if err := compile(ctx, root, s, work); err != nil {
			return err
		}
	}
	boots := rounds(chosen, *kernel, *pattern)
	if len(boots) == 0 {
		return fmt.Errorf("on kernel %q there is nothing to run", *kernel)
	}
	m, err := prepare(ctx, store, root, work, chosen)
	if err != nil {
		return err
	}
	var faults []error
	for i, r := range boots {
		if err := m.boot(ctx, i+1, r); err != nil {
			faults = append(faults, fmt.Errorf("on Linux %s: %w", r.kernel, err))
		}
	}
	return errors.Join(faults...)
}

// binary is a package's test program.
func (s suite) binary() string { return strings.ReplaceAll(s.pkg, "/", "-") + ".test" }

func compile(ctx context.Context, root string, s suite, work string) error {
	fmt.Fprintf(os.Stderr, "vm: building the tests of %s\n", s.pkg)
	cmd := exec.CommandContext(ctx, "go", "test", "-mod=readonly", "-buildvcs=false", "-trimpath", "-c", "-cover", "-o", filepath.Join(work, s.binary()), "./"+s.pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", s.pkg, err, out)
	}
	return nil
}

// machine is what the machines of one run have in common.
type machine struct {
	store vm.Store
	root  string
	work  string            // where the test programs are
	files map[string]string // of every machine
	disk  string            // that all have one after the other, or ""
}

// prepare makes what the suites want of their machines.
func prepare(ctx context.Context, store vm.Store, root, work string, chosen []suite) (machine, error) {
	m := machine{store: store, root: root, work: work}
	var err error
	if m.files, err = programs(ctx); err != nil {
		return m, err
	}
	if slices.ContainsFunc(chosen, func(s suite) bool { return s.binaries }) {
		if err := m.giveBinaries(ctx); err != nil {
			return m, err
		}
	}
	if slices.ContainsFunc(chosen, func(s suite) bool { return s.reboot != "" }) {
		const size = 64
		m.disk = filepath.Join(work, "disk")
		return m, vm.MakeDisk(ctx, m.disk, size)
	}
	return m, nil
}

// boot runs the test programs of a round in one machine, and leaves their logs and coverage in the cache.
func (m machine) boot(ctx context.Context, number int, r round) error {
	done := filepath.Join(m.store.Dir, "results", r.name)
	if err := os.MkdirAll(filepath.Dir(done), 0o755); err != nil {
		return err
	}
	// Of its own while it runs: others may run tests of this checkout as well.
	out, err := os.MkdirTemp(filepath.Dir(done), r.name+".")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	log, err := os.Create(filepath.Join(out, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	seen := &skips{out: io.MultiWriter(os.Stdout, log)}
	o := m.options(number, r)
	o.Share, o.Stdout = out, seen
	fmt.Printf("==> tests on Linux %s\n", r.name)
	start := time.Now()
	result, err := m.store.Run(ctx, o)
	err = errors.Join(err, verdict(r.suites, result, seen), os.RemoveAll(done), os.Rename(out, done))
	if err != nil {
		return fmt.Errorf("%w\nlogs are in %s", err, done)
	}
	fmt.Printf("==> passed on Linux %s in %.0f s; log and coverage are in %s\n", r.name, time.Since(start).Seconds(), done)
	return nil
}

func (m machine) options(number int, r round) vm.Options {
	const limit, perPackage = 20 * time.Minute, 10 * time.Minute
	o := vm.Options{
		Kernel: r.kernel, PFs: 2, IOMMU: true, Timeout: limit, Files: maps.Clone(m.files), Disk: m.disk,
		Env: []string{"WEFT_CI=1", "WEFT_TEST_BINARIES=" + binariesPath, fmt.Sprintf("WEFT_VM_BOOT=%d", number)},
	}
	for _, s := range r.suites {
		dir := "/test/" + s.binary() + ".d" // its tests read testdata beside them
		o.Files["/test/"+s.binary()] = filepath.Join(m.work, s.binary())
		if data := filepath.Join(m.root, s.pkg, "testdata"); exists(data) {
			o.Files[dir+"/testdata"] = data
		}
		o.Commands = append(o.Commands, []string{
			"/bin/sh", "-c", `mkdir -p "$0" && cd "$0" && exec "$@"`, dir,
			"../" + s.binary(), "-test.v", "-test.timeout=" + perPackage.String(), "-test.run=" + r.pattern,
			"-test.coverprofile=/share/" + s.binary() + ".cover",
		})
	}
	return o
}

// verdict says what failed of the tests that ran; a test that skipped did.
func verdict(suites []suite, r vm.Result, seen *skips) error {
	var faults []error
	for i, status := range r.Statuses {
		if status != 0 {
			faults = append(faults, fmt.Errorf("%s: status %d", suites[i].pkg, status))
		}
	}
	if len(seen.lines) > 0 {
		faults = append(faults, fmt.Errorf("%d tests skipped, and this machine has what there is to have:\n%s", len(seen.lines), strings.Join(seen.lines, "\n")))
	}
	return errors.Join(faults...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// skips hands lines on and keeps those of skipped tests.
type skips struct {
	out   io.Writer
	lines []string
}

func (s *skips) Write(data []byte) (int, error) {
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimSpace(line), "--- SKIP:") {
			s.lines = append(s.lines, strings.TrimSpace(line))
		}
	}
	return s.out.Write(data)
}
