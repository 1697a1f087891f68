// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/kube/kubetest"
)

// TestServerAway: while the API server is away, plans come from the caches and ADDs
// succeed; the status is written when it is back. The process stays the same.
func TestServerAway(t *testing.T) {
	r := newRig(t)
	cni, _ := r.config["cni"].(map[string]any)
	cni["statusTimeout"] = "200ms"
	r.server.Apply(r.pod("web", "neta"))
	p := r.startReady()
	r.server.Inject(kubetest.Fault{Drop: true})
	r.add("web", "neta")
	if got := r.status("web"); got != nil {
		t.Errorf("status %q without a server", got)
	}
	if n := r.node(); !n.Ready || n.Counts.PendingStatus != 1 {
		t.Errorf("node %+v", n)
	}
	r.server.Heal()
	r.await("the status is written", func() bool { return len(r.status("web")) == 2 })
	r.del("web")
	r.wantClean()
	if p.cmd.ProcessState != nil {
		t.Error("the agent ended")
	}
}

// TestServerComesLater: the agent starts without an API server, with the conf of its last
// life in place; an ADD in its first moments waits rather than fails.
func TestServerComesLater(t *testing.T) {
	r := newRig(t)
	r.server.Apply(r.pod("web", "neta"))
	r.startReady()
	r.stop()
	r.server.Inject(kubetest.Fault{Status: 503})
	r.start()
	r.await("the planner listens", func() bool {
		n := r.node()
		return len(n.Conditions) > 0 && condition(n, "planner_listening") && !n.Ready
	})
	cmd := r.call("ADD", "web", asks("neta"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.await("the ADD asks", func() bool { _, err := os.Stat(filepath.Join(r.dir, "state", "attachments")); return err == nil })
	r.server.Heal()
	if err := cmd.Wait(); err != nil {
		t.Errorf("ADD: %v", err)
	}
	r.await("the agent is ready", func() bool { return r.node().Ready })
}

// TestAgentGoesDuringADD: an agent that ends, or is killed, between the plan and the report
// of an ADD undoes no pod: the next agent writes the status.
func TestAgentGoesDuringADD(t *testing.T) {
	for name, end := range map[string]func(*rig){"stopped": (*rig).stop, "killed": (*rig).kill} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.server.Apply(r.pod("web", "slow") + "\n---\n" +
				r.nad("slow", r.delegate("pb", "10.2.0.7/24", "cniVersion", "1.0.0", "sleep", map[string]any{"ADD": "1s"})))
			r.startReady()
			cmd := r.call("ADD", "web", asks("slow"))
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			r.await("the slow plugin runs", func() bool { return strings.Contains(r.read(r.log), `"type":"pb"`) })
			end(r)
			if err := cmd.Wait(); err != nil {
				t.Errorf("ADD: %v\n%s", err, out.String())
			}
			if d := cmp.Diff([]string{"pa ADD eth0", "pb ADD net1"}, r.calls()); d != "" {
				t.Error(d)
			}
			r.startReady()
			r.await("the status is written", func() bool { return len(r.status("web")) == 2 })
			r.del("web")
			r.wantClean()
		})
	}
}

// TestKilledAmongPods: the agent is killed while pods come and go, and started again: all
// calls succeed in the end, each status is right, nothing is left.
func TestKilledAmongPods(t *testing.T) {
	const pods = 12
	r := newRig(t)
	var all strings.Builder
	for i := range pods {
		fmt.Fprintf(&all, "---\n%s\n", r.pod(fmt.Sprintf("pod%d", i), "neta"))
	}
	r.server.Apply(all.String())
	r.startReady()
	var calls sync.WaitGroup
	each := func(verb string, annotations map[string]string) {
		for i := range pods {
			calls.Go(func() {
				for range 200 { // as the kubelet tries again
					cmd := r.call(verb, fmt.Sprintf("pod%d", i), annotations)
					if cmd.Run() == nil {
						return
					}
				}
				t.Errorf("%s of pod%d never succeeded", verb, i)
			})
		}
	}
	each("ADD", asks("neta"))
	r.await("the first plugin runs", func() bool { return r.read(r.log) != "" })
	r.kill()
	r.startReady()
	calls.Wait()
	for i := range pods {
		pod := fmt.Sprintf("pod%d", i)
		r.await("the status of "+pod+" is written", func() bool { return len(r.status(pod)) == 2 })
	}
	each("DEL", nil)
	r.kill()
	calls.Wait()
	r.wantClean()
	r.startReady()
	if n := r.node(); n.Counts.Records != 0 {
		t.Errorf("node %+v", n)
	}
}

// TestTwoAgents: a second agent of the node says why it does not start, and takes nothing
// from the first.
func TestTwoAgents(t *testing.T) {
	r := newRig(t)
	r.startReady()
	cmd := r.command()
	out, err := cmd.CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), "another server does") { //nolint:errorlint // it is that very one
		t.Errorf("%v\n%s", err, out)
	}
	if !r.node().Ready {
		t.Error("the first agent is not ready any more")
	}
	if err := r.agent.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}
}

// TestConfRestored: another tool takes the published conf away, and the primary breaks.
func TestConfRestored(t *testing.T) {
	r := newRig(t)
	r.startReady()
	before := r.read(r.published())
	if err := os.Rename(r.published(), r.published()+".cilium_bak"); err != nil {
		t.Fatal(err)
	}
	r.await("the conf is restored", func() bool { return r.read(r.published()) == before })
	primary := filepath.Join(r.confDir(), "10-primary.conflist")
	good := r.read(primary)
	r.write(primary, "{")
	r.await("the fault is told", func() bool {
		code, text := r.get("/readyz")
		return code == 503 && strings.Contains(text, "primary_conf: ")
	})
	if r.read(r.published()) != before {
		t.Error("the last good primary is not kept")
	}
	r.write(primary, good)
	r.await("the agent is ready again", func() bool { return r.node().Ready })
	if _, text := r.get("/metrics"); !strings.Contains(text, "weft_conf_restored_total 1\n") {
		t.Error("the restoring was not counted")
	}
}
