// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/weftnet/weft/test/lab/build"
	"github.com/weftnet/weft/test/lab/vm"
)

// suite is a package whose tests run in the machine.
type suite struct {
	pkg      string
	old      bool   // on the older kernel, too
	binaries bool   // they execute weft-cni and the CNI plugins
	reboot   string // the test of which the second half runs in the next boot of the same disk
}

func suites() []suite {
	return []suite{
		{pkg: "internal/host/kernel", old: true},
		{pkg: "internal/dra/sriov"},
		{pkg: "internal/dra/dummy"},
		{pkg: "internal/dra/handover"},
		{pkg: "test/machine", old: true, binaries: true, reboot: "TestReboot"},
	}
}

// choose gives all suites, or those of the packages that are named.
func choose(packages []string) []suite {
	if len(packages) == 0 {
		return suites()
	}
	var chosen []suite
	for _, pkg := range packages {
		s := suite{pkg: filepath.Clean(pkg)}
		if i := slices.IndexFunc(suites(), func(known suite) bool { return known.pkg == s.pkg }); i >= 0 {
			s = suites()[i]
		}
		s.old = true
		chosen = append(chosen, s)
	}
	return chosen
}

// round is one boot.
type round struct {
	kernel  vm.Kernel
	name    string // of its results
	suites  []suite
	pattern string
}

// rounds are the boots of a run. The second kernel's is the reboot of the first one's disk; where
// there is but one kernel, it is booted again for those tests alone that are about that.
func rounds(chosen []suite, kernel, pattern string) []round {
	var all []round
	for _, k := range []vm.Kernel{vm.Current, vm.Old} {
		mine := slices.DeleteFunc(slices.Clone(chosen), func(s suite) bool { return k == vm.Old && !s.old })
		if (kernel == "both" || kernel == string(k)) && len(mine) > 0 {
			all = append(all, round{k, string(k), mine, pattern})
		}
	}
	if len(all) != 1 {
		return all
	}
	for _, s := range all[0].suites {
		if wanted, err := regexp.MatchString(pattern, s.reboot); s.reboot != "" && err == nil && wanted {
			k := all[0].kernel
			all = append(all, round{k, string(k) + "-again", []suite{s}, "^" + s.reboot + "$"})
		}
	}
	return all
}

// binariesPath is where test/binaries finds in the machine what it builds elsewhere.
const binariesPath = "/binaries"

// giveBinaries builds what test/binaries would.
func (m machine) giveBinaries(ctx context.Context) error {
	plugins, err := build.Builder{Root: m.root, Progress: os.Stderr}.Plugins(ctx)
	if err != nil {
		return err
	}
	m.files[binariesPath+"/plugins"] = plugins.Dir
	for name, packages := range map[string][]string{
		"weft":     {"./cmd/weft-cni", "./cmd/weft-planner"},
		"delegate": {"./test/delegate"},
	} {
		dir := filepath.Join(m.work, name)
		cmd := exec.CommandContext(ctx, "go", append([]string{
			"build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", dir + "/",
		}, packages...)...)
		cmd.Dir = m.root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s for the machine: %w\n%s", name, err, out)
		}
		m.files[binariesPath+"/"+name] = dir
	}
	return nil
}
