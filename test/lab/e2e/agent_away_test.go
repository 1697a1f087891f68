// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Without an agent plain pods start and stop, pods with networks wait and say for what, all are
// deleted cleanly, and the node stays Ready. With the agent back, who waited starts.
func TestAgentStopped(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "away0", "10.81.0.0/24")
	for _, name := range []string{"before-plain", "before-networks", "stays"} {
		networks := "bridge"
		if name == "before-plain" {
			networks = ""
		}
		r.create(name, networks, untilItEnds)
	}
	stays := r.running("before-plain", "before-networks", "stays")
	ready := r.staysReady()
	r.step("stop the agent")
	r.stopAgent()

	r.create("plain", "", untilItEnds)
	r.create("waits", "bridge")
	r.create("waits-in-vain", "bridge", untilItEnds)
	r.hasNetworks(r.running("plain"), 0)
	r.step("a plain pod runs")
	for _, name := range []string{"waits", "waits-in-vain"} {
		r.eventAbout(name, "/run/weft/agent.sock", "the node's agent does not answer, and this pod needs it")
	}
	r.step("pods with networks wait, and say for what")
	r.remove("before-plain", "before-networks", "plain", "waits-in-vain")
	r.step("pods are deleted")
	r.wait("nothing to be left of them", func() error { return r.leftovers(stays, r.get("waits")) })
	r.hasNetworks(stays, 1)
	if phase := r.get("waits").Status.Phase; phase != corev1.PodPending {
		t.Errorf("the pod with networks is %s without an agent", phase)
	}

	r.step("start the agent")
	r.startAgent()
	pod := r.running("waits")
	r.hasNetworks(pod, 1)
	r.hasStatus("waits", 2)
	ready()
	r.step("the waiting pod runs")
}

// hasStatus waits until a pod's network-status names so many interfaces, each with an address.
func (r *rig) hasStatus(name string, interfaces int) {
	r.t.Helper()
	r.wait("network-status of "+name, func() error {
		all := r.status(r.get(name))
		if len(all) != interfaces {
			return fmt.Errorf("it has %d entries, want %d: %+v", len(all), interfaces, all)
		}
		for _, s := range all {
			if len(s.IPs) == 0 {
				return fmt.Errorf("%s has no address", s.Interface)
			}
		}
		return nil
	})
}

// An agent that is killed again and again while pods come and go leaves nothing behind, and no
// pod that is stuck or lacks a network.
func TestAgentKilled(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("one", "kill1", "10.82.1.0/24")
	r.nad("two", `{"cniVersion":"1.0.0","type":"macvlan","master":"data","mode":"bridge","ipam":{"type":"host-local","subnet":"10.82.2.0/24"}}`)
	defer r.replaceAgent() // the kubelet lets one that ended too often wait
	ready := r.staysReady()
	kill := func() {
		r.step("kill -9 the agent")
		r.signalAgent(syscall.SIGKILL)
	}
	const total = 60
	c := &churn{
		rig: r, parallel: 12, links: 2,
		networks: func(n int) string { return []string{"one, two", ""}[n%2] },
		more:     func(created int) bool { return created < total },
		at: map[int]func(){
			5: kill, 20: kill,
			40: func() { r.step("40 pods have come") },
		},
	}
	c.run()
	r.step("all pods have come and gone")
	ready()
	r.agentReady()
	if n, ok := r.metrics()[`weft_records{state="quarantined"}`]; !ok || n != 0 {
		t.Errorf("%v records are in quarantine (metric served: %t)", n, ok)
	}
}

// Pods that are made all the time while the agents are replaced have their networks, all of
// them, from the first moment on that they run.
func TestAgentReplaced(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "roll0", "10.83.0.0/24")
	ready := r.staysReady()
	rollouts, old := 0, r.agentPID()
	c := &churn{
		rig: r, parallel: 4, links: 1,
		networks: func(n int) string { return []string{"bridge", "bridge", ""}[n%3] },
	}
	// A few more after the last one, and no end while one is under way.
	settled := 0
	c.more = func(created int) bool {
		if r.rolledOut() != nil {
			return true
		}
		pid := r.agentPID()
		if pid == 0 || pid == old {
			return true
		}
		if rollouts < 3 {
			rollouts++
			old, settled = pid, created
			r.step("rollout %d, with %d pods so far", rollouts, created)
			r.rollout()
			return true
		}
		return created < settled+10
	}
	r.step("rollout 0")
	r.rollout()
	c.run()
	r.step("%d pods have come and gone; %d tries of the kubelet failed meanwhile", c.created, r.failedSandboxes())
	ready()
	if n := r.shell("ls /etc/cni/net.d"); !strings.HasPrefix(n, "00-weft.conflist\n") {
		t.Errorf("the runtime's first conf is not Weft's: %q", n)
	}
}

// failedSandboxes is how often the kubelet could not make a pod's sandbox.
func (r *rig) failedSandboxes() (n int) {
	r.t.Helper()
	list, err := r.kube.CoreV1().Events(r.ns).List(r.t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedCreatePodSandBox"})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range list.Items {
		n += int(max(e.Count, 1))
	}
	return n
}
