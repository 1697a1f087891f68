// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package start

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/weftnet/weft/test/binaries"
)

// TestStart: it was done before the test.
func TestStart(t *testing.T) {
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d processors", n)
	}
}

// TestPopulate: the pages are there without anybody having touched them.
func TestPopulate(t *testing.T) {
	from, err := populate()
	if err == syscall.EINVAL { //nolint:errorlint // a number
		t.Skip("kernel: it has no MADV_POPULATE_WRITE")
	}
	if err != 0 {
		t.Fatal(err)
	}
	there := make([]byte, heap/os.Getpagesize())
	if _, _, err := syscall.RawSyscall(syscall.SYS_MINCORE, from, heap, address(there)); err != 0 {
		t.Fatal(err)
	}
	for i, is := range there {
		if is&1 == 0 {
			t.Errorf("page %d of %d is not there", i, len(there))
		}
	}
}

// The programs run with the collector that they are made for, whatever the runtime's environment
// says for programs of its own. Work is counted, in cycles of the collector: before main a memory
// limit that is passed already makes some, and fillers without end made ten thousands.
func TestEnvironmentDoesNotSlowPrograms(t *testing.T) {
	const cycles = 1000
	weft := binaries.Weft(t)
	for _, program := range []string{"weft-cni", "weft-planner"} {
		for _, env := range [][]string{{"GOGC=1"}, {"GOGC=20"}, {"GOMEMLIMIT=4MiB"}, {"GOGC=1", "GOMEMLIMIT=1"}} {
			cmd := exec.CommandContext(t.Context(), filepath.Join(weft, program)) // stdin is empty
			cmd.Env = append(append(os.Environ(), "CNI_COMMAND=VERSION", "GODEBUG=gctrace=1"), env...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v %s: %v\n%.2000s", env, program, err, &stderr)
			}
			if n := bytes.Count(stderr.Bytes(), []byte("gc ")); n > cycles {
				t.Errorf("%v %s: the collector ran %d times", env, program, n)
			}
		}
	}
}
