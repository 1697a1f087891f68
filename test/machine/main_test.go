// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"os"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// TestMain is also the plugin bond, when it is executed as that.
func TestMain(m *testing.M) {
	if os.Getenv(bondEnv) != "" {
		bondPlugin()
		return
	}
	os.Exit(kerneltest.Main(m))
}

func needMachine(t *testing.T) {
	t.Helper()
	if !kerneltest.InMachine() {
		t.Skip("kernel: it is not that of the machine with two SR-IOV cards (make vm-test)")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
