// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/box"
	"github.com/weftnet/weft/test/lab/guest"
	"github.com/weftnet/weft/test/lab/vm"
)

func TestMain(m *testing.M) {
	box.Init()
	os.Exit(m.Run())
}

func TestX(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cache, err := lab.Cache()
	if err != nil {
		t.Fatal(err)
	}
	root, err := guest.Root(ctx, cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := guest.Boot(ctx, vm.Store{Dir: filepath.Join(cache, "vm"), Progress: os.Stderr}, root, dir); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b, _ := os.ReadFile(log.Name()); t.Logf("%s", b) })
	p, err := guest.StartPod(ctx, root, dir, "11111111-2222-3333-4444-555555555555", log)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	t.Log("libvirt is up", time.Now())
	g, err := p.Start(ctx, "default_vm1", guest.NIC{"default", "02:00:00:00:00:01"}, guest.NIC{"red", "02:00:00:00:00:02"})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("guest is up", time.Now())
	out, err := g.Do(ctx, "ip a; ps")
	t.Log(out, err)
	out, err = p.Virsh(ctx, "domifaddr", "--source", "agent", "default_vm1")
	t.Log(out, err)
}
