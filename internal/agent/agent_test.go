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

// TestOneADDIsOneWrite: the real agent and the real plugin, through the published conf, in
// a network namespace. In the steady state an ADD reads nothing of the API and writes once.
func TestOneADDIsOneWrite(t *testing.T) {
	r := newRig(t)
	r.server.Apply(r.pod("web", "neta"))
	r.startReady()
	r.server.ResetRequests()
	r.add("web", "neta")
	if d := cmp.Diff([]string{"pa ADD eth0", "pb ADD net1"}, r.calls()); d != "" {
		t.Error(d)
	}
	want := []string{"primary eth0 10.1.0.5", "default/neta net1 10.2.0.7"}
	if d := cmp.Diff(want, r.status("web")); d != "" { // the ADD waited for it
		t.Error(d)
	}
	if d := cmp.Diff([]string{"patch pods web status"}, r.requests()); d != "" {
		t.Error(d)
	}

	before := r.read(r.published())
	r.stop()
	if r.read(r.published()) != before {
		t.Error("the published conf did not stay as it was when the agent ended")
	}
	r.del("web")
	if d := cmp.Diff([]string{"pb DEL net1", "pa DEL eth0"}, r.calls()); d != "" {
		t.Error(d)
	}
	r.wantClean()

	r.startReady()
	if r.read(r.published()) != before {
		t.Error("the published conf did not stay as it was when the agent started again")
	}
	if d := cmp.Diff([]string{"patch pods web status"}, r.requests()); d != "" { // of the first ADD: a start only watches
		t.Error(d)
	}
}

// TestPlainPodsWithoutAgent: they need no agent; their status is written when it comes.
func TestPlainPodsWithoutAgent(t *testing.T) {
	r := newRig(t)
	r.server.Apply(r.pod("plain", ""))
	r.startReady()
	r.stop()
	r.add("plain", "")
	if code, out := r.cni("ADD", "web", asks("neta")); code == 0 || !strings.Contains(out, `"code": 11`) && !strings.Contains(out, `"code":11`) {
		t.Errorf("a pod with networks, without agent: exit %d: %s", code, out)
	}
	if got := r.status("plain"); got != nil {
		t.Errorf("status %q without agent", got)
	}
	r.startReady()
	r.await("the status is written", func() bool { return len(r.status("plain")) == 1 })
	r.del("plain")
	r.wantClean()
}

// TestMendedNetwork: a NAD that is missing is told to the pod's owner; once it is there the
// ADD succeeds, at once.
func TestMendedNetwork(t *testing.T) {
	r := newRig(t)
	r.server.Apply(r.pod("web", "netz"))
	r.startReady()
	code, out := r.cni("ADD", "web", asks("netz"))
	if code != 1 || !strings.Contains(out, "default/netz") {
		t.Errorf("exit %d: %s", code, out)
	}
	r.await("the owner is told", func() bool {
		events := r.server.Events("default")
		return len(events) == 1 && events[0].Reason == "NoNetworkFound" && events[0].Pod == "web" && strings.Contains(events[0].Message, "default/netz")
	})
	r.server.Apply(r.nad("netz", r.delegate("pc", "10.3.0.9/24", "cniVersion", "1.0.0")))
	r.add("web", "netz")
	if d := cmp.Diff([]string{"primary eth0 10.1.0.5", "default/netz net1 10.3.0.9"}, r.status("web")); d != "" {
		t.Error(d)
	}
	r.del("web")
	r.wantClean()
}

