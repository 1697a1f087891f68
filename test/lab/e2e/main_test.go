// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e_test holds the scenarios that need a real node: kubelet, containerd, runc and
// the kernel, with Weft installed as deploy/ ships it.
package e2e_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/box"
)

// ownerVariable makes the test binary the owner of a lab of its own, which waits to be killed.
const ownerVariable = "WEFT_LAB_OWNER"

func TestMain(m *testing.M) {
	box.Init()
	if os.Getenv(ownerVariable) != "" {
		if err := own(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if call := os.Getenv(runtimeVariable); call != "" {
		if err := callRuntime(call); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	lab.Main(m, 1)
}

func own() error {
	cp, err := lab.Up(context.Background(), lab.Options{Progress: os.Stderr}, 1)
	if err != nil {
		return err
	}
	fmt.Println(cp.Dir, cp.Nodes()[0].PID())
	select {}
}
