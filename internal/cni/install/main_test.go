// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/install"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// helperEnv makes this test a process that installs, or uninstalls, and ends: the verb
// and the options' directory.
const helperEnv = "INSTALL_TEST_HELPER"

func TestMain(m *testing.M) {
	if verb, dir, ok := strings.Cut(os.Getenv(helperEnv), " "); ok {
		if err := helper(verb, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(kerneltest.Main(m))
}

func helper(verb, dir string) error {
	o := places(dir)
	if verb == "install" {
		_, err := install.Install(context.Background(), o)
		return err
	}
	o.Force = verb == "force"
	return install.Uninstall(context.Background(), o, os.Stdout)
}

// places are a node's below a directory.
func places(dir string) install.Options {
	return install.Options{
		ConfDir: dir + "/net.d", BinDir: dir + "/bin", StateDir: dir + "/state", Source: dir + "/image/weft-cni",
		AgentSocket: dir + "/agent.sock",
	}
}