// TestWrongConfiguration: every fault is told, the exit code is 2, and nothing is made.
func TestWrongConfiguration(t *testing.T) {
	r := newRig(t)
	r.config["nodeName"], r.config["unknown"], r.config["networkDriver"] = "A", true, map[string]any{"enabled": "perhaps"}
	for _, command := range []string{"run", "check-config", "install", "uninstall"} {
		cmd := r.command(command)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 {
			t.Errorf("%s: exit %d", command, code)
		}
		for _, part := range []string{"agent.yaml:1: nodeName: ", "agent.yaml:1: unknown: ", "agent.yaml:1: networkDriver.enabled: "} {
			if !strings.Contains(string(out), part) {
				t.Errorf("%s: %q is not told in\n%s", command, part, out)
			}
		}
	}
	r.config["nodeName"], r.config["kubeconfig"] = "n1", filepath.Join(r.dir, "none")
	delete(r.config, "unknown")
	delete(r.config, "networkDriver")
	cmd := r.command()
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "kubeconfig: ") {
		t.Errorf("no kubeconfig: exit %d\n%s", cmd.ProcessState.ExitCode(), out)
	}
	for _, name := range []string{"run", "state", "net.d/00-weft.conflist"} {
		if _, err := os.Lstat(filepath.Join(r.dir, name)); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if n := r.server.Count("", ""); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestServes: metrics, health and the debug socket of a running agent; and no secret in any
// of them, nor in the log.
func TestServes(t *testing.T) {
	r := newRig(t)
	r.config["pprof"] = true
	r.server.Apply(r.pod("web", "neta") + "\n---\n" + r.pod("waits", "neta,netz"))
	r.startReady()
	r.add("web", "neta")
	seen := []string{}
	for path, parts := range map[string][]string{
		"/healthz": {"ok"},
		"/readyz":  {"ok"},
		"/metrics": {
			"weft_ready 1", "weft_conf_published 1", `weft_planner_requests_total{code="0",verb="plan"} 1`,
			`weft_planner_requests_total{code="0",verb="report"} 1`, `weft_status_writes_total{outcome="written"} 1`,
			`weft_apiserver_requests_total{resource="pods/status",verb="patch"} 1`, "weft_cache_age_seconds", "process_resident_memory_bytes",
		},
		"/debug/pprof/cmdline": {"weft-agent"},
	} {
		code, text := r.get(path)
		if code != 200 {
			t.Errorf("%s: %d %s", path, code, text)
		}
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q is not in\n%s", path, part, text)
			}
		}
		seen = append(seen, text)
	}
	r.await("the ADD is measured", func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, `weft_cni_duration_seconds_count{plugin="",verb="ADD"} 1`) &&
			strings.Contains(text, `weft_cni_duration_seconds_count{plugin="pb",verb="ADD"} 1`) &&
			strings.Contains(text, "weft_lane_wait_seconds_count 1") && strings.Contains(text, `weft_records{state="finished"} 1`)
	})
	seen = append(seen, r.shown()...)
	r.stop()
	seen = append(seen, r.agent.log.String())
	for _, text := range seen {
		if strings.Contains(text, token) || strings.Contains(text, "eyJ") {
			t.Errorf("the token is in\n%s", text)
		}
	}
}

// shown checks what the debug socket shows of two pods, and gives all of it.
func (r *rig) shown() []string {
	t := r.t
	c := r.debug()
	node, err := c.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := node.State
	if n.Name != "n1" || !n.Ready || !n.Conf.Published || filepath.Base(n.Conf.Primary) != "10-primary.conflist" || !n.Cache.Synced ||
		n.Counts.Pods != 2 || n.Counts.Networks != 1 || n.Counts.Records != 1 || len(n.Conditions) == 0 {
		t.Errorf("node %+v", n)
	}
	pods, err := c.Pods(t.Context(), "", "")
	if err != nil || len(pods.Pods) != 2 {
		t.Fatalf("%v, pods %+v", err, pods)
	}
	waits, web := pods.Pods[0], pods.Pods[1]
	if waits.Name != "waits" || len(waits.Sandboxes) != 0 || web.Name != "web" || len(web.Sandboxes) != 1 || !web.Known || web.NetworkStatus.State != "written" {
		t.Errorf("pods %+v", pods.Pods)
	}
	a := web.Sandboxes[0].Attachments[1]
	if a.Network != "default/neta" || a.Interface != "net1" || a.MAC != "02:00:00:00:00:01" || a.Phase != "done" || a.Addresses[0] != "10.2.0.7/24" || a.Plugins[0] != "pb" {
		t.Errorf("attachment %+v", a)
	}
	networks, err := c.Networks(t.Context(), "")
	if err != nil || len(networks.Networks) != 1 || networks.Networks[0].Pods != 1 || networks.Networks[0].Types[0] != "pb" {
		t.Errorf("%v, networks %+v", err, networks)
	}
	good, err := c.Explain(t.Context(), "default", "web")
	if err != nil || len(good.Plan.Attachments) != 2 || len(good.Plan.Faults) != 0 {
		t.Errorf("%v, plan %+v", err, good)
	}
	bad, err := c.Explain(t.Context(), "default", "waits")
	if err != nil || len(bad.Plan.Faults) != 1 || !strings.Contains(bad.Plan.Faults[0].Text+bad.Plan.Faults[0].Object, "netz") {
		t.Errorf("%v, plan %+v", err, bad)
	}
	return []string{r.json(node), r.json(pods), r.json(networks), r.json(good), r.json(bad)}
}
