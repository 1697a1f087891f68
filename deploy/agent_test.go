// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"net"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weftnet/weft/internal/agent/config"
)

// containers are those of the pod, the ones that run first in front.
func containers(agent *appsv1.DaemonSet) []corev1.Container {
	return slices.Concat(agent.Spec.Template.Spec.InitContainers, agent.Spec.Template.Spec.Containers)
}

func container(t *testing.T, agent *appsv1.DaemonSet, name string) corev1.Container {
	t.Helper()
	all := containers(agent)
	i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no container %s", name)
	}
	return all[i]
}

func parse(t *testing.T, text string) config.Config {
	t.Helper()
	c, err := config.Parse("agent.yaml", []byte(text), config.Overrides{FallbackNodeName: "node"})
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return c
}

// TestConfig: the shipped file is accepted and changes nothing; so is the file in which
// everything that is commented out counts, and it has every key.
func TestConfig(t *testing.T) {
	shipped := load(t).configs[0].Data["agent.yaml"]
	written := regexp.MustCompile(`(?m)^#((?:  )*[a-zA-Z]+:)`).ReplaceAllString(shipped, "$1")
	want := config.Defaults()
	want.NodeName = "node"
	for name, text := range map[string]string{"as shipped": shipped, "every key": written} {
		if d := cmp.Diff(want, parse(t, text), cmpopts.IgnoreUnexported(config.Config{})); d != "" {
			t.Errorf("%s (-defaults +file):\n%s", name, d)
		}
	}
	for _, k := range config.Keys() {
		// Both are given by the DaemonSet, and neither has a default that could be written.
		if k.Name == "nodeName" || k.Name == "kubeconfig" {
			continue
		}
		key := k.Name[strings.LastIndex(k.Name, ".")+1:]
		if !regexp.MustCompile(`(?m)^ *` + key + `:`).MatchString(written) {
			t.Errorf("config.yaml does not show %s", k.Name)
		}
	}
}

// TestDirectories: each directory that the configuration names is mounted under its own name,
// writable where something is written and nowhere else.
func TestDirectories(t *testing.T) {
	m := load(t)
	agent, c := m.agents[0], config.Defaults()
	hosts := map[string]*corev1.HostPathVolumeSource{}
	for _, v := range agent.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			hosts[v.Name] = v.HostPath
		}
	}
	mounts := func(name string) map[string]string {
		out := map[string]string{}
		for _, v := range container(t, agent, name).VolumeMounts {
			host, ok := hosts[v.Name]
			if !ok {
				continue
			}
			if host.Path != v.MountPath {
				t.Errorf("%s is mounted at %s: the published configuration names paths of the node", host.Path, v.MountPath)
			}
			out[v.MountPath] = map[bool]string{true: "read", false: "write"}[v.ReadOnly]
		}
		return out
	}
	want := map[string]string{
		c.CNI.ConfDir: "write", c.SocketDir: "write",
		c.StateDir: "read", // records are written by weft-cni, on the node
		path.Join(c.CNI.KubeletDir, "device-plugins"): "read",
		path.Join(c.CNI.KubeletDir, "pod-resources"):  "read",
		"/var/run/k8s.cni.cncf.io":                    "read",
	}
	if d := cmp.Diff(want, mounts("agent")); d != "" {
		t.Errorf("mounts of the agent (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{c.CNI.BinDir: "write"}, mounts("install")); d != "" {
		t.Errorf("mounts of install (-want +got):\n%s", d)
	}
	for name, host := range hosts {
		if host.Type == nil {
			t.Errorf("volume %s has no type: what is missing would show as something else later", name)
		}
	}
}

// TestRights: nothing is privileged, in each container.
func TestRights(t *testing.T) {
	pod := load(t).agents[0].Spec.Template.Spec
	if pod.HostPID || pod.HostIPC || !pod.HostNetwork {
		t.Error("of the node's namespaces, the agent lives in the network's alone")
	}
	if s := pod.SecurityContext.SeccompProfile; s == nil || s.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("the seccomp profile is not the runtime's")
	}
	want := &corev1.SecurityContext{
		Privileged: new(false), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"DAC_OVERRIDE"}},
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if d := cmp.Diff(want, c.SecurityContext); d != "" {
			t.Errorf("container %s (-want +got):\n%s", c.Name, d)
		}
		if len(c.Ports) > 0 {
			t.Errorf("container %s announces ports: there is one on loopback only", c.Name)
		}
	}
}

