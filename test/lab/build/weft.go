// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"os"
	"path/filepath"
)

// Weft builds Weft's commands as they are in the tree now. The go command alone knows what
// changed, so this is no set.
func (b Builder) Weft(ctx context.Context) (Set, error) {
	set := Set{Dir: filepath.Join(b.Cache(), "weft")}
	unlock, err := b.lock(ctx, "weft")
	if err != nil {
		return Set{}, err
	}
	defer unlock()
	if err := os.MkdirAll(set.Dir, 0o755); err != nil {
		return Set{}, err
	}
	return set, b.run(ctx, b.Root, set.Dir, job{flags: weftFlags(), targets: []string{"./cmd/..."}})
}

// WeftProgram builds one of them and gives its path.
func (b Builder) WeftProgram(ctx context.Context, name string) (string, error) {
	set := Set{Dir: filepath.Join(b.Cache(), "weft")}
	unlock, err := b.lock(ctx, "weft")
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := os.MkdirAll(set.Dir, 0o755); err != nil {
		return "", err
	}
	return set.Path(name), b.run(ctx, b.Root, set.Dir, job{flags: weftFlags(), targets: []string{"./cmd/" + name}})
}

func weftFlags() []string { return []string{"-ldflags=-s -w"} }

// WeftImage packs them as the image that deploy/ names.
func (b Builder) WeftImage(ctx context.Context, archive string, weft Set) error {
	_, err := b.goCommand(ctx, b.Root, []string{"CGO_ENABLED=0"}, "run", "-mod=readonly", "-buildvcs=false",
		"./build/image", "-o", archive, weft.Path("weft-agent"), weft.Path("weft-cni"), weft.Path("weft"), weft.Path("weft-operator"), "cilium-dbg=weft")
	return err
}
