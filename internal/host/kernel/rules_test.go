// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// rule is what the kernel does, and the fake does as well. It runs on the fake always; where else
// it runs is said by on.
type rule struct {
	name string
	on   place
	// injected says why no kernel at hand shows it: the rule runs on the fake alone.
	injected string
	wire     bool // it is about frames on the wire, of which the fake has none
	vfs      int  // how many VFs the first PF has at the start; the second has as many if twoPFs
	twoPFs   bool
	run      func(on trial)
}

// trial is one run of a rule.
type trial struct {
	t     *testing.T
	bench bench
}

type place int

const (
	_       place = iota
	links         // an ordinary link will do: on the kernel that the tests run on, and on VFs
	virtual       // it is about virtual links: on the kernel that the tests run on
	vfs           // on VFs in the machine
)

// machine is what the fake and the real one have in common.
type machine interface {
	Functions() ([]kernel.Function, error)
	Function(addr kernel.PCIAddr) (kernel.Function, error)
	SetNumVFs(pf kernel.PCIAddr, n int) error
	Links(ns kernel.Namespace) ([]kernel.Link, error)
	Link(ns kernel.Namespace, name string) (kernel.Link, error)
	LinkByIndex(ns kernel.Namespace, index int) (kernel.Link, error)
	LinkOf(ns kernel.Namespace, addr kernel.PCIAddr) (kernel.Link, error)
	Move(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error)
	SetUp(ns kernel.Namespace, index int, up bool) error
	Rename(ns kernel.Namespace, index int, name string) error
	Restore(ns kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error)
	AddDummy(ns kernel.Namespace, name string) (kernel.Link, error)
	Remove(ns kernel.Namespace, index int) error
	VF(pf kernel.PCIAddr, vf int) (kernel.VF, error)
	VFs(pf kernel.PCIAddr) (map[int]kernel.VF, error)
	SetVF(pf kernel.PCIAddr, vf int, change kernel.VFChange) error
	NamespaceID(path string) (uint64, error)
	Watch(ctx context.Context, changed func()) error
}

var (
	_ machine = (*kernel.Machine)(nil)
	_ machine = (*kerneltest.Machine)(nil)
)

// bench is a machine and what others do to it.
type bench interface {
	machine
	// subject is a link in the host's namespace, down, that the rule is about.
	subject(t *testing.T) kernel.Link
	// other is a link that somebody else has. An index of 0 is any.
	other(t *testing.T, ns kernel.Namespace, name string, index int) kernel.Link
	namespace(t *testing.T) kernel.Namespace
	destroy(t *testing.T, ns kernel.Namespace)
	addAddr(t *testing.T, ns kernel.Namespace, link string, addr string)
	addAltName(t *testing.T, ns kernel.Namespace, link, alt string)
	moveUnchecked(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error)
	pf(i int) kernel.PCIAddr
	bind(t *testing.T, addr kernel.PCIAddr, driver string)
	unbind(t *testing.T, addr kernel.PCIAddr)
	// late makes VFs without links; what it gives makes the links come.
	late(t *testing.T, pf kernel.PCIAddr, n int) (appear func())
	// settle waits until no new link is to be expected.
	settle(t *testing.T)
}

func rules() []rule {
	return slices.Concat(moveRules(), restoreRules(), namespaceRules(), numberRules(), vfRules(), driverRules(), packetRules())
}

func TestRules(t *testing.T) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "rule\tfake\tkernel\tVFs")
	for _, r := range rules() {
		ran := map[string]string{"fake": "-", "kernel": "-", "vfs": "-"}
		on := func(where string, open func(*testing.T, rule) bench) {
			start := time.Now()
			ok := t.Run(r.name+"/"+where, func(t *testing.T) { r.run(trial{t, open(t, r)}) })
			ran[where] = map[bool]string{true: "ok", false: "FAILED"}[ok] + fmt.Sprintf(" %.2fs", time.Since(start).Seconds())
		}
		if !r.wire {
			on("fake", newFake)
		}
		inMachine := kerneltest.InMachine()
		switch {
		case r.injected != "":
			ran["vfs"] = "injected: " + r.injected
		case r.on == virtual || r.on == links && !inMachine:
			on("kernel", newKernel)
		case inMachine:
			on("vfs", newVFs)
		}
		if inMachine && r.injected == "" && ran["kernel"]+ran["vfs"] == "--" {
			t.Errorf("rule %q did not run on a kernel", r.name)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.name, ran["fake"], ran["kernel"], ran["vfs"])
	}
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
	t.Logf("which rules ran where (Linux %s)\n%s", os.Getenv("WEFT_VM_KERNEL"), table.String())
}

var host kernel.Namespace

// eventually waits for what a kernel does in its own time.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	const limit, pause = 20 * time.Second, 10 * time.Millisecond
	for deadline := time.Now().Add(limit); !f(); <-time.After(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

// linkOf waits for a function's link.
func linkOf(t *testing.T, b bench, ns kernel.Namespace, addr kernel.PCIAddr) kernel.Link {
	t.Helper()
	var l kernel.Link
	eventually(t, "the link of "+string(addr), func() (ok bool) {
		var err error
		l, err = b.LinkOf(ns, addr)
		return err == nil
	})
	return l
}

// gone waits until a function has no link in a namespace.
func gone(t *testing.T, b bench, ns kernel.Namespace, addr kernel.PCIAddr) {
	t.Helper()
	eventually(t, "end of the link of "+string(addr), func() bool {
		_, err := b.LinkOf(ns, addr)
		return err != nil
	})
}

// vfAddrs are the addresses of a PF's VFs by number.
func vfAddrs(t *testing.T, b bench, pf kernel.PCIAddr) []kernel.PCIAddr {
	t.Helper()
	all, err := b.Functions()
	must(t, err)
	found := map[int]kernel.PCIAddr{}
	for _, f := range all {
		if f.PF == pf {
			found[f.VFID] = f.Addr
		}
	}
	addrs := make([]kernel.PCIAddr, len(found))
	for id, addr := range found {
		addrs[id] = addr
	}
	return addrs
}

// find finds a link again.
func find(t *testing.T, b bench, ns kernel.Namespace, index int) kernel.Link {
	t.Helper()
	l, err := b.LinkByIndex(ns, index)
	must(t, err)
	return l
}

// alike compares links, but for what changes by itself: the carrier, and addresses that the kernel
// gives to a link that is up.
func alike(t *testing.T, what string, is, want kernel.Link) {
	t.Helper()
	isOwn := func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() }
	is.Addrs, want.Addrs = slices.DeleteFunc(is.Addrs, isOwn), slices.DeleteFunc(want.Addrs, isOwn)
	options := cmp.Options{
		cmpopts.IgnoreFields(kernel.Link{}, "Running"), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{}),
	}
	if diff := cmp.Diff(want, is, options); diff != "" {
		t.Errorf("%s: is not what it was (-want +is):\n%s", what, diff)
	}
}

func mac(s string) net.HardwareAddr {
	addr, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return addr
}

// must1 gives the value of a call that must succeed.
func must1[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return value
	}
}

// devName is what the kernel calls a link that comes home and cannot keep its name.
func devName(index int) string { return fmt.Sprintf("dev%d", index) }
