// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/host/kernel"
)

var host kernel.Namespace //nolint:gochecknoglobals // the zero value has a name

// cards are the machine's two cards, which are wired to each other.
type cards struct {
	*kernel.Machine
	t   *testing.T
	pfs []kernel.PCIAddr
}

// openCards brings both cards up, and gives the first one so many new virtual functions.
func openCards(t *testing.T, vfs int) *cards {
	t.Helper()
	needMachine(t)
	m, err := kernel.Open("/sys")
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	c := &cards{Machine: m, t: t}
	all, err := m.Functions()
	must(t, err)
	for _, f := range all {
		if f.TotalVFs > 0 {
			c.pfs = append(c.pfs, f.Addr)
		}
	}
	if len(c.pfs) != 2 {
		t.Fatalf("the machine has the cards %v", c.pfs)
	}
	for i, pf := range c.pfs {
		must(t, c.SetUp(host, c.link(pf).Index, true))
		must(t, c.SetNumVFs(pf, 0))
		if i == 0 && vfs > 0 {
			must(t, c.SetNumVFs(pf, vfs))
		}
	}
	for id, vf := range c.vfs() {
		// A VF tells its address to the PF through a mailbox, which is given up when the PF is slow.
		must(t, c.SetVF(c.pfs[0], id, kernel.VFChange{MAC: c.link(vf).MAC}))
	}
	for _, pf := range c.pfs {
		eventually(t, "carrier of "+string(pf), func() bool { return c.link(pf).Running })
	}
	return c
}

// link waits for a function's link in the host's namespace.
func (c *cards) link(addr kernel.PCIAddr) (l kernel.Link) {
	c.t.Helper()
	eventually(c.t, "the link of "+string(addr), func() bool {
		var err error
		l, err = c.LinkOf(host, addr)
		return err == nil
	})
	return l
}

func (c *cards) pf(i int) string { return c.link(c.pfs[i]).Name }

// vfs are the first card's virtual functions by number.
func (c *cards) vfs() []kernel.PCIAddr {
	c.t.Helper()
	all, err := c.Functions()
	must(c.t, err)
	found := map[int]kernel.PCIAddr{}
	for _, f := range all {
		if f.PF == c.pfs[0] {
			found[f.VFID] = f.Addr
		}
	}
	var addrs []kernel.PCIAddr
	for _, id := range slices.Sorted(maps.Keys(found)) {
		addrs = append(addrs, found[id])
	}
	return addrs
}

// snapshot is what the host has of links.
func (c *cards) snapshot() map[string]string {
	c.t.Helper()
	links, err := c.Links(host)
	must(c.t, err)
	all := map[string]string{}
	for _, l := range links {
		all[l.Name] = fmt.Sprintf("%s %s %s alt=%v mtu=%d", l.Kind, l.PCI, l.MAC, l.AltNames, l.MTU)
	}
	return all
}

// unchanged compares the host's links with an earlier snapshot.
func (c *cards) unchanged(before map[string]string) {
	c.t.Helper()
	// What comes home does so in its own time.
	eventually(c.t, "the host's links being as many as before", func() bool { return len(c.snapshot()) >= len(before) })
	if diff := cmp.Diff(before, c.snapshot()); diff != "" {
		c.t.Errorf("the host's links (-before +after):\n%s", diff)
	}
}

// eventually waits for what a kernel does in its own time.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	const limit, pause = 3 * time.Minute, 20 * time.Millisecond
	for deadline := time.Now().Add(limit); !f(); <-time.After(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

// ip runs ip(8) in a pod, for what Weft has no need to do.
func ip(t *testing.T, p pod, args string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + p.netns, "ip"}, strings.Fields(args)...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// address is the IPv4 address of a pod's interface.
func address(t *testing.T, p pod, ifName string) netip.Prefix {
	t.Helper()
	addrs := p.links(t)[ifName].Addrs
	i := slices.IndexFunc(addrs, func(a netip.Prefix) bool { return a.Addr().Is4() })
	if i < 0 {
		t.Fatalf("%s of pod %s has no address, but %v", ifName, p.name, addrs)
	}
	return addrs[i]
}

// talk sends a datagram from one pod to another and back through an interface of each: addresses
// are resolved as well.
func talk(t *testing.T, ifName string, pods ...pod) {
	t.Helper()
	const port = 4711
	var conns []*net.UDPConn
	for _, p := range pods {
		p.sees(t, func(ns *kernel.Netns) {
			conn, err := ns.ListenUDP(context.Background(), ifName, netip.AddrPortFrom(address(t, p, ifName).Addr(), port))
			must(t, err)
			conns = append(conns, conn)
		})
	}
	for i, conn := range conns {
		defer conn.Close()
		other := 1 - i
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(address(t, pods[other], ifName).Addr(), port))
		text, buffer := "hello from "+pods[i].name, make([]byte, 64)
		eventually(t, "a datagram to "+to.String(), func() bool {
			if _, err := conn.WriteTo([]byte(text), to); err != nil {
				return false // no way yet
			}
			must(t, conns[other].SetReadDeadline(time.Now().Add(time.Second)))
			n, err := conns[other].Read(buffer)
			return err == nil && string(buffer[:n]) == text
		})
	}
}
