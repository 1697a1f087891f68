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

	"github.com/weftnet/weft/internal/host/replace"
)

// binary is one program and its size in bytes, stripped.
type binary struct {
	name string
	size int64
}

// programs are the freshly built programs that take part.
type programs struct {
	dir   string // holds them all: the CNI_PATH of every call
	sizes []binary
}

// build makes the programs as "make build" does: static, trimmed, stripped. They are put in their place
// as an installer does it: a file that the linker wrote is kept by the kernel in smaller pieces, and
// starts slower, than one that was copied.
func build(ctx context.Context, dir string) (*programs, error) {
	p := &programs{dir: dir}
	for _, source := range []string{"./cmd/weft-cni", "./cmd/weft-planner", "./cmd/weft-planner-kube", "./cmd/weft-agent", "./test/bench/noop"} {
		name := filepath.Base(source)
		target := filepath.Join(dir, name)
		cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath",
			"-ldflags=-s -w", "-o", target, source)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		content, err := os.ReadFile(target)
		if err != nil {
			return nil, err
		}
		if err := replace.File(target, 0o755, bytes.NewReader(content)); err != nil {
			return nil, err
		}
		p.sizes = append(p.sizes, binary{name: name, size: int64(len(content))})
	}
	// The IPAM plugin that the NAD names, as every node has it: its absence is warned of.
	return p, os.Symlink("noop", filepath.Join(dir, "static"))
}
