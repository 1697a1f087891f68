// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/test/lab"
)

// With the API server gone in the middle of ADDs, pods that the node knows start all the same,
// planned from what the agent knows; their network-status follows when it is back.
func TestServerAway(t *testing.T) {
	const away = 30 * time.Second
	r := newRig(t)
	r.bridgeNAD("bridge", "srv0", "10.84.0.0/24")
	r.create("first", "bridge")
	r.running("first")
	agent := r.agentPID()
	back := func() {
		if err := r.cp.Start(lab.APIServer); err != nil {
			t.Fatal(err)
		}
		if err := r.cp.Ready(r.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	uids := map[string]string{}
	for n := range 10 {
		name := fmt.Sprintf("pod-%d", n)
		pod := r.create(name, []string{"bridge", "bridge", ""}[n%3])
		names, uids[name] = append(names, name), string(pod.UID)
	}
	r.wait("the first sandbox", func() error {
		for _, uid := range uids {
			if len(processes(uid)) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no pod has a process")
	})
	began := time.Now()
	if err := r.cp.End(t.Context(), lab.APIServer, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.step("the API server is gone")
	err := r.within(limit, func() error {
		for name, uid := range uids {
			if n := len(processes(uid)); n < 2 { // the sandbox' and its container's
				return fmt.Errorf("pod %s has %d processes", name, n)
			}
		}
		return nil
	})
	r.step("all pods run without it, or not: %v", err)
	r.wait("it to be away for long enough", func() error {
		if gone := time.Since(began); gone < away {
			return fmt.Errorf("it is gone for %v", gone)
		}
		return nil
	})
	back()
	r.step("the API server is back")
	if err != nil {
		t.Errorf("without an API server: %v", err)
	}
	r.running(names...)
	r.step("it knows that they run")
	for _, name := range names {
		pod := r.get(name)
		r.hasNetworks(pod, 1)
		r.hasStatus(name, 1+len(pod.Annotations[networksAnnotation])/len("bridge"))
	}
	r.step("it has their network-status")
	if now := r.agentPID(); now != agent {
		t.Errorf("the agent's process was %d and is %d: it did not live through this", agent, now)
	}
	r.remove(append(names, "first")...)
}

// A runtime or kubelet that is restarted, however it ended, starts pods that were made
// meanwhile, and deletes those from before without a trace.
func TestRuntimeRestarted(t *testing.T) {
	for _, c := range []struct {
		name    string
		signal  syscall.Signal
		process string
	}{
		{"containerd-term", syscall.SIGTERM, lab.Containerd},
		{"containerd-kill", syscall.SIGKILL, lab.Containerd},
		{"kubelet-kill", syscall.SIGKILL, lab.Kubelet},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.bridgeNAD("bridge", "run0", "10.85.0.0/24")
			r.create("deleted-after", "bridge", untilItEnds)
			r.create("deleted-while", "bridge", untilItEnds)
			r.create("stays", "bridge")
			r.running("deleted-after", "deleted-while", "stays")
			uid := string(r.get("stays").UID)
			before := processes(uid)
			r.create("made-before", "bridge") // its ADD may be under way
			r.step("end %s by %v", c.process, c.signal)
			if err := r.node.End(t.Context(), c.process, c.signal); err != nil {
				t.Fatal(err)
			}
			r.create("made-while", "bridge")
			r.delete("deleted-while")
			if err := r.node.Start(c.process); err != nil {
				t.Fatal(err)
			}
			if err := r.node.RuntimeReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.step("%s is back", c.process)
			r.remove("deleted-after")
			r.gone("deleted-while")
			r.running("made-before", "made-while")
			for _, name := range []string{"stays", "made-before", "made-while"} {
				r.hasNetworks(r.get(name), 1)
				r.hasStatus(name, 2)
			}
			if after := processes(uid); fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("the processes of a pod that was to stay were %v and are %v", before, after)
			}
			r.wait("nothing to be left of the deleted pods", func() error {
				return r.leftovers(r.get("stays"), r.get("made-before"), r.get("made-while"))
			})
			r.remove("stays", "made-before", "made-while")
		})
	}
}

// slowPlugin is a CNI plugin that takes its time: an ADD in which something else can happen.
const slowPlugin = `#!/bin/sh
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' && exit
echo "$CNI_COMMAND $CNI_CONTAINERID" >> /var/lib/cni/slow
[ "$CNI_COMMAND" = ADD ] && sleep 3 && echo '{"cniVersion":"1.0.0"}'
exit 0
`

// A containerd that is killed in the middle of an ADD, twice for the same pod, leaves nothing of
// what was made for the sandbox that it forgot, once the pod is gone.
func TestRuntimeKilledInADD(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "run1", "10.91.0.0/24")
	r.nad("slow", `{"cniVersion":"1.0.0","type":"slow"}`)
	r.write("/opt/cni/bin/slow", slowPlugin)
	r.shell("chmod 755 /opt/cni/bin/slow && : > /var/lib/cni/slow")
	t.Cleanup(func() { r.node.Exec(r.ctx(), "rm", "-f", "/opt/cni/bin/slow", "/var/lib/cni/slow") }) //nolint:errcheck // the node ends soon after
	r.create("pod", "bridge, slow", untilItEnds)
	for n := range 2 {
		r.wait("an ADD to be under way", func() error {
			if calls := strings.Count(r.file("/var/lib/cni/slow"), "ADD "); calls <= n {
				return fmt.Errorf("there were %d calls", calls)
			}
			return nil
		})
		r.step("kill containerd")
		if err := r.node.End(t.Context(), lab.Containerd, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.node.Start(lab.Containerd); err != nil {
			t.Fatal(err)
		}
		if err := r.node.RuntimeReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.hasNetworks(r.running("pod"), 1)
	r.step("the pod runs")
	r.remove("pod")
}
