// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/test/lab"
)

// clusterConfig makes a node's configuration that has a pool for dummy links.
const clusterConfig = `
apiVersion: cilium.io/v2alpha1
kind: CiliumNetworkDriverClusterConfig
metadata: {name: helm}
spec:
  spec:
    deviceManagerConfigs: {dummy: {enabled: true, count: 2}}
    pools: [{name: trial, filter: {deviceManagers: [dummy]}}]
`

// helmTrial are the objects of an installation that Helm takes away again.
var helmTrial = []string{ //nolint:gochecknoglobals // a constant that Go has no word for
	"daemonset/weft-agent", "deployment/weft-operator", "configmap/weft-agent", "serviceaccount/weft-agent", "serviceaccount/weft-operator",
	"clusterrole/weft-agent", "clusterrolebinding/weft-agent", "clusterrole/weft-operator", "validatingadmissionpolicy/weft-agent",
}

// The chart as docs/install.md says: installed by Helm with the network driver, both agent and
// operator have it; an upgrade, also of what the agent reports machines by, replaces the agents and no pod notices,
// and is taken back by a rollback; values that the chart does not know change nothing; after the removal the definitions, the networks and what the nodes
// need stay, and pods that run can be deleted.
func TestHelm(t *testing.T) {
	r := newRig(t)
	r.bridgeNAD("bridge", "helm0", "10.91.0.0/24")
	t.Cleanup(func() {
		if err := r.cp.InstallWeft(r.ctx()); err != nil {
			t.Error(err)
		}
	})
	r.withoutManifests()
	release := r.helm("install", "--set=networkDriver.enabled=true", "--set=operator.replicas=1", "--set=operator.webhook.enabled=false")
	r.step("helm install says %q", release)
	r.agentReady()

	lab.Apply(t, clusterConfig)
	t.Cleanup(func() {
		if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "--ignore-not-found", "ndcc/helm", "ndnc/"+r.node.Name); err != nil {
			t.Error(err)
		}
	})
	r.wait("the operator to make the node's configuration", func() error {
		_, err := r.cp.Kubectl(t.Context(), "", "get", "ndnc", r.node.Name)
		return err
	})
	r.condition("Accepted", "True") // by the agent
	r.create("before", "bridge")
	before := r.running("before")
	r.hasNetworks(before, 1)
	r.step("the driver is on in operator and agent, a pod is attached")

	r.refused()
	first := r.deployed()
	r.upgraded(before)
	r.rolledBack(before, first)
	r.uninstalled(before)
}

