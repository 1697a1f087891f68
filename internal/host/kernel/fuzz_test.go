// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
)

// FuzzSysfs reads any text as what sysfs has: an address, a number, a link, the name of a port.
func FuzzSysfs(f *testing.F) {
	for _, s := range []string{
		"0000:03:00.1", "10000:e1:1f.7", "0x020000", "-1", "8", "virtfn0", "virtfn65536", "virtfn+1",
		"../../../devices/pci0000:00/0000:00:02.0/0000:03:00.2", "p0", "pf0vf1", "",
		"DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:101E\nPCI_SLOT_NAME=0000:03:00.2\n", "PCI_CLASS=1020000\nPCI_ID=15B3:10-E",
	} {
		f.Add(s)
	}
	shape := regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	f.Fuzz(func(t *testing.T, s string) {
		if addr, err := kernel.ParsePCIAddr(s); (err == nil) != shape.MatchString(s) || err == nil && string(addr) != s {
			t.Errorf("address %q: %q, %v", s, addr, err)
		}
		if id, ok := kernel.ParseVirtfn(s); ok && (id < 0 || id > 1<<16 || !strings.HasPrefix(s, "virtfn")) {
			t.Errorf("virtfn %q: %d", s, id)
		}
		if n, err := kernel.ParseNumber(s); err == nil && (n < -1<<32 || n > 1<<32) {
			t.Errorf("number %q: %d", s, n)
		}
		if root := kernel.PCIeRoot(s); root != "" && !strings.HasPrefix(root, "pci") {
			t.Errorf("root of %q: %q", s, root)
		}
		var f kernel.Function
		if kernel.ParseUevent(s, &f) != (f.Vendor != "") || f.Class > 0xffffff || f.Vendor != "" && len(f.Vendor+f.Device) != len("0x15b30x101e") {
			t.Errorf("uevent %q: %+v", s, f)
		}
		if r := kernel.Rank(s); r != 0 && r != 1 {
			t.Errorf("rank of %q: %d", s, r)
		}
	})
}

func TestOfDevices(t *testing.T) {
	event := func(lines ...string) []byte { return []byte(strings.Join(lines, "\x00") + "\x00") }
	for _, test := range []struct {
		event []byte
		want  bool
	}{
		{event("add@/devices/x/net/eth0", "ACTION=add", "SUBSYSTEM=net", "INTERFACE=eth0"), true},
		{event("bind@/devices/x", "ACTION=bind", "SUBSYSTEM=pci", "PCI_CLASS=20000"), true},
		{event("add@/devices/x", "ACTION=add", "SUBSYSTEM=block"), false},
		{event("add@/devices/x", "ACTION=add", "SUBSYSTEM=network"), false},
		{event("add@SUBSYSTEM=net"), false},
		{nil, false},
	} {
		if is := kernel.OfDevices(test.event); is != test.want {
			t.Errorf("%q: %t", test.event, is)
		}
	}
}

// FuzzUevent: whatever comes, only what says so is about a network or PCI device.
func FuzzUevent(f *testing.F) {
	f.Add([]byte("add@/devices/x\x00SUBSYSTEM=net\x00"))
	f.Add([]byte("SUBSYSTEM=pci"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, event []byte) {
		if kernel.OfDevices(event) && !bytes.Contains(event, []byte("SUBSYSTEM=net")) && !bytes.Contains(event, []byte("SUBSYSTEM=pci")) {
			t.Errorf("%q", event)
		}
	})
}

// vfAttrs are a link's attributes with one VF.
func vfAttrs(spoof, trust uint32) []byte {
	words := func(w ...uint32) []byte {
		var data []byte
		for _, v := range w {
			data = binary.NativeEndian.AppendUint32(data, v)
		}
		return data
	}
	list := nl.NewRtAttr(unix.IFLA_VFINFO_LIST, nil)
	info := list.AddRtAttr(nl.IFLA_VF_INFO, nil)
	info.AddRtAttr(nl.IFLA_VF_MAC, append(words(3), append([]byte{2, 0, 0, 0, 0, 1}, make([]byte, 26)...)...))
	info.AddRtAttr(nl.IFLA_VF_VLAN, words(3, 100, 5))
	info.AddRtAttr(nl.IFLA_VF_SPOOFCHK, words(3, spoof))
	info.AddRtAttr(nl.IFLA_VF_TRUST, words(3, trust))
	return list.Serialize()
}

// A driver that does not tell is not taken for one that says yes.
func TestParseVFs(t *testing.T) {
	const unknown = 1<<32 - 1
	for _, test := range []struct {
		spoof, trust uint32
		want         string
	}{{0, 1, "false true"}, {1, 0, "true false"}, {unknown, unknown, "? ?"}} {
		all, err := kernel.ParseVFs(vfAttrs(test.spoof, test.trust))
		must(t, err)
		say := func(b *bool) string {
			if b == nil {
				return "?"
			}
			return map[bool]string{true: "true", false: "false"}[*b]
		}
		if len(all) != 1 || all[0].ID != 3 || all[0].VLAN != 100 || all[0].QoS != 5 || all[0].MAC.String() != "02:00:00:00:00:01" ||
			say(all[0].Spoof)+" "+say(all[0].Trust) != test.want {
			t.Errorf("%d %d: %+v", test.spoof, test.trust, all)
		}
	}
}

// FuzzVFs: no answer ends the reader.
func FuzzVFs(f *testing.F) {
	f.Add(vfAttrs(1, 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := kernel.ParseVFs(data)
		if err != nil && all != nil {
			t.Errorf("%v and %v", all, err)
		}
	})
}
