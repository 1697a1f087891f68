// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// fakeBench is the fake.
type fakeBench struct {
	*kerneltest.Machine
	spaces int
}

func newFake(t *testing.T, r rule) bench {
	t.Helper()
	b := &fakeBench{Machine: kerneltest.NewMachine()}
	for i := range 2 {
		b.AddPF(b.pf(i), fmt.Sprintf("ens%df0", i), 7)
		b.ChangeFunction(b.pf(i), func(f *kernel.Function) { f.IOMMUGroup = fmt.Sprint(i + 1) })
		if i == 0 || r.twoPFs {
			must(t, b.SetNumVFs(b.pf(i), r.vfs))
		}
	}
	return b
}

func (b *fakeBench) pf(i int) kernel.PCIAddr {
	return []kernel.PCIAddr{"0000:00:01.0", "0000:00:02.0"}[i]
}

func (b *fakeBench) subject(t *testing.T) kernel.Link {
	t.Helper()
	l, err := b.LinkOf(host, vfAddrs(t, b, b.pf(0))[0])
	must(t, err)
	return l
}

func (b *fakeBench) other(_ *testing.T, ns kernel.Namespace, name string, index int) kernel.Link {
	return b.AddLink(ns, kernel.Link{Name: name, Index: index, Kind: "bridge"})
}

func (b *fakeBench) namespace(*testing.T) kernel.Namespace {
	b.spaces++
	return b.AddNamespace(fmt.Sprintf("/run/netns/test%d", b.spaces))
}

func (b *fakeBench) destroy(_ *testing.T, ns kernel.Namespace) { b.DestroyNamespace(ns.Path) }

func (b *fakeBench) addAddr(_ *testing.T, ns kernel.Namespace, link, addr string) {
	b.ChangeLink(ns, link, func(l *kernel.Link) { l.Addrs = append(l.Addrs, netip.MustParsePrefix(addr)) })
}

func (b *fakeBench) addAltName(_ *testing.T, ns kernel.Namespace, link, alt string) {
	b.ChangeLink(ns, link, func(l *kernel.Link) { l.AltNames = append(l.AltNames, alt) })
}

func (b *fakeBench) moveUnchecked(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error) {
	return b.Move(from, index, to, name)
}

func (b *fakeBench) bind(t *testing.T, addr kernel.PCIAddr, driver string) {
	t.Helper()
	must(t, b.Bind(addr, driver))
}

func (b *fakeBench) unbind(t *testing.T, addr kernel.PCIAddr) {
	t.Helper()
	must(t, b.Unbind(addr))
}

func (b *fakeBench) late(t *testing.T, pf kernel.PCIAddr, n int) func() {
	t.Helper()
	b.Late(pf)
	must(t, b.SetNumVFs(pf, n))
	return func() {
		for i := range n {
			b.Appear(kerneltest.VFAddr(pf, i))
		}
	}
}

func (*fakeBench) settle(*testing.T) {}

// realBench is a kernel: the one that the tests run on, with virtual links, or the machine's with
// VFs.
type realBench struct {
	*kernel.Machine
	pfs  []kernel.PCIAddr
	made []string // links that subject made
}

const sysfs = "/sys"

func openMachine(t *testing.T) *kernel.Machine {
	t.Helper()
	kerneltest.Need(t)
	m, err := kernel.Open(sysfs)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return m
}

func newKernel(t *testing.T, _ rule) bench {
	t.Helper()
	return &realBench{Machine: openMachine(t)}
}

// newVFs gives the machine's PFs as many VFs as the rule wants, whatever the last rule left.
func newVFs(t *testing.T, r rule) bench {
	t.Helper()
	b := &realBench{Machine: openMachine(t)}
	all, err := b.Functions()
	must(t, err)
	for _, f := range all {
		if f.TotalVFs == 0 {
			continue
		}
		b.pfs = append(b.pfs, f.Addr)
		if f.Driver == "" {
			b.bind(t, f.Addr, "igb")
		}
		// A PF that is down refuses to talk to its VFs.
		must(t, b.SetUp(host, linkOf(t, b, host, f.Addr).Index, true))
		if (len(b.pfs) > 1 && !r.twoPFs) || b.clean(t, f.Addr, r.vfs) {
			continue
		}
		must(t, b.SetNumVFs(f.Addr, 0))
		must(t, b.SetNumVFs(f.Addr, r.vfs))
		for _, vf := range vfAddrs(t, b, f.Addr) {
			linkOf(t, b, host, vf)
		}
		if !b.clean(t, f.Addr, r.vfs) {
			t.Fatalf("the VFs of %s are not what they should be", f.Addr)
		}
	}
	if len(b.pfs) < 2 {
		t.Fatalf("the machine has %d PFs: %v", len(b.pfs), all)
	}
	return b
}

