// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/dra/kubelet/kubelettest"
)

// TestNetworkDriver: with a configuration of its node the agent registers the driver with the
// kubelet, its tables can be looked at, and pods get their networks as without it.
func TestNetworkDriver(t *testing.T) {
	r := newRig(t)
	kubelet := kubelettest.Start(t)
	sysfs := filepath.Join(r.dir, "sys")
	if err := os.MkdirAll(filepath.Join(sysfs, "bus/pci/devices"), 0o755); err != nil {
		t.Fatal(err)
	}
	// This node had a configuration once, so that the server, which tells no version, is not waited for.
	state := filepath.Join(r.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	r.write(filepath.Join(state, "networkdriver.json"), `{"driverName":"old.example.com"}`)
	r.config["networkDriver"] = map[string]any{
		"enabled": true, "kubeletDir": kubelet.Dir(), "nriSocket": filepath.Join(r.dir, "nri.sock"), "sysfs": sysfs,
	}
	r.start()
	kubelet.WaitFor("old.example.com") // its last good one
	r.server.Apply(`{"apiVersion":"cilium.io/v2alpha1","kind":"CiliumNetworkDriverNodeConfig","metadata":{"name":"n1"},
		"spec":{"pools":[{"name":"vfs","filter":{"deviceManagers":["sr-iov"]}}],"deviceManagerConfigs":{"sriov":{"enabled":true}}}}`)
	kubelet.WaitFor("networkdriver.cilium.io")
	if log := r.agent.log.String(); !strings.Contains(log, "kubelet knows the driver") {
		t.Error(log)
	}
}
