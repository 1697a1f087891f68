// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ask changes what networks a running pod asks for.
func (r *rig) ask(pod, networks string) {
	r.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{networksAnnotation: networks}}})
	if err == nil {
		_, err = r.kube.CoreV1().Pods(r.ns).Patch(r.t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// hasLinks waits until a pod has these interfaces besides eth0 and lo, and its network-status says so.
func (r *rig) hasLinks(name string, want ...string) {
	r.t.Helper()
	r.wait(fmt.Sprintf("pod %s to have %q", name, want), func() error {
		pod := r.get(name)
		var links, told []string
		for link := range r.links(pod) {
			if link != "lo" && link != "eth0" {
				links = append(links, link)
			}
		}
		for _, s := range r.status(pod) {
			if !s.Default {
				told = append(told, s.Interface)
			}
		}
		slices.Sort(links)
		slices.Sort(told)
		if !slices.Equal(links, want) || !slices.Equal(told, want) {
			return fmt.Errorf("it has %q, its status says %q, its last event: %s", links, told, r.lastEvent(name))
		}
		return nil
	})
}

// A running pod gets and loses networks as its annotation changes, through the real plugins; what it keeps
// is not touched, and what is wrong is told and changes nothing. So does the pod of a virtual machine.
func TestHotPlug(t *testing.T) {
	r := newRig(t)
	r.with("upkeep")
	r.agentReady()
	r.nad("bridge", bridgeConfig)
	r.nad("data", dataConfig)
	r.create("plug", "bridge")
	r.create(launcherName, r.launched("bridge"), func(p *corev1.Pod) { p.Labels = map[string]string{"kubevirt.io": "virt-launcher"} })
	r.running("plug", launcherName)
	r.hasLinks("plug", "net1")
	kept := r.address(r.get("plug"), "net1", "10.55.0.")
	r.ask("plug", "bridge, data@extra0")
	r.hasLinks("plug", "extra0", "net1")
	r.ask(launcherName, r.launched("bridge", "data"))
	r.hasLinks(launcherName, "podbridge", "poddata")
	r.ask(launcherName, r.launched("data"))
	r.hasLinks(launcherName, "poddata")
	r.step("plugged, and the pod of a machine as well")
	r.create("other", "data")
	r.running("other")
	if err := r.say(r.get("other"), r.get("plug"), r.address(r.get("plug"), "extra0", "10.56.0."), 10); err != nil {
		t.Error(err)
	}
	r.ask("plug", "bridge, nowhere")
	r.event("plug", "nowhere")
	r.hasLinks("plug", "extra0", "net1")
	r.ask("plug", "bridge")
	r.hasLinks("plug", "net1")
	if now := r.address(r.get("plug"), "net1", "10.55.0."); now != kept {
		t.Errorf("net1 had %s, and has %s", kept, now)
	}
	r.step("unplugged")
	r.remove("plug", "other", launcherName)
}

// launcherName is the pod of a virtual machine.
const launcherName = "virt-launcher-vm-x7k2p"

// launched is the annotation that a launcher has for these networks: KubeVirt names every interface.
func (r *rig) launched(networks ...string) string {
	r.t.Helper()
	var all []map[string]string
	for _, n := range networks {
		all = append(all, map[string]string{"name": n, "namespace": r.ns, "interface": "pod" + n})
	}
	b, err := json.Marshal(all)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// A pod whose DEL never comes leaves nothing behind for long: its record, its address and its interface go
// by themselves, those of the living stay.
func TestOrphan(t *testing.T) {
	r := newRig(t)
	r.with("upkeep")
	r.agentReady()
	r.nad("bridge", bridgeConfig)
	r.create("lives", "bridge")
	r.create("lost", "bridge")
	r.running("lives", "lost")
	lost := r.get("lost")
	id := r.sandboxOf(lost)
	r.sh("cp -a /var/lib/weft/attachments/" + id + "-eth0.jsonl /tmp/kept")
	lease := r.sh(fmt.Sprintf("grep -l %s /var/lib/cni/networks/*/* | head -n1", id))
	r.remove("lost")
	// As a restored disk has it: record and address are there again, pod and namespace are not.
	r.sh(fmt.Sprintf("cp -a /tmp/kept /var/lib/weft/attachments/%s-eth0.jsonl && printf '%%s\\r\\nnet1' %s > %s", id, id, strings.TrimSpace(lease)))
	r.step("the record of a pod that is gone is back")
	r.wait("the orphan to go", func() error {
		if out := r.sh("ls /var/lib/weft/attachments"); strings.Contains(out, id) {
			return errors.New(out)
		}
		return nil
	})
	if out := r.sh(fmt.Sprintf("grep -l %s /var/lib/cni/networks/*/* || true", id)); strings.TrimSpace(out) != "" {
		t.Errorf("its address is still taken: %s", out)
	}
	r.hasLinks("lives", "net1")
	r.remove("lives")
}

// sandboxOf is the sandbox of a pod's record.
func (r *rig) sandboxOf(pod *corev1.Pod) string {
	r.t.Helper()
	out := r.sh("grep -l " + string(pod.UID) + " /var/lib/weft/attachments/*")
	name := strings.TrimSpace(out)
	return strings.TrimSuffix(name[strings.LastIndex(name, "/")+1:], "-eth0.jsonl")
}

// sh runs a script on the node.
func (r *rig) sh(script string) string {
	r.t.Helper()
	out, err := r.node.Exec(r.t.Context(), "sh", "-c", script)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}
