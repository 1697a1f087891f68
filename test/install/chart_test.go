// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// TestSameObjects: for the same wish the chart and the kustomizations of deploy/ make the same objects.
func TestSameObjects(t *testing.T) {
	const (
		driver  = "component:network-driver"
		vmi     = "component:vmi"
		publish = "component:vmi/publish"
		upkeep  = "component:upkeep"
		pods    = "component:operator/pods"
	)
	cases := map[string]struct {
		values  set
		folders []string
	}{
		"defaults":       {nil, []string{""}},
		"network driver": {set{"networkDriver.enabled": true}, []string{"", "operator", driver}},
		"network driver, no operator": {
			set{"networkDriver.enabled": true, "operator.enabled": false},
			[]string{"", driver},
		},
		"observed machines":  {set{"vmi.mode": "observe"}, []string{"", vmi}},
		"published machines": {set{"vmi.mode": "publish"}, []string{"", vmi, publish}},
		"upkeep":             {set{"upkeep.enabled": true}, []string{"", upkeep}},
		"everything": {
			set{"networkDriver.enabled": true, "vmi.mode": "publish", "operator.webhook.pods": true, "upkeep.enabled": true},
			[]string{"", "operator", driver, vmi, publish, pods, upkeep},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			want, got := kustomized(t, c.folders...), rendered(t, ours, c.values)
			maps.Copy(want, definitions(t))
			if c.values["vmi.mode"] != nil {
				// Here the chart does more: by hand vmi.mode is a line of config.yaml.
				key := "ConfigMap kube-system/weft-agent"
				config := got[key]["data"].(object)["agent.yaml"].(string)
				if line := "vmi:\n  mode: " + c.values["vmi.mode"].(string) + "\n"; !strings.HasSuffix(strings.TrimRight(config, "\n")+"\n", line) {
					t.Errorf("agent.yaml does not end with %q:\n%s", line, config)
				}
				delete(want, key)
				delete(got, key)
				delete(annotations(got), "checksum/config")
			}
			if d := diff(want, got); d != "" {
				t.Errorf("objects (-deploy/ +chart):\n%s", d)
			}
		})
	}
}

// TestComponentsInAnyOrder: the order in which somebody lists the components says nothing.
func TestComponentsInAnyOrder(t *testing.T) {
	components := []string{"component:network-driver", "component:vmi", "component:vmi/publish", "component:upkeep", "component:operator/pods"}
	made := func(order []string) objects {
		all := kustomized(t, append([]string{"", "operator"}, order...)...)
		capabilities := at(t, all["DaemonSet kube-system/weft-agent"], "spec", "template", "spec", "containers", "agent", "securityContext", "capabilities").(object)
		added := map[any]bool{} // twice is once
		for _, c := range capabilities["add"].([]any) {
			added[c] = true
		}
		capabilities["add"] = added
		return all
	}
	want := made(components)
	for _, order := range permutations(components) {
		if d := diff(want, made(order)); d != "" {
			t.Errorf("%q (-the first order +this):\n%s", order, d)
		}
	}
}

// permutations are all orders of a list.
func permutations(list []string) [][]string {
	if len(list) < 2 {
		return [][]string{list}
	}
	var all [][]string
	for i := range list {
		rest := slices.Delete(slices.Clone(list), i, i+1)
		for _, p := range permutations(rest) {
			all = append(all, append([]string{list[i]}, p...))
		}
	}
	return all
}

// at follows a path of keys and, in lists, of names.
func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, key := range path {
		switch w := v.(type) {
		case object:
			v = w[key]
		case []any:
			i := slices.IndexFunc(w, func(item any) bool { return keyOf(item) == key || item.(object)["name"] == key })
			if i < 0 {
				t.Fatalf("no %s of %v in %v", key, path, w)
			}
			v = w[i]
		default:
			t.Fatalf("no %s of %v", key, path)
		}
	}
	return v
}

const agentKey = "DaemonSet kube-system/weft-agent"

func annotations(all objects) object {
	return all[agentKey]["spec"].(object)["template"].(object)["metadata"].(object)["annotations"].(object)
}

