// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// program is a file that will be in the image's root.
type program struct {
	path, name, arch string
}

// alias is another name of a program in the image.
type alias struct{ name, of string }

// split tells the programs' paths from the aliases, NAME=PROGRAM, among the arguments.
func split(args []string) (paths []string, aliases []alias) {
	for _, arg := range args {
		name, of, is := strings.Cut(arg, "=")
		if is && !strings.Contains(name, "/") {
			aliases = append(aliases, alias{name, of})
			continue
		}
		paths = append(paths, arg)
	}
	return paths, aliases
}

// check joins everything that is wrong with aliases of programs.
func check(aliases []alias, programs []program) error {
	var faults []error
	taken := map[string]bool{}
	for _, p := range programs {
		taken[p.name] = true
	}
	for _, a := range aliases {
		if !slices.ContainsFunc(programs, func(p program) bool { return p.name == a.of }) {
			faults = append(faults, fmt.Errorf("alias %s=%s: the image has no program %s", a.name, a.of, a.of))
		}
		if a.name == "" || a.name == "." || a.name == ".." || taken[a.name] {
			faults = append(faults, fmt.Errorf("alias %s=%s: the name is taken, or none", a.name, a.of))
		}
		taken[a.name] = true
	}
	return errors.Join(faults...)
}

// inspect looks at all programs and joins everything that is wrong with them. It gives a set of
// programs for each processor, in the order in which they were named; every set has the same names.
func inspect(paths []string) (sets [][]program, err error) {
	if len(paths) == 0 {
		return nil, errors.New("an image needs a program")
	}
	var faults []error
	for _, path := range paths {
		arch, err := static(path)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		p := program{path: path, name: filepath.Base(path), arch: arch}
		at := slices.IndexFunc(sets, func(set []program) bool { return set[0].arch == arch })
		if at < 0 {
			sets = append(sets, []program{p})
			continue
		}
		if i := slices.IndexFunc(sets[at], func(other program) bool { return other.name == p.name }); i >= 0 {
			faults = append(faults, fmt.Errorf("%s and %s would both be /%s", sets[at][i].path, path, p.name))
		}
		sets[at] = append(sets[at], p)
	}
	return sets, errors.Join(append(faults, missing(sets)...)...)
}

// missing names each program that is there for one processor and not for another.
func missing(sets [][]program) (faults []error) {
	for _, has := range sets {
		for _, p := range has {
			for _, other := range sets {
				if !slices.ContainsFunc(other, func(q program) bool { return q.name == p.name }) {
					faults = append(faults, fmt.Errorf("%s is made for %s, and there is no %s for %s", p.path, p.arch, p.name, other[0].arch))
				}
			}
		}
	}
	return faults
}

// static gives the architecture of a Linux program that starts without any other file.
func static(path string) (arch string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("read program %s: %w", path, err)
	}
	defer f.Close()
	return machine(path, f)
}

// machine is static for a program that is read already.
func machine(path string, f *elf.File) (arch string, err error) {
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return "", fmt.Errorf("%s is no program but %s", path, f.Type)
	}
	for _, segment := range f.Progs {
		if segment.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s needs a dynamic loader, which the image does not have: build it with CGO_ENABLED=0", path)
		}
	}
	switch {
	case f.Machine == elf.EM_X86_64:
		return "amd64", nil
	case f.Machine == elf.EM_AARCH64:
		return "arm64", nil
	case f.Machine == elf.EM_RISCV && f.Class == elf.ELFCLASS64:
		return "riscv64", nil
	case f.Machine == elf.EM_PPC64 && f.Data == elf.ELFDATA2LSB:
		return "ppc64le", nil
	case f.Machine == elf.EM_S390 && f.Class == elf.ELFCLASS64:
		return "s390x", nil
	}
	return "", fmt.Errorf("%s is made for %s, which no image name is known for", path, f.Machine)
}

// writeTo puts the program into a layer, owned by root and executable, whatever its file is here.
func (p program) writeTo(layer *tar.Writer) error {
	f, err := os.Open(p.path)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	if err := layer.WriteHeader(header(p.name, info.Size(), 0o755)); err != nil {
		return fmt.Errorf("pack %s: %w", p.path, err)
	}
	if _, err := io.Copy(layer, f); err != nil {
		return fmt.Errorf("pack %s: %w", p.path, err)
	}
	return nil
}
