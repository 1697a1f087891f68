// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/test/lab"
)

// anywhere lets the scheduler choose among the nodes that have what the pod claims.
func anywhere(pod *corev1.Pod) { pod.Spec.NodeSelector = nil }

// Two machines have the same card at the same addresses, and pools of the same name. Each device of both is
// had by one pod, and no more pods run than there are devices; they keep theirs while the agents are replaced
// one by one, and a pod that ends meanwhile makes room for one that waits.
func TestTwoMachines(t *testing.T) {
	first := newMachineRig(t)
	machines := []*machineRig{first, first.startMachine("worker-node-2")}
	config, objects, _ := seed(t)
	devices := []string{"0000-00-14-0", "0000-00-14-2", "0000-00-14-4", "0000-00-14-6"}
	r := first.rig
	own := r.node
	defer func() { r.node = own }()
	for _, m := range machines {
		lab.Apply(t, strings.ReplaceAll(config, seedNode, m.machine.Name))
		t.Cleanup(func() {
			if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "--ignore-not-found", "ndnc/"+m.machine.Name, "deviceclass/"+sriovClass); err != nil {
				t.Error(err)
			}
		})
		r.node = m.machine
		r.offers(1, devices...)
		_, m.links = m.vfs()
	}
	lab.Apply(t, objects, "--namespace="+r.ns)

	pods := make([]string, 2*len(devices))
	for i := range pods {
		pods[i] = fmt.Sprint("p", i)
		r.create(pods[i], "", claiming("sriov-claim"), anywhere)
	}
	for _, pod := range pods {
		first.has(pod, "sriov0")
	}
	r.create("more", "", claiming("sriov-claim"), anywhere)
	r.eventOf("default-scheduler", "more", "cannot allocate all claims")
	r.step("all devices of both are had")
	before := first.had(machines, devices)

	r.kubectl("rollout", "restart", "daemonset/"+agentName, "--namespace="+agentNamespace)
	ending := pods[0]
	r.remove(ending)
	first.has("more", "sriov0")
	r.kubectl("rollout", "status", "daemonset/"+agentName, "--namespace="+agentNamespace, "--timeout=600s")
	r.step("the agents are others")
	for _, pod := range pods[1:] {
		first.has(pod, "sriov0")
	}
	after := first.had(machines, devices)
	for uid, device := range before {
		if now, ok := after[uid]; ok && now != device {
			t.Errorf("the pod of UID %s had %s and has %s", uid, device, now)
		}
	}
	r.remove(append(pods[1:], "more")...)
	for _, m := range machines {
		m.home()
	}
}

// had is what each pod has, by its UID; each device of each machine is had once.
func (r *machineRig) had(machines []*machineRig, devices []string) map[string]string {
	r.t.Helper()
	by := map[string]string{}
	for _, m := range machines {
		var names []string
		r.wait("the tables of "+m.machine.Name, func() error {
			names = nil
			tables, err := m.tables()
			if err != nil {
				return err
			}
			for _, row := range tables.Allocations {
				name := fmt.Sprint(row["DeviceName"])
				names = append(names, name)
				by[fmt.Sprint(row["PodUID"])] = m.machine.Name + " " + name
			}
			if slices.Sort(names); !slices.Equal(names, devices) {
				return fmt.Errorf("had are %q", names)
			}
			return nil
		})
	}
	if len(by) != len(machines)*len(devices) {
		r.t.Errorf("devices by pod: %v", by)
	}
	return by
}
