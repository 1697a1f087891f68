// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kerneltest gives tests network namespaces of their own (as root directly, as an
// ordinary user inside an own user namespace), and a Machine in memory for tests above the kernel.
//
// It owns: the re-execution of a test binary, namespaces that end with their test, and the rules
// of the kernel that the Machine obeys, each of which is tried on kernels as well.
// Invariant: nothing of it touches the network that the test binary was started in.
// It must not know what is tested.
//
// Implements: architecture 5, the level "netns"; spec/dra.md 2.4 (what the Machine obeys).
package kerneltest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
)

// machineEnv marks a machine that is thrown away (test/lab/vm): its namespace is where its real
// devices are, and tests may do with it what they like.
const machineEnv = "WEFT_VM"

// InMachine tells whether the tests run in such a machine.
func InMachine() bool { return os.Getenv(machineEnv) != "" }

// inside marks the re-executed binary; its value is "1", or why there are no namespaces.
const inside = "WEFT_TEST_NAMESPACES"

// Main runs the tests of a package in own user (when not root), network and mount namespaces,
// and returns the exit code; in the machine they run in the first namespaces. Where the kernel forbids that, the tests run where they are, and
// Netns skips with the reason (fails when WEFT_CI is set).
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" {
		return m.Run()
	}
	if InMachine() {
		if err := os.Setenv(inside, "1"); err != nil {
			panic(err)
		}
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = Namespaces()
	if err := cmd.Start(); err != nil {
		if err := os.Setenv(inside, err.Error()); err != nil {
			panic(err)
		}
		return m.Run()
	}
	if err := cmd.Wait(); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
			return exit.ExitCode()
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Namespaces is what a child process is started with to have own namespaces. The mounts of
// the new mount namespace do not propagate.
func Namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS, // unlike Cloneflags, this makes the mounts private
		Cloneflags:   syscall.CLONE_NEWNET,
		Pdeathsig:    syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// Netns makes a namespace that ends with the test.
func Netns(t testing.TB) *kernel.Netns {
	t.Helper()
	Need(t)
	n, err := kernel.CreateNetns(filepath.Join(t.TempDir(), "netns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.Close(), kernel.RemoveNetns(n.Path())); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Need skips the test where there are no own namespaces, saying why.
func Need(t testing.TB) {
	t.Helper()
	switch reason := os.Getenv(inside); {
	case reason == "1":
	case reason == "":
		t.Fatal("kerneltest.Main was not called from TestMain")
	case os.Getenv("WEFT_CI") != "":
		t.Fatalf("no own network namespace: %s", reason)
	default:
		t.Skipf("no own network namespace: %s", reason)
	}
}

// NetnsThatGoes makes a namespace that nobody has open: it ends when its path is unbound, which
// is at the end of the test, unless the test was quicker.
func NetnsThatGoes(t testing.TB) (path string) {
	t.Helper()
	Need(t)
	path = filepath.Join(t.TempDir(), "netns")
	n, err := kernel.CreateNetns(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kernel.RemoveNetns(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
	return path
}
