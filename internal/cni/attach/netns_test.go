// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// A new namespace may get the path and the inode of the one that a pod had. It is another pod's:
// the delegates of the first one must not be sent into it.
func TestNamespaceWithAFormerInode(t *testing.T) {
	kerneltest.Need(t)
	r := newRig(t)
	r.netns = kerneltest.NetnsThatGoes(t)
	inode := namespace(t, r.netns)
	r.pod(networks, "neta")
	r.ok("ADD")
	r.calls()
	if err := kernel.RemoveNetns(r.netns); err != nil {
		t.Fatal(err)
	}
	again(t, r.netns, inode)

	r.obeys(r.order(apply.Undo), apply.Done)
	for _, e := range r.started() {
		if e.Netns != "" {
			t.Errorf("%s %s was sent into the namespace of another pod", e.Type, e.Command)
		}
	}
	r.wantCalls("pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// again makes namespaces at path until one has that inode.
func again(t *testing.T, path string, inode uint64) {
	t.Helper()
	for range 1000 {
		n, err := kernel.CreateNetns(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if namespace(t, path) == inode {
			return
		}
		if err := kernel.RemoveNetns(path); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("no new namespace got the inode %d again", inode)
}

// namespace is the inode of one, on a kernel that also numbers it.
func namespace(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is looked at
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	var unique uint64
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), unix.NS_GET_ID, uintptr(unsafe.Pointer(&unique))); errno != 0 {
		t.Skipf("this kernel does not number its namespaces (Linux 6.18 does): %v", errno)
	}
	return st.Ino
}
