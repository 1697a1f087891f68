// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Weft leaves a node as docs/agent.md says: not while it has something attached, unless it is
// forced, which takes that from the pods; then nothing of it is left, pods start by the pod
// network alone, and those from before are deleted cleanly. Installed again, pods have networks.
func TestRemoved(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "gone0", "10.90.0.0/24")
	r.create("attached", "bridge")
	r.create("plain", "")
	attached := r.running("plain", "attached")
	program := r.mountImage() + "/weft-agent"
	conf := r.file(publishedConf)

	r.step("take the agents away")
	defer r.reinstall()
	r.noAgents()
	before := r.shell("ls -lA --full-time /opt/cni/bin " + confDir + " /var/lib/weft/attachments")
	out, status := r.try(program, "uninstall")
	if status != 1 {
		t.Errorf("uninstall with pods attached: status %d, want 1: %s", status, out)
	}
	has(t, out, r.ns+"/attached", r.ns+"/plain", "still attached by Weft")
	if after := r.shell("ls -lA --full-time /opt/cni/bin " + confDir + " /var/lib/weft/attachments"); after != before {
		t.Errorf("a refused uninstall changed what was\n%s\nto\n%s", before, after)
	}
	r.hasNetworks(attached, 1)

	r.step("by force")
	out, status = r.try(program, "uninstall", "--force")
	if status != 0 {
		t.Fatalf("uninstall --force: status %d: %s", status, out)
	}
	r.step("it says %q", out)
	for _, path := range []string{publishedConf, "/opt/cni/bin/weft-cni", "/var/lib/weft/attachments"} {
		if _, err := r.node.Exec(t.Context(), "test", "!", "-e", path); err != nil {
			t.Errorf("%s is left", path)
		}
	}
	if links := r.links(attached); len(links) > 0 {
		t.Errorf("the pod still has %v", links)
	}
	r.nodeReady(true)
	r.create("without", "")
	r.hasNetworks(r.running("without"), 0)
	r.remove("attached", "plain")
	r.wait("nothing to be left of the pods from before", func() error { return r.leftovers(r.get("without")) })

	r.step("install it again")
	r.reinstall()
	if now := r.file(publishedConf); now != conf {
		t.Errorf("what is published became %s", now)
	}
	r.create("again", "bridge")
	r.hasNetworks(r.running("again"), 1)
	r.hasStatus("again", 2)
	r.remove("without", "again") // one that Weft never saw, and one that it did
}

// try runs a command on the node and returns its output and exit status.
func (r *rig) try(args ...string) (string, int) {
	r.t.Helper()
	var out strings.Builder
	cmd := r.node.Command(r.t.Context(), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := r.node.StartCommand(cmd); err != nil {
		r.t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// noAgents deletes the DaemonSet and waits until its pods are gone.
func (r *rig) noAgents() {
	r.t.Helper()
	err := r.kube.AppsV1().DaemonSets(agentNamespace).Delete(r.t.Context(), agentName, metav1.DeleteOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.wait("the end of the agents", func() error {
		list, err := r.kube.CoreV1().Pods(agentNamespace).List(r.t.Context(), metav1.ListOptions{LabelSelector: agentSelector})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("pod " + list.Items[0].Name + " is there")
		}
		return err
	})
}

// reinstall applies deploy/ again where the DaemonSet is gone.
func (r *rig) reinstall() {
	r.t.Helper()
	_, err := r.kube.AppsV1().DaemonSets(agentNamespace).Get(r.ctx(), agentName, metav1.GetOptions{})
	if err == nil {
		return
	}
	if !apierrors.IsNotFound(err) {
		r.t.Fatal(err)
	}
	if err := r.cp.InstallWeft(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
	r.agentReady()
}