// TestPlace: the agent is on every node, before any pod network, and never twice.
func TestPlace(t *testing.T) {
	agent := load(t).agents[0]
	pod := agent.Spec.Template.Spec
	if d := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations); d != "" {
		t.Errorf("tolerations (-want +got):\n%s", d)
	}
	if pod.PriorityClassName != "system-node-critical" {
		t.Errorf("priority class %q", pod.PriorityClassName)
	}
	u := agent.Spec.UpdateStrategy
	if u.Type != appsv1.RollingUpdateDaemonSetStrategyType || u.RollingUpdate.MaxUnavailable.IntValue() != 1 || u.RollingUpdate.MaxSurge.IntValue() != 0 {
		t.Errorf("update strategy %+v", u)
	}
	for key, value := range agent.Spec.Selector.MatchLabels {
		if agent.Spec.Template.Labels[key] != value {
			t.Errorf("the selector's %s=%s is no label of the pods", key, value)
		}
	}
	for _, c := range containers(agent) {
		i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NODE_NAME" })
		if i < 0 || c.Env[i].ValueFrom == nil || c.Env[i].ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
			t.Errorf("container %s does not know the node's name", c.Name)
		}
	}
}

// TestProbes: they ask where the agent serves by default.
func TestProbes(t *testing.T) {
	c := container(t, load(t).agents[0], "agent")
	for want, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil {
			t.Errorf("nothing asks for %s", want)
			continue
		}
		get := probe.HTTPGet
		if got := net.JoinHostPort(get.Host, get.Port.String()); got != config.Defaults().MetricsAddress || get.Path != want {
			t.Errorf("a probe asks %s%s, served is %s on %s", got, get.Path, want, config.Defaults().MetricsAddress)
		}
	}
}

// TestResources: memory is asked for in full and Go knows of it; processors have no limit.
func TestResources(t *testing.T) {
	agent := load(t).agents[0]
	for _, c := range containers(agent) {
		if !c.Resources.Limits.Cpu().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			t.Errorf("container %s: processors are asked for and not limited", c.Name)
		}
		limit := c.Resources.Limits.Memory()
		if limit.IsZero() || limit.Cmp(*c.Resources.Requests.Memory()) != 0 {
			t.Errorf("container %s: memory %s is not what is asked for", c.Name, limit)
		}
	}
	c := container(t, agent, "agent")
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
	if i < 0 {
		t.Fatal("GOMEMLIMIT is not set")
	}
	// Go and Kubernetes write units differently: MiB here, Mi there.
	soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[i].Value, "B"))
	if err != nil || soft.Value() >= c.Resources.Limits.Memory().Value() || soft.Value() < 45<<20 {
		t.Errorf("GOMEMLIMIT=%s: %v", c.Env[i].Value, err)
	}
}

// TestPageTellsTheDirectories: docs/agent.md explains every directory of the node that is mounted.
func TestPageTellsTheDirectories(t *testing.T) {
	agent := load(t).agents[0]
	mounted := map[string]string{}
	for _, c := range containers(agent) {
		for _, m := range c.VolumeMounts {
			if m.Name != "config" {
				mounted[m.MountPath] = map[bool]string{true: "read", false: "write"}[m.ReadOnly]
			}
		}
	}
	if d := cmp.Diff(mounted, toldDirectories(t, base)); d != "" {
		t.Errorf("directories (-mounted +docs/agent.md):\n%s", d)
	}
}

// toldDirectories are those of the page, and whether they are read or written.
func toldDirectories(t *testing.T, p part) map[string]string {
	t.Helper()
	told := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(/[^`]+)` \\| (?:read, )?(read|write)[^|]* \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(page(t, p), -1) {
		told[m[1]] = m[2]
	}
	return told
}
