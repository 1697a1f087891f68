// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// A VF that is in a pod's namespace, and of whose hand-over nothing is known any more, is not free before it
// is home: it would be offered while nobody can be given it, out of its VLAN while the pod still runs, and
// come home by the pod's name for it.
func TestFreeWhileTheLinkIsAway(t *testing.T) { // I1, I8
	for name, lose := range map[string]func(*testing.T, *whole, string){
		"the record cannot be read": func(t *testing.T, _ *whole, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte("nonsense\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"and the sandbox has ended": func(t *testing.T, w *whole, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte("nonsense\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := w.handover.Detach(t.Context(), "s1"); err != nil {
				t.Fatal(err)
			}
		},
		"there is none": func(t *testing.T, _ *whole, path string) {
			t.Helper()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWhole(t, newMachine(t))
			before := w.machine.Snapshot()
			claim, ns := w.given(t)
			lose(t, w, filepath.Join(w.dir, "handovers", "s1.jsonl"))
			if err := w.unprepare(t, claim); err == nil {
				t.Error("it is freed while its link is in the pod")
			}
			if vf, err := w.machine.VF(pf, 0); err != nil || vf.VLAN != 1001 {
				t.Errorf("the pod's VF is in VLAN %d, %v", vf.VLAN, err)
			}
			if rows := w.rows.OfClaim(claim.UID); len(rows) != 1 {
				t.Errorf("rows are %v", rows)
			}
			// The kernel brings it home in its own time, under the pod's name for it.
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				<-time.After(50 * time.Millisecond)
				w.machine.DestroyNamespace(ns.Path)
			}()
			if err := w.unprepare(t, claim); err != nil {
				t.Error(err)
			}
			<-ended
			if link, err := w.machine.LinkOf(host(), kerneltest.VFAddr(pf, 0)); err != nil || link.Name != "ens1f0v0" {
				t.Errorf("home is %s, %v", link.Name, err)
			}
			w.clean2(t)
			if err := os.Remove(filepath.Join(w.dir, "handovers", "s1.jsonl")); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
			if d := cmp.Diff(before, w.machine.Snapshot()); d != "" {
				t.Errorf("the host (-before +after):\n%s", d)
			}
		})
	}
}
