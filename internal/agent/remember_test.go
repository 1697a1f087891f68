// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDeletedWhileAway: while the agent is away a pod's sandbox is deleted and its owner asks for
// another network. When the agent is back the next sandbox has its own entries, those that others
// wrote, and none of its predecessor's, however the agent ended. Without what it left they stay.
func TestDeletedWhileAway(t *testing.T) {
	const foreign, stale = "others/netx foo9 ", "default/neta net1 10.2.0.7"
	for name, c := range map[string]struct {
		end  func(r *rig, file string)
		want []string
	}{
		"stopped": {func(r *rig, _ string) { r.stop() }, []string{foreign}},
		"killed": {func(r *rig, file string) {
			r.await("it is put down", func() bool {
				b, err := os.ReadFile(file)
				return err == nil && strings.Contains(string(b), "default/neta")
			})
			r.kill()
		}, []string{foreign}},
		"damaged": {func(r *rig, file string) {
			r.stop()
			r.write(file, `{"stateDir":`)
		}, []string{stale, foreign}},
		"of other records": {func(r *rig, file string) {
			r.stop()
			r.write(file, strings.Replace(r.read(file), `"stateDir":"`, `"stateDir":"/other`, 1))
		}, []string{stale, foreign}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.server.Apply(r.pod("web", "neta") + "\n---\n" + r.nad("netc", r.delegate("pc", "10.3.0.7/24", "cniVersion", "1.0.0")))
			r.server.Annotate("default", "web", statusKey, `[{"name":"others/netx","interface":"foo9"}]`)
			r.startReady()
			r.add("web", "neta")
			r.await("the status is written", func() bool { return len(r.status("web")) == 3 })
			c.end(r, filepath.Join(r.dir, "run", "status.json"))
			r.del("web")
			r.server.Annotate("default", "web", networksKey, "netc@foo0")
			r.startReady()
			cmd := r.call("ADD", "web", asks("netc@foo0"))
			for i, v := range cmd.Env {
				cmd.Env[i] = strings.ReplaceAll(v, "cid-web", "cid-next")
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("ADD: %v\n%s", err, out)
			}
			want := append([]string{"primary eth0 10.1.0.5", "default/netc foo0 10.3.0.7"}, c.want...)
			var got []string
			r.await("the status is right", func() bool {
				got = r.status("web")
				return len(got) == len(want)
			})
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}
