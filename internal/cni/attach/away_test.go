// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/weftnet/weft/internal/host/journal"
)

// An ADD that comes while the agent is being replaced waits for the next one: for one that is
// not there yet, and for one whose predecessor left a socket, or hangs up.
func TestAgentComesBack(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, socket string){
		"no socket": func(*testing.T, string) {},
		"a stale socket": func(t *testing.T, socket string) {
			t.Helper()
			l := listenAt(t, socket)
			l.SetUnlinkOnClose(false)
			l.Close()
		},
		"one that ends": func(t *testing.T, socket string) {
			t.Helper()
			l := listenAt(t, socket)
			go func() {
				if conn, err := l.Accept(); err == nil {
					conn.Close()
				}
				l.Close()
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			socket := filepath.Join(r.dir, "agent.sock")
			delete(r.conf, "manifests")
			r.conf["agentSocket"] = socket
			before(t, socket)
			answered := make(chan answer, 1)
			cmd := r.command("ADD")
			go func() { answered <- r.finish(cmd) }()
			// It waits, since it has been seen to find nobody.
			r.await("the call to hold its record", func() bool { _, err := os.Stat(r.record()); return err == nil })
			r.await("the earlier socket to be left", func() bool {
				conn, err := net.Dial("unix", socket)
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
			if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			l := listenAt(t, socket)
			defer l.Close()
			go serveAgent(l, unclaimed{claimed{r: r}})
			if got := <-answered; got.status != 0 {
				t.Errorf("ADD: %+v", got)
			}
			r.wantCalls("pa ADD eth0")
			r.ok("DEL")
		})
	}
}

// The hands alone plan for a pod that asks for nothing, and say 11 for one that does.
func TestAgentAway(t *testing.T) {
	r := newRig(t)
	delete(r.conf, "manifests")
	r.conf["agentSocket"] = filepath.Join(r.dir, "no.sock")
	r.conf["timeout"] = "2s" // of which it waits for an agent a quarter
	r.conf["capabilities"] = map[string]bool{"io.kubernetes.cri.pod-annotations": true}
	given := func(a map[string]string) {
		r.conf["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": a}
	}
	given(map[string]string{"app": "x"})
	r.ok("ADD")
	r.wantCalls("pa ADD eth0")
	r.ok("DEL")
	r.wantCalls("pa DEL eth0")
	given(map[string]string{networks: " "})
	r.ok("ADD")
	r.ok("DEL")
	r.calls()

	given(map[string]string{networks: "neta"})
	r.fails(11, "agent", "ADD")
	given(map[string]string{"v1.multus-cni.io/default-network": "neta"})
	r.fails(11, "agent", "ADD")
	given(map[string]string{})
	r.conf["defaultNetworks"], r.conf["clusterNetwork"] = []string{"cn"}, "cn"
	r.fails(11, "agent", "ADD")
	delete(r.conf, "clusterNetwork")
	delete(r.conf, "defaultNetworks")
	delete(r.conf, "runtimeConfig")
	r.fails(11, "agent", "ADD")

	// A device that is prepared for the pod is the agent's to move.
	given(map[string]string{})
	r.write(filepath.Join(r.state, "devices", "claim.jsonl"), "{\n")
	r.fails(11, "agent", "ADD")
	r.wantCalls()
	r.wantClean()
}

// TestClaimedWithoutKubernetes: a conf that names no source of pods attaches none without its devices
// either; other pods, and what is no pod, go on.
func TestClaimedWithoutKubernetes(t *testing.T) {
	r := newRig(t)
	delete(r.conf, "manifests")
	devices := filepath.Join(r.state, "devices")
	records, err := journal.Open(devices, "devices")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := records.Acquire(t.Context(), "claim")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(rec.Begin(journal.Intent{PodUID: "uid-1", Body: []byte("{}")}), rec.Close(), records.Close()); err != nil {
		t.Fatal(err)
	}
	r.fails(11, "only the node's agent can hand it over", "ADD")
	r.wantCalls()
	r.wantClean()
	for _, args := range []string{"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=other;K8S_POD_UID=uid-2", "IgnoreUnknown=1"} {
		r.ok("ADD", "CNI_ARGS="+args)
		r.ok("DEL", "CNI_ARGS="+args)
	}
	r.calls()
	if err := os.Remove(filepath.Join(devices, "claim.jsonl")); err != nil {
		t.Fatal(err)
	}
	r.ok("ADD")
	r.ok("DEL")
}
