// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/test/lab/guest"
)

// plainLibvirt: what is shown of a libvirt's machine without Kubernetes.
func plainLibvirt(t *testing.T, p *guest.Pod, g *guest.Guest) {
	t.Helper()
	all, err := getVMIs(t, "--libvirt", "qemu+unix:///system?socket="+p.Path("run/libvirt/libvirt-sock"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Name != g.Name || all[0].State != "running" || all[0].Agent != "connected" {
		t.Fatalf("%+v, want one machine that runs and whose agent is connected", all)
	}
	want := []entry{
		{Name: "default", MAC: "02:00:00:00:00:01", IP: "10.0.15.15", IPs: []string{"10.0.15.15", "fe80::ff:fe00:1"}, InterfaceName: "eth0", InfoSource: "domain, guest-agent", LinkState: "up"},
		{Name: "red", MAC: "02:00:00:00:00:02", IP: "10.0.16.15", IPs: []string{"10.0.16.15", "fe80::ff:fe00:2"}, InterfaceName: "eth1", InfoSource: "domain, guest-agent", LinkState: "up"},
	}
	if d := cmp.Diff(want, all[0].Interfaces); d != "" {
		t.Error("interfaces (-want +got):\n", d)
	}
}
