// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
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
	r.server.Apply(`{"apiVersion":"cilium.io/v2alpha1","kind":"CiliumNetworkDriverNodeConfig","metadata":{"name":"n1"},
		"spec":{"pools":[{"name":"vfs","filter":{"deviceManagers":["sr-iov"]}}],"deviceManagerConfigs":{"sriov":{"enabled":true}}}}`)
	kubelet.WaitFor("networkdriver.cilium.io")
	if log := r.agent.log.String(); !strings.Contains(log, "kubelet knows the driver") {
		t.Error(log)
	}
	if n := r.server.Count("watch", "resourceclaims"); n != 0 {
		t.Errorf("the agent follows the cluster's claims, %d times", n)
	}
}

// TestDriverAlone: without the CNI part nothing is published and nobody plans, and the agent is ready.
func TestDriverAlone(t *testing.T) {
	r := newRig(t)
	kubelet := kubelettest.Start(t)
	r.config["cni"].(map[string]any)["enabled"] = false
	r.config["networkDriver"] = map[string]any{
		"enabled": true, "kubeletDir": kubelet.Dir(), "nriSocket": filepath.Join(r.dir, "nri.sock"), "sysfs": r.dir,
	}
	r.startReady()
	if got := r.read(r.published()); got != "" {
		t.Errorf("published is %s", got)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "run", "agent.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the planner's socket: %v", err)
	}
	if devices, err := r.debug().Devices(t.Context()); err != nil || len(devices.Devices) != 0 {
		t.Errorf("devices: %+v, %v", devices, err)
	}
	if claims, err := r.debug().Claims(t.Context(), ""); err != nil || len(claims.Claims) != 0 {
		t.Errorf("claims: %+v, %v", claims, err)
	}
	r.stop()
}
