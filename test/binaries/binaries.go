// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binaries builds what black-box tests execute: Weft's own commands, the
// standard CNI plugins and the recording delegate.
//
// Binaries are built once per test process into <repository>/.cache/test, under a
// file lock, because the tests of several packages run side by side and linking the
// plugins takes longer than most tests; the go command relinks only what changed.
// Where there is no Go (test/lab/vm) they are given, in the directory of givenEnv.
// Nothing but tests may import it.
package binaries

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// Weft returns a directory with weft-cni, weft-planner and every other command of cmd/.
func Weft(tb testing.TB) string {
	tb.Helper()
	return built(tb, "weft", ".", "./cmd/...")
}

// Plugins returns a directory with the standard CNI plugins.
func Plugins(tb testing.TB) string {
	tb.Helper()
	return built(tb, "plugins", "build/plugins", "tool")
}

// Delegate returns a fresh directory with the recording delegate (test/delegate)
// under each of names.
func Delegate(tb testing.TB, names ...string) string {
	tb.Helper()
	source := filepath.Join(built(tb, "delegate", ".", "./test/delegate"), "delegate")
	dir := tb.TempDir()
	for _, name := range names {
		target := filepath.Join(dir, name)
		if os.Link(source, target) == nil {
			continue
		}
		// Another file system: copied instead.
		if err := copyFile(source, target); err != nil {
			tb.Fatalf("copy delegate: %v", err)
		}
	}
	return dir
}

// done holds what this process has built: directory name to the error of building it.
var done sync.Map //nolint:gochecknoglobals // one build per test process is the point

// givenEnv names a directory of directories of binaries that were built for this run.
const givenEnv = "WEFT_TEST_BINARIES"

func built(tb testing.TB, name, module, pattern string) string {
	tb.Helper()
	if given := os.Getenv(givenEnv); given != "" {
		dir := filepath.Join(given, name)
		if _, err := os.Stat(dir); err != nil {
			tb.Fatalf("%s has no %s: %v", givenEnv, name, err)
		}
		return dir
	}
	root, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(root, ".cache", "test", name)
	once, _ := done.LoadOrStore(name, sync.OnceValue(func() error {
		return build(dir, filepath.Join(root, module), pattern)
	}))
	if err := once.(func() error)(); err != nil {
		tb.Fatalf("build %s: %v", name, err)
	}
	return dir
}

// root is the repository: the nearest directory above the test's own (where go test
// runs it) that holds this very file.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for up := dir; ; up = filepath.Dir(up) {
		if _, err := os.Stat(filepath.Join(up, "test", "binaries", "binaries.go")); err == nil {
			return up, nil
		}
		if up == filepath.Dir(up) {
			return "", fmt.Errorf("find repository above %s: no test/binaries", dir)
		}
	}
}

func build(dir, module, pattern string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	cmd := exec.Command("go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w",
		"-o", dir+string(filepath.Separator), pattern)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pattern, err, out)
	}
	return nil
}

func copyFile(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}