// helm runs a command of Helm on the release, and waits until what it makes is ready.
func (r *rig) helm(command string, values ...string) string {
	r.t.Helper()
	args := []string{command, "weft", "deploy/helm/weft", "--namespace=" + agentNamespace, "--wait", "--timeout=3m"}
	out, err := r.cp.Helm(r.t.Context(), append(args, values...)...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// withoutManifests takes away what was installed by deploy/, but for its definitions.
func (r *rig) withoutManifests() {
	r.t.Helper()
	r.noAgents()
	args := []string{"delete", "--ignore-not-found", "--namespace=" + agentNamespace}
	for _, file := range []string{"rbac.yaml", "policy.yaml", "config.yaml"} {
		args = append(args, "--filename="+filepath.Join("../../../deploy", file))
	}
	if _, err := r.cp.Kubectl(r.t.Context(), "", args...); err != nil {
		r.t.Fatal(err)
	}
}

// refused tries upgrades that the chart refuses, and sees that nothing changed.
func (r *rig) refused() {
	r.t.Helper()
	state := func() string {
		return r.kubectl("get", "--namespace="+agentNamespace, "daemonset,deployment,configmap,secret", "-o", "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}")
	}
	before := specs(state())
	for _, c := range []struct{ value, why string }{
		{"agent.memory=plenty", "/agent/memory"},
		{"vmi.mode=on", "/vmi/mode"},
		{"networkdriver.enabled=true", "networkdriver"},
	} {
		_, err := r.cp.Helm(r.t.Context(), "upgrade", "weft", "deploy/helm/weft", "--namespace="+agentNamespace, "--reuse-values", "--set="+c.value)
		if err == nil || !strings.Contains(err.Error(), c.why) {
			r.t.Errorf("helm upgrade --set %s: %v, want that %s is wrong", c.value, err, c.why)
		}
	}
	if diff := cmp.Diff(before, specs(state())); diff != "" {
		r.t.Errorf("a refused upgrade changed (-before +after):\n%s", diff)
	}
	r.step("values that the chart does not know are refused, and nothing has changed")
}

// specs are the lines of what a list of objects says, but for those whose status is of their version.
func specs(text string) (all []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "ConfigMap weft") || strings.HasPrefix(line, "Secret sh.helm") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// upgraded gives the release other values while a pod runs.
func (r *rig) upgraded(running *corev1.Pod) {
	r.t.Helper()
	if _, err := r.cp.Kubectl(r.t.Context(), "", "apply", "--server-side", "--filename=../../../deploy/helm/weft/crds"); err != nil {
		r.t.Errorf("the definitions cannot be upgraded as docs/install.md says: %v", err)
	}
	links, agent := r.links(running), r.agentPID()
	r.helm("upgrade", "--reuse-values", "--set=agent.config.log.level=debug", "--set=upkeep.enabled=true", "--set=vmi.mode=observe")
	r.agentReady()
	if r.agentPID() == agent {
		r.t.Error("the agent was not replaced")
	}
	config := r.agentConfig()
	if mode, _, _ := unstructured.NestedString(config, "vmi", "mode"); mode != "observe" {
		r.t.Errorf("vmi.mode of the agent's configuration is %q", mode)
	}
	set, err := r.kube.AppsV1().DaemonSets(agentNamespace).Get(r.t.Context(), agentName, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	if u := set.Spec.UpdateStrategy.RollingUpdate; u == nil || u.MaxUnavailable.String() != "1" || u.MaxSurge.String() != "0" {
		r.t.Errorf("agents are not replaced one by one: %+v", set.Spec.UpdateStrategy)
	}
	if !set.Spec.Template.Spec.HostPID || !slices.Contains(set.Spec.Template.Spec.Containers[0].Command, "--enable-network-driver") &&
		!slices.Contains(set.Spec.Template.Spec.Containers[0].Args, "--enable-network-driver") {
		r.t.Errorf("the agent has not what was set now and before: %+v", set.Spec.Template.Spec)
	}
	r.same(running, links)
	r.create("after", "bridge")
	r.hasNetworks(r.running("after"), 1)
	r.step("upgraded, and a pod from before runs as it did")
}

// same checks that a pod that runs noticed nothing.
func (r *rig) same(running *corev1.Pod, links map[string]link) {
	r.t.Helper()
	if diff := cmp.Diff(links, r.links(running)); diff != "" {
		r.t.Errorf("the interfaces of a pod that runs changed: %s", diff)
	}
	if now := r.get(running.Name); now.Status.ContainerStatuses[0].RestartCount != 0 || now.UID != running.UID {
		r.t.Error("a pod that runs was started anew")
	}
}

// deployed is what a release makes of its values, but for what the API server adds with time.
type deployed struct {
	Agent  corev1.PodSpec
	Config map[string]any
	Rules  []rbacv1.PolicyRule
}

func (r *rig) deployed() deployed {
	r.t.Helper()
	set, err := r.kube.AppsV1().DaemonSets(agentNamespace).Get(r.t.Context(), agentName, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	role, err := r.kube.RbacV1().ClusterRoles().Get(r.t.Context(), agentName, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return deployed{set.Spec.Template.Spec, r.agentConfig(), role.Rules}
}

// agentConfig is the configuration that the agents have.
func (r *rig) agentConfig() map[string]any {
	r.t.Helper()
	object, err := r.kube.CoreV1().ConfigMaps(agentNamespace).Get(r.t.Context(), agentName, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(object.Data["agent.yaml"]), &config); err != nil {
		r.t.Fatal(err)
	}
	return config
}

// rolledBack takes the upgrade back: everything is as the first revision made it, and pods of both run on.
func (r *rig) rolledBack(running *corev1.Pod, first deployed) {
	r.t.Helper()
	links, agent := r.links(running), r.agentPID()
	if cmp.Equal(first, r.deployed()) {
		r.t.Error("the upgrade changed nothing that a rollback could take back")
	}
	if _, err := r.cp.Helm(r.t.Context(), "rollback", "weft", "1", "--namespace="+agentNamespace, "--wait", "--timeout=3m"); err != nil {
		r.t.Fatal(err)
	}
	r.agentReady()
	if r.agentPID() == agent {
		r.t.Error("the agent was not replaced")
	}
	if diff := cmp.Diff(first, r.deployed()); diff != "" {
		r.t.Errorf("after the rollback it is not as it was (-before +after):\n%s", diff)
	}
	r.same(running, links)
	r.hasNetworks(r.get("after"), 1)
	r.create("back", "bridge")
	r.hasNetworks(r.running("back"), 1)
	r.step("rolled back, and pods run as they did")
}

// uninstalled takes the release away while pods run.
func (r *rig) uninstalled(running *corev1.Pod) {
	r.t.Helper()
	conf, links := r.file(publishedConf), r.links(running)
	if _, err := r.cp.Helm(r.t.Context(), "uninstall", "weft", "--namespace="+agentNamespace, "--wait", "--timeout=2m"); err != nil {
		r.t.Fatal(err)
	}
	for _, object := range helmTrial {
		out, err := r.cp.Kubectl(r.t.Context(), "", "get", "--namespace="+agentNamespace, "--ignore-not-found", "--output=name", object)
		if err != nil || out != "" {
			r.t.Errorf("%s is left: %q %v", object, out, err)
		}
	}
	r.wait("the end of the agent", func() error {
		if pod, err := r.agentPod(); err == nil {
			return fmt.Errorf("pod %s is there", pod.Name)
		}
		return nil
	})
	for _, object := range []string{
		"crd/network-attachment-definitions.k8s.cni.cncf.io", "crd/ciliumnetworkdrivernodeconfigs.cilium.io", "crd/ciliumnetworkdriverclusterconfigs.cilium.io",
		"network-attachment-definition/bridge", "ndcc/helm", "ndnc/" + r.node.Name,
	} {
		r.kubectl("get", object)
	}
	if now := r.file(publishedConf); now != conf {
		r.t.Errorf("what is published became %s", now)
	}
	if diff := cmp.Diff(links, r.links(running)); diff != "" {
		r.t.Errorf("the interfaces of a pod that runs changed: %s", diff)
	}
	r.create("plain", "")
	plain := r.running("plain")
	r.hasNetworks(plain, 0)
	r.remove("before", "after", "back")
	r.wait("nothing to be left of pods that are deleted without an agent", func() error { return r.leftovers(plain) })
	r.remove("plain")
	if _, err := r.agentPod(); err == nil {
		r.t.Error("an agent came back")
	}
	r.step("uninstalled: networks stay, pods can be deleted")
}
