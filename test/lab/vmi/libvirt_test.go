// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/test/lab/guest"
)

// A machine of plain libvirt, without Kubernetes.
func TestLibvirt(t *testing.T) {
	p := launcher(t, "11111111-2222-3333-4444-000000000001")
	g := start(t, p, "plain", guest.NIC{Name: "default", MAC: "02:00:00:00:00:01"}, guest.NIC{Name: "red", MAC: "02:00:00:00:00:02"})
	do(t, g, "ip -6 addr flush scope link")
	all, err := getVMIs(t, "--libvirt", "qemu+unix:///system?socket="+p.Path("run/libvirt/libvirt-sock"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Name != "plain" || all[0].State != "running" || all[0].Agent != "connected" {
		t.Fatalf("%+v, want one machine that runs and whose agent is connected", all)
	}
	want := []entry{
		{Name: "default", MAC: "02:00:00:00:00:01", IP: "10.0.15.15", IPs: []string{"10.0.15.15"}, InterfaceName: "eth0", InfoSource: "domain, guest-agent", LinkState: "up"},
		{Name: "red", MAC: "02:00:00:00:00:02", IP: "10.0.16.15", IPs: []string{"10.0.16.15"}, InterfaceName: "eth1", InfoSource: "domain, guest-agent", LinkState: "up"},
	}
	if d := cmp.Diff(want, all[0].Interfaces); d != "" {
		t.Error("interfaces (-want +got):\n", d)
	}
}
