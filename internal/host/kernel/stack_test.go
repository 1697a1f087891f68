// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// TestStack: a port names its bridge, and a link what stands on it; the two ends of a veth stand on
// nothing, and neither does an end whose other one is elsewhere.
func TestStack(t *testing.T) {
	n, other := kerneltest.Netns(t), kerneltest.Netns(t)
	must(t, n.AddVeth("base", other, "far"))
	must(t, n.AddVeth("a", n, "b"))
	must(t, n.AddBridge("br"))
	must(t, kernel.With(kernel.Namespace{Path: n.Path()}, func(_ *kernel.Netns, h *netlink.Handle) error {
		br, err := h.LinkByName("br")
		must(t, err)
		a, err := h.LinkByName("a")
		must(t, err)
		must(t, h.LinkSetMaster(a, br))
		base, err := h.LinkByName("base")
		must(t, err)
		return h.LinkAdd(&netlink.Macvlan{
			LinkAttrs: netlink.LinkAttrs{Name: "top", ParentIndex: base.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE,
		})
	}))
	type place struct {
		Master string
		Uppers []string
	}
	got := map[string]place{}
	all, err := n.Links()
	must(t, err)
	for _, l := range all {
		got[l.Name] = place{l.Master, l.Uppers}
	}
	want := map[string]place{"lo": {}, "base": {Uppers: []string{"top"}}, "top": {}, "a": {Master: "br"}, "b": {}, "br": {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}
