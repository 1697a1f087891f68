// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command generate writes the files that are made from the sources:
//
//	cmd/<name>/deps.txt      every package that the binary links
//	docs/configuration.md    the keys of the CNI configuration and of the agent
//	docs/vm-status.md        its tables of precedence, rules and warnings
//	deploy/crd-cilium*.yaml  the definitions of the network driver's resources
//	api/v2alpha1/zz_…        how their types are copied
//	deploy/helm/weft/files   the manifests of deploy/ as the chart's templates read them, and in
//	                         crds the definitions
//
// With -check it writes nothing and fails when a file is not what it would write.
//
// Invariants: the output depends on the sources and go.mod alone, not on the machine,
// its Go patch release or the time. It must not hold any fact itself: a key's meaning
// stands in internal/cni/netconf, internal/agent/config, vmistatus or api/v2alpha1. Implements: architecture 3, 4.1.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "write nothing, fail when a file is stale")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *check); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, check bool) error {
	files, err := generated(ctx)
	if err != nil {
		return err
	}
	var stale []error
	for _, path := range slices.Sorted(maps.Keys(files)) {
		old, err := os.ReadFile(path)
		if err == nil && bytes.Equal(old, files[path]) {
			continue
		}
		if check {
			stale = append(stale, fmt.Errorf("%s is stale: run make generate", path))
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if err := os.WriteFile(path, files[path], 0o644); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		fmt.Println("wrote", path)
	}
	return errors.Join(stale...)
}

// generated is every generated file by its path, relative to the module's root.
func generated(ctx context.Context) (map[string][]byte, error) {
	mains, err := filepath.Glob("cmd/*/main.go")
	if err != nil {
		return nil, err
	}
	files, err := crds(ctx)
	if err != nil {
		return nil, err
	}
	files["docs/configuration.md"] = configuration()
	if files[vmStatusFile], err = vmStatus(); err != nil {
		return nil, err
	}
	for _, path := range mains {
		dir := filepath.Dir(path)
		deps, err := dependencies(ctx, "./"+dir)
		if err != nil {
			return nil, err
		}
		files[filepath.Join(dir, "deps.txt")] = deps
	}
	copies, err := chart(files)
	if err != nil {
		return nil, err
	}
	maps.Copy(files, copies)
	return files, nil
}

// dependencies lists what a binary links, as it is shipped: linux/amd64 without cgo. Internal
// packages of the standard library are left out: they change with Go's patch releases.
func dependencies(ctx context.Context, pkg string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-mod=readonly", "-deps",
		"-f", "{{if .Standard}}std {{end}}{{.ImportPath}}", pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list dependencies of %s: %w", pkg, err)
	}
	var std, others []string
	for line := range strings.Lines(string(out)) {
		path, isStd := strings.CutPrefix(strings.TrimSpace(line), "std ")
		switch {
		case !isStd:
			others = append(others, path)
		case !strings.Contains("/"+path+"/", "/internal/") && !strings.HasPrefix(path, "vendor/"):
			std = append(std, path)
		}
	}
	slices.Sort(std)
	slices.Sort(others)
	text := "# What " + strings.TrimPrefix(pkg, "./") + " links. Written by make generate.\n\n" +
		strings.Join(others, "\n") + "\n\n" + strings.Join(std, "\n") + "\n"
	return []byte(text), nil
}
