// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command vm runs Weft's tests in a machine with a real SR-IOV NIC (package vm), opens a shell in
// one, and installs what that needs.
//
// It owns the list of the packages whose tests have something to say there.
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

// suite is a package whose tests run in the machine.
type suite struct {
	pkg string
	old bool // on the older kernel, too
}

func suites() []suite {
	return []suite{
		{pkg: "internal/host/kernel", old: true},
		{pkg: "internal/dra/sriov"},
		{pkg: "internal/dra/dummy"},
		{pkg: "internal/dra/handover"},
	}
}

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
	chosen := suites()
	if flags.NArg() > 0 {
		chosen = nil
		for _, pkg := range flags.Args() {
			chosen = append(chosen, suite{pkg: filepath.Clean(pkg), old: true})
		}
	}
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
	var faults []error
	for _, k := range []vm.Kernel{vm.Current, vm.Old} {
		mine := slices.DeleteFunc(slices.Clone(chosen), func(s suite) bool { return k == vm.Old && !s.old })
		if *kernel != "both" && *kernel != string(k) || len(mine) == 0 {
			continue
		}
		if err := boot(ctx, store, root, k, mine, work, *pattern); err != nil {
			faults = append(faults, fmt.Errorf("on Linux %s: %w", k, err))
		}
	}
	return errors.Join(faults...)
}

// binary is a package's test program.
func (s suite) binary() string { return strings.ReplaceAll(s.pkg, "/", "-") + ".test" }

func compile(ctx context.Context, root string, s suite, work string) error {
	fmt.Fprintf(os.Stderr, "vm: building the tests of %s\n", s.pkg)
	cmd := exec.CommandContext(ctx, "go", "test", "-mod=readonly", "-buildvcs=false", "-c", "-cover", "-o", filepath.Join(work, s.binary()), "./"+s.pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", s.pkg, err, out)
	}
	return nil
}

// boot runs test programs in one machine, and leaves their logs and coverage in the cache.
func boot(ctx context.Context, store vm.Store, root string, k vm.Kernel, suites []suite, work, pattern string) error {
	done := filepath.Join(store.Dir, "results", string(k))
	if err := os.MkdirAll(filepath.Dir(done), 0o755); err != nil {
		return err
	}
	// Of its own while it runs: others may run tests of this checkout as well.
	out, err := os.MkdirTemp(filepath.Dir(done), string(k)+".")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	log, err := os.Create(filepath.Join(out, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	files, err := programs(ctx)
	if err != nil {
		return err
	}
	const limit, perPackage = 20 * time.Minute, 10 * time.Minute
	seen := &skips{out: io.MultiWriter(os.Stdout, log)}
	o := vm.Options{
		Kernel: k, PFs: 2, IOMMU: true, Timeout: limit, Share: out, Stdout: seen,
		Files: files, Env: []string{"WEFT_CI=1"},
	}
	for _, s := range suites {
		dir := "/test/" + s.binary() + ".d" // its tests read testdata beside them
		o.Files["/test/"+s.binary()] = filepath.Join(work, s.binary())
		if data := filepath.Join(root, s.pkg, "testdata"); exists(data) {
			o.Files[dir+"/testdata"] = data
		}
		o.Commands = append(o.Commands, []string{
			"/bin/sh", "-c", `mkdir -p "$0" && cd "$0" && exec "$@"`, dir,
			"../" + s.binary(), "-test.v", "-test.timeout=" + perPackage.String(), "-test.run=" + pattern,
			"-test.coverprofile=/share/" + s.binary() + ".cover",
		})
	}
	fmt.Printf("==> tests on Linux %s\n", k)
	r, err := store.Run(ctx, o)
	err = errors.Join(err, verdict(suites, r, seen), os.RemoveAll(done), os.Rename(out, done))
	if err != nil {
		return fmt.Errorf("%w\nlogs are in %s", err, done)
	}
	fmt.Printf("==> passed on Linux %s; log and coverage are in %s\n", k, done)
	return nil
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
