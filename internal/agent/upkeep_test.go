// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// A running pod follows its annotation, and network-status follows the pod; what is invalid
// changes nothing and is told by an event.
func TestHotPlug(t *testing.T) {
	r := newRig(t)
	r.withHands()
	r.server.Apply(r.nad("netb", r.delegate("pc", "10.3.0.7/24", "cniVersion", "1.0.0")))
	r.server.Apply(r.pod("p", "neta"))
	r.startReady()
	r.add("p", "neta")
	r.calls()
	wants := func(networks string, calls []string, status ...string) {
		t.Helper()
		r.server.Apply(r.pod("p", networks))
		r.await("network-status follows "+networks, func() bool { return slices.Equal(r.status("p"), status) })
		if got := r.calls(); !slices.Equal(got, calls) {
			t.Errorf("%q: delegates were called %v, want %v", networks, got, calls)
		}
	}
	eth0, net1 := "primary eth0 10.1.0.5", "default/neta net1 10.2.0.7"
	wants("neta,netb", []string{"pc ADD net2"}, eth0, net1, "default/netb net2 10.3.0.7")
	wants("netb", []string{"pb DEL net1"}, eth0, "default/netb net2 10.3.0.7")
	r.server.Apply(r.pod("p", "netb,none"))
	r.await("the owner is told", func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, `weft_hotplug_total{outcome="failed"} 1`)
	})
	if got := r.calls(); len(got) > 0 {
		t.Errorf("for a network that is not there delegates were called %v", got)
	}
	wants("", []string{"pc DEL net2"}, eth0)
	r.del("p")
	r.wantClean()
}
