// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	apiDir   = "api/v2alpha1"
	deepcopy = "zz_generated.deepcopy.go"
)

const crdIntro = `# Copyright The Weft Authors.
# SPDX-License-Identifier: Apache-2.0

# Written by make generate from api/v2alpha1: edit the types there.
`

// crds are the files that controller-gen makes of the API's types: their copying, and their
// definitions for a cluster. The generator is a module of its own, so nothing of it is linked.
func crds(ctx context.Context) (map[string][]byte, error) {
	tmp, err := os.MkdirTemp("", "weft-generate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // what is left of it harms nobody
	gen, out := filepath.Join(tmp, "controller-gen"), filepath.Join(tmp, "out")
	for _, args := range [][]string{
		{"go", "build", "-C", "build/crds", "-mod=readonly", "-buildvcs=false", "-o", gen, "sigs.k8s.io/controller-tools/cmd/controller-gen"},
		{gen, "object", "crd", "paths=./" + apiDir, "output:dir=" + out},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("run %s: %w", strings.Join(args[:2], " "), err)
		}
	}
	paths, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if name := filepath.Base(path); name == deepcopy {
			files[filepath.Join(apiDir, name)] = data
		} else { // group_plural.yaml
			_, plural, _ := strings.Cut(name, "_")
			files["deploy/crd-"+plural] = append([]byte(crdIntro), bytes.TrimPrefix(data, []byte("---\n"))...)
		}
	}
	if len(files) != 3 {
		return nil, fmt.Errorf("controller-gen wrote %d files, not two definitions and %s", len(files), deepcopy)
	}
	return files, nil
}
