// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package build makes the programs that a lab runs, out of Go modules and nothing else, and
// keeps them.
//
// What belongs together is a set: Kubernetes with etcd, the container runtime, the CNI plugins.
// A set is built when it is first wanted and then lies in <repository>/.cache/lab, under the
// hash of everything that decides its bytes: the module files, its own sources, the flags and
// the Go version. Several processes may want the same set at once; one builds, the others wait.
// Weft's own programs are not built here: they change all the time.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Set is a directory of programs.
type Set struct{ Dir string }

// Path is where the program of that name lies.
func (s Set) Path(name string) string { return filepath.Join(s.Dir, name) }

// Builder builds the sets of one checkout.
type Builder struct {
	Root     string    // the repository
	Progress io.Writer // says what is being built
}

// Root finds the repository: the nearest directory from dir upwards that holds the lab.
func Root(dir string) (string, error) {
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "test/lab/kube/go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("find the repository: %s is not in it", dir)
		}
	}
}

// Cache is where everything of the lab lies that can be thrown away.
func (b Builder) Cache() string { return filepath.Join(b.Root, ".cache", "lab") }

// job is one call of the go command.
type job struct {
	cgo     bool
	flags   []string
	targets []string // packages; "tool" for all tools of the module
}

// recipe says how a set is made.
type recipe struct {
	name   string
	module string // directory of the module
	jobs   []job
}

// Runtime is containerd with its shim and client, and runc.
func (b Builder) Runtime(ctx context.Context) (Set, error) {
	const containerd = "github.com/containerd/containerd/v2/cmd/"
	return b.set(ctx, recipe{name: "runtime", module: filepath.Join(b.Root, "test/lab/runtime"), jobs: []job{
		{
			flags:   []string{"-tags=no_btrfs no_devmapper no_zfs", "-ldflags=-s -w"},
			targets: []string{containerd + "containerd", containerd + "containerd-shim-runc-v2", containerd + "ctr"},
		},
		{
			cgo:     true, // runc enters namespaces before Go's runtime starts, and links libseccomp
			flags:   []string{"-tags=seccomp", "-ldflags=-s -w"},
			targets: []string{"github.com/opencontainers/runc"},
		},
	}})
}

// Plugins are the standard CNI plugins.
func (b Builder) Plugins(ctx context.Context) (Set, error) {
	return b.set(ctx, recipe{
		name: "plugins", module: filepath.Join(b.Root, "build/plugins"),
		jobs: []job{{flags: []string{"-ldflags=-s -w"}, targets: []string{"tool"}}},
	})
}

// Helm is the program that installs charts, of the version that the chart's own tests have.
func (b Builder) Helm(ctx context.Context) (Set, error) {
	return b.set(ctx, recipe{
		name: "helm", module: filepath.Join(b.Root, "test/install"),
		jobs: []job{{flags: []string{"-ldflags=-s -w"}, targets: []string{"tool"}}},
	})
}

// Multus is the plugin that people come from.
func (b Builder) Multus(ctx context.Context) (Set, error) {
	return b.set(ctx, recipe{
		name: "multus", module: filepath.Join(b.Root, "test/lab/multus"),
		jobs: []job{{flags: []string{"-ldflags=-s -w"}, targets: []string{"tool"}}},
	})
}

// set returns what recipe makes, from the cache when it is there.
func (b Builder) set(ctx context.Context, r recipe) (Set, error) {
	hash, err := r.hash()
	if err != nil {
		return Set{}, fmt.Errorf("hash %s: %w", r.module, err)
	}
	dir := filepath.Join(b.Cache(), r.name+"-"+hash)
	done := Set{Dir: filepath.Join(dir, "bin")}
	if complete(done) {
		return done, nil
	}
	unlock, err := b.lock(ctx, r.name)
	if err != nil {
		return Set{}, err
	}
	defer unlock()
	if complete(done) { // by whoever held the lock
		return done, nil
	}
	start := time.Now()
	fmt.Fprintf(b.Progress, "lab: building %s (once; minutes with an empty Go cache)\n", r.name)
	tmp := filepath.Join(dir, "bin.tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return Set{}, err
	}
	for _, j := range r.jobs {
		if err := b.run(ctx, r.module, tmp, j); err != nil {
			return Set{}, fmt.Errorf("build %s: %w", r.name, err)
		}
	}
	if err := os.Rename(tmp, done.Dir); err != nil {
		return Set{}, err
	}
	fmt.Fprintf(b.Progress, "lab: built %s in %.0f s\n", r.name, time.Since(start).Seconds())
	return done, nil
}

func complete(s Set) bool {
	_, err := os.Stat(s.Dir)
	return err == nil
}

// run calls the go command with what makes the same bytes everywhere.
func (b Builder) run(ctx context.Context, module, out string, j job) error {
	args := slices.Concat([]string{"build", "-mod=readonly", "-buildvcs=false", "-trimpath"}, j.flags,
		[]string{"-o", out + string(filepath.Separator)}, j.targets)
	cgo := "CGO_ENABLED=0"
	if j.cgo {
		cgo = "CGO_ENABLED=1"
	}
	_, err := b.goCommand(ctx, module, []string{cgo}, args...)
	return err
}

// goCommand runs the go command in a module and returns what it printed.
func (b Builder) goCommand(ctx context.Context, module string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = slices.Concat(os.Environ(), []string{"GOWORK=off", "GOFLAGS="}, env)
	var stdout strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, b.Progress
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s in %s: %w", args[0], module, err)
	}
	return stdout.String(), nil
}

// hash is over all that decides the bytes of the set.
func (r recipe) hash() (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s %+v\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, r.jobs)
	entries, err := os.ReadDir(r.module)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if ext := filepath.Ext(name); ext != ".go" && ext != ".mod" && ext != ".sum" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(r.module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s\n", name, len(content), content)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// lock has one process at a time build what has that name.
func (b Builder) lock(ctx context.Context, name string) (unlock func(), err error) {
	return Lock(ctx, b.Cache(), name, func() {
		fmt.Fprintf(b.Progress, "lab: waiting for another process that builds %s\n", name)
	})
}

// Lock waits, until ctx ends, for the lock of a name in a directory, which it makes. It is a file's,
// so it ends with the process that holds it. Waiting is called once when another one does.
func Lock(ctx context.Context, dir, name string, waiting func()) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; told = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		if !told {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for %s: %w", f.Name(), context.Cause(ctx))
		case <-tick.C:
		}
	}
}
