// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"maps"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
)

// A virtual function goes into a pod by host-device, in each of the ways in which the plugin learns
// which one it is, talks to another pod's, and comes home under its name.
func TestVirtualFunctions(t *testing.T) {
	c := openCards(t, 2)
	hostDevice := func(n *node, more map[string]any) map[string]any {
		conf := map[string]any{"type": "host-device"}
		maps.Copy(conf, more)
		return n.ipam("net-vf", "10.78.0.0/24", conf)
	}
	const resource = "example.com/vf"
	for name, give := range map[string]func(n *node, i int, network string, vf kernel.PCIAddr) (selection string){
		"pciBusID in the network's configuration": func(n *node, _ int, network string, vf kernel.PCIAddr) string {
			n.nad(network, hostDevice(n, map[string]any{"pciBusID": vf}), "")
			return network
		},
		"deviceID in the annotation, given in runtimeConfig": func(n *node, _ int, network string, vf kernel.PCIAddr) string {
			n.nad(network, hostDevice(n, map[string]any{"capabilities": map[string]any{"deviceID": true}}), "")
			return `[{"name":"` + network + `","deviceID":"` + string(vf) + `"}]`
		},
		"device of the kubelet, given in runtimeConfig": func(n *node, i int, network string, vf kernel.PCIAddr) string {
			n.nad(network, hostDevice(n, map[string]any{"capabilities": map[string]any{"deviceID": true}}), resource)
			n.allocate(i, resource, vf)
			return network
		},
		"device of the kubelet, given as pciBusID": func(n *node, i int, network string, vf kernel.PCIAddr) string {
			n.nad(network, hostDevice(n, nil), resource)
			n.allocate(i, resource, vf)
			return network
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cards{Machine: c.Machine, t: t, pfs: c.pfs}
			n := newNode(t, t.TempDir())
			before, vfs := c.snapshot(), c.vfs()
			var pods []pod
			for i, network := range []string{"here", "there"} {
				at := c.link(vfs[i])
				p := n.pod(podNames[i], give(n, i, network, vfs[i]))
				pods = append(pods, p)
				l := n.add(p, "net1", "default/"+network, "device")
				if l.PCI != vfs[i] || l.MAC.String() != at.MAC.String() {
					t.Errorf("net1 is %+v, not %+v", l, at)
				}
			}
			talk(t, "net1", pods...)
			n.ok("CHECK", pods[0])
			n.checked(pods[0], "net1")
			for _, p := range pods {
				n.ok("DEL", p)
			}
			n.wantNothing(pods...)
			c.unchanged(before)
		})
	}
}

var podNames = []string{"a", "b"} //nolint:gochecknoglobals // a table

// allocate has the kubelet's checkpoint say that the first i+1 pods have a device each.
func (n *node) allocate(i int, resource string, vf kernel.PCIAddr) {
	n.t.Helper()
	n.devices = append(n.devices[:i:i], map[string]any{
		"PodUID": "uid-" + podNames[i], "ContainerName": "c", "ResourceName": resource,
		"DeviceIDs": map[string]any{"0": []any{vf}}, "AllocResp": "",
	})
	n.write("kubelet/device-plugins/kubelet_internal_checkpoint", map[string]any{
		"Data":     map[string]any{"PodDeviceEntries": n.devices, "RegisteredDevices": map[string]any{}},
		"Checksum": 1,
	})
}
