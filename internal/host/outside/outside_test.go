// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package outside_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/internal/host/outside"
	"github.com/weftnet/weft/internal/host/proc"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// elsewhere starts a process in mount and network namespaces of its own, in which a folder
// has another file system with a file "there".
func elsewhere(t *testing.T) (pid int, folder string) {
	t.Helper()
	kerneltest.Need(t)
	folder = t.TempDir()
	ready := filepath.Join(t.TempDir(), "ready")
	cmd := exec.Command("/bin/sh", "-c", `mount -t tmpfs none "$1" && echo yes > "$1/there" && touch "$2" && exec sleep 1000`, "sh", folder, ready)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err := os.Stat(ready); err == nil {
			return cmd.Process.Pid, folder
		}
		if time.Now().After(deadline) {
			t.Fatal("the other namespaces do not come")
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // waits for another process
	}
}

func TestRunElsewhere(t *testing.T) {
	defer goleak.VerifyNone(t)
	pid, folder := elsewhere(t)
	place, err := outside.FindAt(namespaces(t, strconv.Itoa(pid)), pid)
	if err != nil || place.Here() {
		t.Fatalf("another process' namespaces are taken for these: %v", err)
	}
	script := `cat "$1/there"; readlink /proc/self/ns/net; echo "$HOME$ONLY"; cat; echo complaint >&2`
	out, complaint, err := place.Run(t.Context(), []string{"/bin/sh", "-c", script, "sh", folder}, []string{"ONLY=this", "PATH=/usr/bin:/bin"}, []byte("input"))
	if err != nil {
		t.Fatal(err)
	}
	net, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "yes\n" + net + "\nthis\ninput"; string(out) != want || string(complaint) != "complaint\n" {
		t.Errorf("the program wrote %q and %q, want %q", out, complaint, want)
	}
	// Nothing of this process went there.
	if _, err := os.Stat(filepath.Join(folder, "there")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is seen here: %v", err)
	}
}

func TestRunHere(t *testing.T) {
	place, err := outside.FindAt(namespaces(t, "self"), 1<<30)
	if err != nil || !place.Here() {
		t.Fatalf("here is not found: %v", err)
	}
	out, _, err := place.Run(t.Context(), []string{"/bin/echo", "a"}, nil, nil)
	if err != nil || string(out) != "a\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestFindNothing(t *testing.T) {
	for name, pid := range map[string]int{"other namespaces": os.Getpid(), "no such process": 1 << 30} {
		if place, err := outside.FindAt("net:[1] mnt:[2]", pid); !errors.Is(err, outside.ErrNotFound) {
			t.Errorf("%s: %v, %v", name, place, err)
		}
	}
}

func namespaces(t *testing.T, process string) string {
	t.Helper()
	id, err := proc.Namespaces(process)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestRunFails(t *testing.T) {
	here := outside.Place{}
	if _, _, err := here.Run(t.Context(), []string{filepath.Join(t.TempDir(), "none")}, nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	out, _, err := here.Run(t.Context(), []string{"/bin/sh", "-c", "echo said; exit 3"}, nil, nil)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 || string(out) != "said\n" {
		t.Errorf("a program that fails: %q, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := here.Run(ctx, []string{"/bin/sleep", "1000"}, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that hangs: %v", err)
	}
	out, _, err = here.Run(t.Context(), []string{"/bin/sh", "-c", "head -c 3000000 /dev/zero"}, []string{"PATH=/usr/bin:/bin"}, nil)
	if err != nil || len(out) != 1<<20 || strings.Trim(string(out), "\x00") != "" {
		t.Errorf("a program that talks: %d bytes, %v", len(out), err)
	}
}
