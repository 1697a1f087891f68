// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// withHands puts weft-cni where the agent looks for it.
func (r *rig) withHands() {
	r.t.Helper()
	dir := r.config["cni"].(map[string]any)["binDir"].(string)
	if err := os.Symlink(filepath.Join(r.weft, "weft-cni"), filepath.Join(dir, "weft-cni")); err != nil {
		r.t.Fatal(err)
	}
}

// A record of another boot is undone by the agent, without any call of the runtime on it,
// once the runtime has run Weft in this boot; the pod that runs now is left alone.
func TestOrphansAfterAReboot(t *testing.T) {
	r := newRig(t)
	r.withHands()
	r.server.Apply(r.pod("old", "neta"))
	r.server.Apply(r.pod("new", "neta"))
	r.startReady()
	r.add("old", "neta")
	r.add("new", "neta")
	r.stop()
	r.calls()
	store, err := journal.Open(filepath.Join(r.dir, "state", "attachments"), record.Kind)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rec, err := store.Acquire(t.Context(), "cid-old-eth0")
	if err != nil {
		t.Fatal(err)
	}
	in := rec.State().Intents[0]
	in.Boot = "another"
	if err := rec.Begin(in); err != nil {
		t.Fatal(err)
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	r.startReady()
	r.await("the old sandbox is undone", func() bool {
		_, err := os.Stat(store.Path("cid-old-eth0"))
		return os.IsNotExist(err)
	})
	if got := r.calls(); !slices.Equal(got, []string{"pb DEL net1", "pa DEL eth0"}) {
		t.Errorf("delegates were called %v", got)
	}
	if code, out := r.cni("CHECK", "new", nil); code != 0 {
		t.Errorf("CHECK of the pod that runs: %d: %s", code, out)
	}
}
