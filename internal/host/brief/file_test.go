// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/host/brief"
)

// TestOpenIn: with fewer than three descriptors left a file is refused, not tried.
func TestOpenIn(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	free := make([]int, 4) // the lowest numbers that are
	for i := range free {
		if free[i], err = syscall.Dup(0); err != nil {
			t.Fatal(err)
		}
	}
	for _, fd := range free {
		syscall.Close(fd)
	}
	opened := func(spare int) error {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(free[spare]), Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		f, err := brief.OpenIn(root, "file", os.O_RDONLY, 0)
		if err == nil {
			f.Close()
		}
		return err
	}
	for spare := range 3 { // a limit of free[n] leaves n
		if err := opened(spare); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("with %d descriptors left: %v", spare, err)
		}
	}
	if err := opened(3); err != nil {
		t.Errorf("with three left: %v", err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if _, err := brief.OpenIn(root, "../file", os.O_RDONLY, 0); err == nil {
		t.Error("a name leaves the root")
	}
}