// TestFlag: networkDriver.enabled reaches agent and operator.
func TestFlag(t *testing.T) {
	all := rendered(t, ours, set{"networkDriver.enabled": true})
	for key, container := range map[string]string{agentKey: "agent", "Deployment kube-system/weft-operator": "operator"} {
		command := at(t, all[key], "spec", "template", "spec", "containers", container, "command").([]any)
		if !slices.Contains(command, any("--enable-network-driver")) {
			t.Errorf("%s: command %v", key, command)
		}
	}
	webhook := rendered(t, ours, set{"operator.enabled": true})["Deployment kube-system/weft-operator"]
	want := []any{"/weft-operator", "--webhook"}
	if d := gocmp.Diff(want, at(t, webhook, "spec", "template", "spec", "containers", "operator", "command")); d != "" {
		t.Errorf("the operator without the driver (-want +got):\n%s", d)
	}
}

// TestValues: each value is where it belongs, under the path in the agent's DaemonSet.
func TestValues(t *testing.T) {
	pod := []string{"spec", "template", "spec"}
	agent := append(slices.Clone(pod), "containers", "agent")
	cases := []struct {
		values set
		path   []string
		want   any
	}{
		{set{"image.repository": "registry.example/weft", "image.tag": "1"}, append(agent, "image"), "registry.example/weft:1"},
		{
			set{"image.digest": "sha256:" + strings.Repeat("a", 64)},
			append(slices.Clone(pod), "initContainers", "install", "image"), "localhost/weft/weft@sha256:" + strings.Repeat("a", 64),
		},
		{set{"agent.memory": 256}, append(agent, "resources", "limits", "memory"), "256Mi"},
		{set{"agent.memory": 256}, append(agent, "resources", "requests", "memory"), "256Mi"},
		{set{"agent.memory": 256}, append(agent, "env", "GOMEMLIMIT", "value"), "199MiB"},
		{set{"agent.memory": 256, "networkDriver.enabled": true}, append(agent, "env", "GOMEMLIMIT", "value"), "199MiB"},
		{set{"agent.seLinuxType": "weft_t"}, append(slices.Clone(pod), "securityContext", "seLinuxOptions", "type"), "weft_t"},
		{set{"agent.seLinuxType": ""}, append(slices.Clone(pod), "securityContext", "seLinuxOptions"), nil},
		{set{"agent.apiServer.host": "10.0.0.1"}, append(agent, "env", "KUBERNETES_SERVICE_HOST", "value"), "10.0.0.1"},
		{set{"agent.apiServer.host": "10.0.0.1", "agent.apiServer.port": 6443}, append(agent, "env", "KUBERNETES_SERVICE_PORT", "value"), "6443"},
		{set{"agent.nodeSelector": object{"a": "b"}}, append(slices.Clone(pod), "nodeSelector"), object{"a": "b", "kubernetes.io/os": "linux"}},
		{set{"agent.config.metricsAddress": ":9999"}, append(agent, "livenessProbe", "httpGet"), object{"host": "127.0.0.1", "port": 9999.0, "path": "/healthz"}},
		{set{"agent.config.metricsAddress": "10.0.0.2:9999"}, append(agent, "readinessProbe", "httpGet"), object{"host": "10.0.0.2", "port": 9999.0, "path": "/readyz"}},
		{set{"directories.cniBin": "/srv/cni"}, append(slices.Clone(pod), "volumes", "cni-bin", "hostPath", "path"), "/srv/cni"},
		{set{"directories.cniBin": "/srv/cni"}, append(slices.Clone(pod), "initContainers", "install", "volumeMounts", "/srv/cni", "name"), "cni-bin"},
		{
			set{"directories.kubelet": "/srv/kubelet", "networkDriver.enabled": true},
			append(agent, "volumeMounts", "/srv/kubelet/plugins_registry", "name"), "kubelet-registry",
		},
		{set{"directories.sysfs": "/srv/sys", "networkDriver.enabled": true}, append(slices.Clone(pod), "volumes", "sysfs", "hostPath", "path"), "/srv/sys"},
		{set{"directories.sysfs": "/srv/sys", "networkDriver.enabled": true}, append(agent, "volumeMounts", "/srv/sys", "name"), "sysfs"},
	}
	for _, c := range cases {
		got := at(t, rendered(t, ours, c.values)[agentKey], c.path...)
		if d := gocmp.Diff(c.want, got); d != "" {
			t.Errorf("%v: %v (-want +got):\n%s", c.values, c.path, d)
		}
	}
}