// clean makes the VFs that a PF has as good as new, which takes a moment instead of seconds. It
// gives false when there are others than these, or one is not at home.
func (b *realBench) clean(t *testing.T, pf kernel.PCIAddr, n int) bool {
	t.Helper()
	vfs := vfAddrs(t, b, pf)
	if len(vfs) != n {
		return false
	}
	for id, addr := range vfs {
		f := must1(b.Function(addr))(t)
		l, err := b.LinkOf(host, addr)
		if err != nil || f.Driver != "igbvf" {
			return false
		}
		must(t, b.SetVF(pf, id, kernel.VFChange{
			MAC: mac("00:00:00:00:00:00"), VLAN: new(0), QoS: new(0), Trust: new(false), Spoof: new(true),
		}))
		own := mac("02:cc:00:00:00:00")
		own[4], own[5] = byte(len(b.pfs)), byte(id)
		_, err = b.Restore(host, l.Index, kernel.LinkState{Name: fmt.Sprintf("vf%dp%d", id, len(b.pfs)), MAC: own, MTU: 1500})
		must(t, err)
	}
	return true
}

func (b *realBench) pf(i int) kernel.PCIAddr { return b.pfs[i] }

func (b *realBench) subject(t *testing.T) kernel.Link {
	t.Helper()
	if len(b.pfs) > 0 {
		return linkOf(t, b, host, vfAddrs(t, b, b.pf(0))[0])
	}
	name := fmt.Sprintf("weft-s%d", len(b.made))
	b.made = append(b.made, name)
	wire := kerneltest.Netns(t)
	must(t, kernel.With(host, func(n *kernel.Netns, _ *netlink.Handle) error { return n.AddVeth(name, wire, "peer") }))
	l, err := b.Link(host, name)
	must(t, err)
	t.Cleanup(func() { b.remove(t, host, l.Index) })
	return l
}

// remove removes what may be gone.
func (b *realBench) remove(t *testing.T, ns kernel.Namespace, index int) {
	t.Helper()
	if err := b.Remove(ns, index); err != nil && !errors.Is(err, kernel.ErrNoLink) && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func (b *realBench) other(t *testing.T, ns kernel.Namespace, name string, index int) kernel.Link {
	t.Helper()
	must(t, kernel.With(ns, func(_ *kernel.Netns, h *netlink.Handle) error {
		return h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}})
	}))
	l, err := b.Link(ns, name)
	must(t, err)
	t.Cleanup(func() { b.remove(t, ns, l.Index) })
	return l
}

func (b *realBench) namespace(t *testing.T) kernel.Namespace {
	t.Helper()
	n := kerneltest.NetnsThatGoes(t)
	id, err := b.NamespaceID(n)
	must(t, err)
	return kernel.Namespace{Path: n, ID: id}
}

func (b *realBench) destroy(t *testing.T, ns kernel.Namespace) {
	t.Helper()
	must(t, kernel.RemoveNetns(ns.Path))
}

func (b *realBench) addAddr(t *testing.T, ns kernel.Namespace, link, addr string) {
	t.Helper()
	must(t, kernel.With(ns, func(n *kernel.Netns, _ *netlink.Handle) error {
		return n.AddAddr(link, netip.MustParsePrefix(addr))
	}))
}

func (b *realBench) addAltName(t *testing.T, ns kernel.Namespace, link, alt string) {
	t.Helper()
	must(t, kernel.With(ns, func(_ *kernel.Netns, h *netlink.Handle) error {
		l, err := h.LinkByName(link)
		if err != nil {
			return err
		}
		return h.LinkAddAltName(l, alt)
	}))
}

func (b *realBench) moveUnchecked(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error) {
	return kernel.MoveUnchecked(from, index, to, name)
}

func device(addr kernel.PCIAddr, attr string) string {
	return filepath.Join(sysfs, "bus/pci/devices", string(addr), attr)
}

func write(t *testing.T, path, what string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(what), 0))
}

// override says which driver alone may have a function; "": any.
func (b *realBench) override(t *testing.T, addr kernel.PCIAddr, driver string) {
	t.Helper()
	write(t, device(addr, "driver_override"), driver+"\n")
}

func (b *realBench) bind(t *testing.T, addr kernel.PCIAddr, driver string) {
	t.Helper()
	if driver == "vfio-pci" {
		b.override(t, addr, driver)
		t.Cleanup(func() {
			if f, err := b.Function(addr); err == nil {
				if f.Driver == driver {
					b.unbind(t, addr)
				}
				b.override(t, addr, "")
			}
		})
	} else if f, err := b.Function(addr); err == nil && f.PF != "" {
		b.override(t, addr, "")
	}
	write(t, filepath.Join(sysfs, "bus/pci/drivers", driver, "bind"), string(addr))
}

func (b *realBench) unbind(t *testing.T, addr kernel.PCIAddr) {
	t.Helper()
	write(t, device(addr, "driver/unbind"), string(addr))
}

// late makes VFs while their driver is not loaded.
func (b *realBench) late(t *testing.T, pf kernel.PCIAddr, n int) func() {
	t.Helper()
	must(t, unix.DeleteModule("igbvf", 0))
	load := func() {
		file, err := os.Open("/modules/igbvf.ko")
		must(t, err)
		defer file.Close()
		if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
			t.Error(err)
		}
	}
	t.Cleanup(load)
	must(t, b.SetNumVFs(pf, n))
	return load
}

// settle lets the carrier of VFs come.
func (b *realBench) settle(t *testing.T) {
	t.Helper()
	for _, pf := range b.pfs {
		eventually(t, "carrier of "+string(pf), func() bool {
			text, err := os.ReadFile(filepath.Join(sysfs, "class/net", linkOf(t, b, host, pf).Name, "operstate"))
			return err == nil && strings.TrimSpace(string(text)) == "up"
		})
	}
}
