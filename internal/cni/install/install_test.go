// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/cni/install"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/test/crash/ptrace"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newHost is a directory with an image and an empty node.
func newHost(t *testing.T) install.Options {
	t.Helper()
	dir := t.TempDir()
	o := places(dir)
	for _, d := range []string{o.ConfDir, o.BinDir, filepath.Dir(o.Source)} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.WriteFile(o.Source, []byte("new plugin"), 0o755))
	return o
}

func TestInstall(t *testing.T) {
	o := newHost(t)
	plugin := filepath.Join(o.BinDir, "weft-cni")
	want := func(changed bool) {
		t.Helper()
		before, _ := os.Lstat(plugin)
		got, err := install.Install(t.Context(), o)
		must(t, err)
		after, err := os.Lstat(plugin)
		must(t, err)
		b, err := os.ReadFile(plugin)
		must(t, err)
		source, err := os.ReadFile(o.Source)
		must(t, err)
		if string(b) != string(source) || after.Mode() != 0o755 {
			t.Errorf("installed %q, mode %v", b, after.Mode())
		}
		if got != changed || before != nil && os.SameFile(before, after) == changed {
			t.Errorf("changed: %v, want %v", got, changed)
		}
		if names, _ := filepath.Glob(o.BinDir + "/.*"); len(names) > 0 {
			t.Errorf("left %v", names)
		}
	}
	want(true)
	want(false)
	must(t, os.WriteFile(o.BinDir+"/.weft-cni.77.tmp", []byte("half"), 0o600))
	want(false)
	must(t, os.WriteFile(o.Source, []byte("newer plugin"), 0o755))
	want(true)
	must(t, os.Chmod(plugin, 0o644))
	want(true)
	must(t, os.Truncate(plugin, 0))
	want(true)
	must(t, errors.Join(os.Remove(plugin), os.Symlink(o.Source, plugin)))
	want(true)
}

// The plugin that runs stays as it is for who runs it.
func TestInstallWhileItRuns(t *testing.T) {
	o := newHost(t)
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	b, err := os.ReadFile(sleep)
	must(t, err)
	must(t, os.WriteFile(o.Source, b, 0o755))
	_, err = install.Install(t.Context(), o)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(o.BinDir, "weft-cni"), "600")
	cmd.Args[0] = "sleep"
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	must(t, os.WriteFile(o.Source, []byte("new plugin"), 0o755))
	if changed, err := install.Install(t.Context(), o); err != nil || !changed {
		t.Errorf("changed %v, %v", changed, err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("what ran: %v", err)
	}
}

// victim is a node that a test spoils.
type victim struct {
	*testing.T
	*install.Options
}

func TestInstallFails(t *testing.T) {
	tests := map[string]struct {
		hurt func(victim)
		want string
	}{
		"binDir is missing":     {func(o victim) { must(o.T, os.Remove(o.BinDir)) }, "must be there"},
		"binDir is a file":      {func(o victim) { o.BinDir = o.Source }, "is no directory"},
		"binDir is not a path":  {func(o victim) { o.BinDir = "bin" }, "binDir"},
		"source is missing":     {func(o victim) { must(o.T, os.Remove(o.Source)) }, "read the plugin to install"},
		"source is empty":       {func(o victim) { must(o.T, os.Truncate(o.Source, 0)) }, "is empty"},
		"source is a directory": {func(o victim) { o.Source = o.BinDir }, "no regular file"},
		"no source beside us":   {func(o victim) { o.Source = "" }, "weft-cni"},
		"plugin is a directory": {func(o victim) { must(o.T, os.Mkdir(o.BinDir+"/weft-cni", 0o755)) }, "binDir: "},
		"read-only": {func(o victim) {
			kerneltest.Need(o.T)
			must(o.T, syscall.Mount(o.BinDir, o.BinDir, "", syscall.MS_BIND, ""))
			o.Cleanup(func() { _ = syscall.Unmount(o.BinDir, syscall.MNT_DETACH) })
			must(o.T, syscall.Mount("", o.BinDir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
		}, "must be mounted for writing"},
		"full": {func(o victim) {
			kerneltest.Need(o.T)
			must(o.T, syscall.Mount("tmpfs", o.BinDir, "tmpfs", 0, "size=16k"))
			o.Cleanup(func() { _ = syscall.Unmount(o.BinDir, syscall.MNT_DETACH) })
			must(o.T, os.WriteFile(o.Source, make([]byte, 1<<20), 0o755))
		}, "no space left"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := newHost(t)
			test.hurt(victim{t, &o})
			_, err := install.Install(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if names, _ := filepath.Glob(o.BinDir + "/.*"); len(names) > 0 {
				t.Errorf("left %v", names)
			}
		})
	}
}

// traced runs a helper that is killed at a call.
func traced(t *testing.T, verb, dir string, c ptrace.Command) ptrace.Outcome {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	c.Path, c.Args, c.Dir, c.Files = os.Args[0], []string{"install"}, dir, []*os.File{null, null, null}
	c.Env = []string{helperEnv + "=" + verb + " " + dir, "GOMAXPROCS=1"}
	out, err := ptrace.Run(t.Context(), c)
	must(t, err)
	return out
}

func needTrace(t *testing.T) {
	t.Helper()
	if err := ptrace.Probe(t.Context(), "/proc/self/exe", []string{"-test.run=^$"}); err != nil {
		if os.Getenv("WEFT_CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// An Install that is killed before any of its calls leaves the old plugin or the new one,
// and nothing that the next does not clear.
func TestInstallKilledAnywhere(t *testing.T) {
	needTrace(t)
	kills := 0
	for step, killed := 1, true; killed && !t.Failed(); step++ {
		o := newHost(t)
		plugin := filepath.Join(o.BinDir, "weft-cni")
		must(t, os.WriteFile(plugin, []byte("old plugin"), 0o755))
		killed = traced(t, "install", filepath.Dir(o.BinDir), ptrace.Command{KillAt: step}).Killed
		if killed {
			kills++
		}
		if b, err := os.ReadFile(plugin); err != nil || string(b) != "old plugin" && string(b) != "new plugin" {
			t.Errorf("killed at %d: %q, %v", step, b, err)
		}
		_, err := install.Install(context.Background(), o)
		must(t, err)
		entries, err := os.ReadDir(o.BinDir)
		must(t, err)
		if b, err := os.ReadFile(plugin); err != nil || string(b) != "new plugin" || len(entries) != 1 {
			t.Errorf("killed at %d, then installed: %q, %v, %v", step, b, err, entries)
		}
	}
	if kills < 10 {
		t.Errorf("killed only %d times", kills)
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}