// TestAgentConfig: what values say stands in agent.yaml, and a change of it starts the agents anew.
func TestAgentConfig(t *testing.T) {
	all := rendered(t, ours, set{
		"agent.config.log.level": "debug", "agent.config.cni.namespaceIsolation": true, "directories.cniConf": "/srv/net.d",
		"directories.kubelet": "/srv/kubelet", "directories.sysfs": "/srv/sys", "vmi.mode": "observe", "agent.config.vmi.policy": "pod-authoritative",
	})
	var got object
	if err := yaml.UnmarshalStrict([]byte(at(t, all["ConfigMap kube-system/weft-agent"], "data", "agent.yaml").(string)), &got); err != nil {
		t.Fatal(err)
	}
	want := object{
		"log":           object{"level": "debug"},
		"cni":           object{"namespaceIsolation": true, "confDir": "/srv/net.d", "kubeletDir": "/srv/kubelet"},
		"networkDriver": object{"kubeletDir": "/srv/kubelet", "sysfs": "/srv/sys"},
		"vmi":           object{"mode": "observe", "policy": "pod-authoritative"},
	}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("agent.yaml (-want +got):\n%s", d)
	}
	if other := rendered(t, ours, set{"agent.config.log.level": "info"}); annotations(all)["checksum/config"] == annotations(other)["checksum/config"] {
		t.Error("another configuration has the same checksum")
	}
}

// TestOtherNamespace: nothing is about kube-system any more, the subjects of policy and webhook included.
func TestOtherNamespace(t *testing.T) {
	all := rendered(t, cluster{"networks", "v1.34.0"}, set{"networkDriver.enabled": true, "vmi.mode": "publish"})
	for key, v := range all {
		text, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if at := strings.Index(string(text), "kube-system"); at >= 0 && !strings.Contains(string(text[max(0, at-60):at]), "#") {
			t.Errorf("%s names kube-system: …%s…", key, text[max(0, at-60):at])
		}
	}
}

// TestRefused: a value that nobody reads, one of the wrong kind, and a cluster that is too old.
func TestRefused(t *testing.T) {
	cases := []struct {
		at     cluster
		values set
		word   string
	}{
		{ours, set{"networkdriver.enabled": true}, "networkdriver"},
		{ours, set{"networkDriver.enable": true}, "enable"},
		{ours, set{"networkDriver.enabled": "yes"}, "networkDriver"},
		{ours, set{"vmi.mode": "on"}, "mode"},
		{ours, set{"agent.config.nodeName": "a"}, "nodeName"},
		{ours, set{"agent.config.cni.binDir": "/a"}, "binDir"},
		{ours, set{"agent.config.networkDriver.enabled": true}, "networkDriver"},
		{ours, set{"agent.memory": 32}, "memory"},
		{ours, set{"operator.enabled": "maybe"}, "enabled"},
		{ours, set{"image.digest": "sha256:abc"}, "digest"},
		{ours, set{"directories.cniBin": "opt/cni/bin"}, "cniBin"},
		{cluster{"kube-system", "v1.31.4"}, nil, "admissionPolicy.enabled"},
		{cluster{"kube-system", "v1.33.4"}, set{"networkDriver.enabled": true}, "networkDriver.enabled"},
	}
	for _, c := range cases {
		if got := refused(t, c.at, c.values); got == errWant.Error() || !strings.Contains(got, c.word) {
			t.Errorf("%v on %s: %s", c.values, c.at.version, got)
		}
	}
	if _, err := render(t, cluster{"kube-system", "v1.31.4"}, set{"admissionPolicy.enabled": false}); err != nil {
		t.Error(err)
	}
}
