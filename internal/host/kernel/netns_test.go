// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

func TestLinks(t *testing.T) {
	n := pod(t)
	links, err := n.Links()
	must(t, err)
	if len(links) != 3 || links[0].Name != "lo" || links[0].Up || links[0].Kind != "device" {
		t.Fatalf("got %+v, want lo (down), eth0, net1", links)
	}
	at := slices.IndexFunc(links, func(l kernel.Link) bool { return l.Name == "net1" })
	l := links[at]
	if !l.Up || l.Kind != "veth" || l.MTU != 1500 || len(l.MAC) != 6 {
		t.Errorf("got %+v", l)
	}
	for _, want := range []string{"10.2.0.2/24", "fd02::2/64"} {
		if !slices.Contains(l.Addrs, netip.MustParsePrefix(want)) {
			t.Errorf("%s is missing in %v", want, l.Addrs)
		}
	}
}

func TestOpenNetnsRefuses(t *testing.T) {
	kerneltest.Need(t)
	dir := t.TempDir()
	if _, err := kernel.OpenNetns(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: got %v", err)
	}
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := kernel.OpenNetns(file); !errors.Is(err, unix.EINVAL) {
		t.Errorf("plain file: got %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	if _, err := kernel.OpenNetns(fifo); !errors.Is(err, unix.EINVAL) {
		t.Errorf("fifo: got %v", err)
	}
	if _, err := kernel.CreateNetns(file); !errors.Is(err, fs.ErrExist) {
		t.Errorf("path that is taken: got %v", err)
	}
}

func TestCallerStaysInItsNamespace(t *testing.T) {
	n := pod(t)
	before, err := os.Readlink("/proc/thread-self/ns/net")
	must(t, err)
	for range 50 {
		again, err := kernel.OpenNetns(n.Path())
		must(t, err)
		must(t, again.Close())
	}
	if after, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || after != before {
		t.Errorf("got %s (%v), want %s", after, err, before)
	}
}

func TestListenUDP(t *testing.T) {
	a, b := kerneltest.Netns(t), kerneltest.Netns(t)
	must(t, a.AddVeth("x", b, "x"))
	ends := map[*kernel.Netns][]string{a: {"10.0.0.1/24", "fd00::1/64"}, b: {"10.0.0.2/24", "fd00::2/64"}}
	for n, addrs := range ends {
		must(t, n.SetUp("x", true))
		for _, p := range addrs {
			must(t, n.AddAddr("x", netip.MustParsePrefix(p)))
		}
	}
	for i := range ends[a] {
		from, to := netip.MustParsePrefix(ends[a][i]).Addr(), netip.MustParsePrefix(ends[b][i]).Addr()
		receiver, err := b.ListenUDP(t.Context(), "x", netip.AddrPortFrom(to, 0))
		must(t, err)
		defer receiver.Close()
		sender, err := a.ListenUDP(t.Context(), "x", netip.AddrPortFrom(from, 0))
		must(t, err)
		defer sender.Close()
		_, err = sender.WriteToUDPAddrPort([]byte("hello"), netip.MustParseAddrPort(receiver.LocalAddr().String()))
		must(t, err)
		must(t, receiver.SetReadDeadline(time.Now().Add(5*time.Second)))
		buf := make([]byte, 16)
		got, src, err := receiver.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:got]) != "hello" || src.Addr().Unmap() != from {
			t.Errorf("got %q from %v: %v", buf[:got], src, err)
		}
	}
	if _, err := a.ListenUDP(context.Background(), "none", netip.MustParseAddrPort("10.0.0.1:0")); !errors.Is(err, unix.ENODEV) {
		t.Errorf("link that is not there: got %v", err)
	}
}

func TestCanMake(t *testing.T) {
	n := kerneltest.Netns(t)
	for kind, want := range map[string]bool{"veth": true, "bridge": true, "weft-none": false} {
		if got, err := n.CanMake(kind); err != nil || got != want {
			t.Errorf("%s: got %t, %v, want %t", kind, got, err, want)
		}
	}
	if links, err := n.Links(); err != nil || len(links) != 1 {
		t.Errorf("trying left links behind: %+v, %v", links, err)
	}
}

func TestRemoveNetns(t *testing.T) {
	kerneltest.Need(t)
	path := filepath.Join(t.TempDir(), "netns")
	n, err := kernel.CreateNetns(path)
	must(t, err)
	must(t, n.AddBridge("br0"))
	must(t, n.Close())
	must(t, kernel.RemoveNetns(path))
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := kernel.RemoveNetns(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("again: got %v", err)
	}
}
