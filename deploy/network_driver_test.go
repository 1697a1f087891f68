// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/agent/config"
)

// component is network-driver/kustomization.yaml; every other key fails.
type component struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string `json:"resources"`
	Patches         []struct {
		Path   string `json:"path"`
		Patch  string `json:"patch"`
		Target any    `json:"target"`
	} `json:"patches"`
}

// driverRole and driverPatch are what the component brings.
func driverRole(t *testing.T) (*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding) {
	t.Helper()
	docs := documents(t, "network-driver/rbac.yaml")
	if len(docs) != 2 {
		t.Fatalf("network-driver/rbac.yaml holds %d documents", len(docs))
	}
	return strict[rbacv1.ClusterRole](t, "network-driver/rbac.yaml", docs[0]), strict[rbacv1.ClusterRoleBinding](t, "network-driver/rbac.yaml", docs[1])
}

func driverPatch(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	return strict[appsv1.DaemonSet](t, "network-driver/daemonset.yaml", read(t, "network-driver/daemonset.yaml"))
}

// TestDriverComponent: it lists its files, and is about the agent of deploy/.
func TestDriverComponent(t *testing.T) {
	c := strict[component](t, "network-driver", read(t, "network-driver/kustomization.yaml"))
	if c.Kind != "Component" || !slices.Equal(c.Resources, []string{"rbac.yaml"}) || len(c.Patches) != 3 || c.Patches[0].Path != "daemonset.yaml" {
		t.Errorf("component %+v", c)
	}
	files, err := filepath.Glob("network-driver/*.yaml")
	if err != nil || len(files) != 3 {
		t.Errorf("files %q: %v", files, err)
	}
	for _, name := range files {
		if !bytes.HasPrefix(read(t, name), []byte("# Copyright The Weft Authors.\n# SPDX-License-Identifier: Apache-2.0\n")) {
			t.Errorf("%s does not start with the licence header", name)
		}
	}
	m, patch := load(t), driverPatch(t)
	if patch.Name != m.agents[0].Name || patch.Namespace != m.agents[0].Namespace {
		t.Errorf("the patch is about %s/%s", patch.Namespace, patch.Name)
	}
	role, binding := driverRole(t)
	if binding.RoleRef.Name != role.Name || binding.RoleRef.Kind != "ClusterRole" {
		t.Errorf("role reference %+v", binding.RoleRef)
	}
	if d := cmp.Diff(m.bindings[0].Subjects, binding.Subjects); d != "" {
		t.Errorf("subjects (-agent's +driver's):\n%s", d)
	}
}

// TestDriverRights: what the page says, and nothing by which a token could get more than a driver
// has; entries of other drivers in a claim's status stay closed.
func TestDriverRights(t *testing.T) {
	role, _ := driverRole(t)
	got := map[string][]string{}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, name := range rule.Resources {
				got[group+"/"+name] = slices.Sorted(slices.Values(rule.Verbs))
			}
		}
		drivers := slices.Equal(rule.Resources, []string{"resourceclaims/driver"})
		if drivers != (len(rule.ResourceNames) > 0) || drivers && !slices.Equal(rule.ResourceNames, []string{v2alpha1.DefaultDriverName}) {
			t.Errorf("rule %+v: its names", rule)
		}
	}
	if d := cmp.Diff(got, toldRights(t, withDriver)); d != "" {
		t.Errorf("rights (-granted +docs/agent.md):\n%s", d)
	}
	writable := []string{
		"resource.k8s.io/resourceslices", "resource.k8s.io/resourceclaims/status", "resource.k8s.io/resourceclaims/driver",
		v2alpha1.Group + "/" + v2alpha1.NodeConfigResource + "/status",
	}
	reads := []string{"get", "list", "watch"}
	for name, verbs := range got {
		for _, verb := range verbs {
			if strings.Contains(verb, "*") || strings.HasPrefix(verb, "arbitrary-node") || !slices.Contains(reads, verb) && !slices.Contains(writable, name) {
				t.Errorf("%s may be %q", name, verb)
			}
		}
	}
}

// TestDriverDirectories: what the configuration names is mounted under its own name, and the page
// tells of it.
func TestDriverDirectories(t *testing.T) {
	pod := driverPatch(t).Spec.Template.Spec
	if len(pod.Containers) != 1 || pod.Containers[0].Name != "agent" {
		t.Fatalf("the patch is about %d containers", len(pod.Containers))
	}
	hosts := map[string]string{}
	for _, v := range slices.Concat(load(t).agents[0].Spec.Template.Spec.Volumes, pod.Volumes) {
		if v.HostPath != nil {
			hosts[v.Name] = v.HostPath.Path
		}
		if v.HostPath != nil && v.HostPath.Type == nil {
			t.Errorf("volume %s has no type", v.Name)
		}
	}
	mounted := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		// Some runtimes name the folder of namespaces without /var.
		if m.MountPath != hosts[m.Name] && "/var"+m.MountPath != hosts[m.Name] {
			t.Errorf("%q is mounted at %s", hosts[m.Name], m.MountPath)
		}
		mounted[m.MountPath] = map[bool]string{true: "read", false: "write"}[m.ReadOnly]
		if follows := m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer; follows != (m.Name == "namespaces") {
			t.Errorf("%s: propagation %v", m.MountPath, m.MountPropagation)
		}
	}
	if d := cmp.Diff(mounted, toldDirectories(t, withDriver)); d != "" {
		t.Errorf("directories (-mounted +docs/agent.md):\n%s", d)
	}
	c := config.Defaults()
	for _, dir := range []string{
		c.StateDir, c.NetworkDriver.Sysfs, path.Dir(c.NetworkDriver.NRISocket),
		path.Join(c.NetworkDriver.KubeletDir, "plugins"), path.Join(c.NetworkDriver.KubeletDir, "plugins_registry"),
	} {
		if mounted[dir] != "write" {
			t.Errorf("%s is not there to write, but %q", dir, slices.Sorted(maps.Keys(mounted)))
		}
	}
}

// TestDriverPrivileges: two capabilities more, the flag, and memory as the agent's.
func TestDriverPrivileges(t *testing.T) {
	c := driverPatch(t).Spec.Template.Spec.Containers[0]
	before := container(t, load(t).agents[0], "agent")
	if d := cmp.Diff(append(slices.Clone(before.Command), "--enable-network-driver"), c.Command); d != "" {
		t.Errorf("command (-want +got):\n%s", d)
	}
	if c.SecurityContext != nil { // it would take away what another component has added
		t.Errorf("security context %+v", c.SecurityContext)
	}
	want := []string{"NET_ADMIN", "SYS_ADMIN"}
	if d := cmp.Diff(want, addedCapabilities(t, "network-driver/kustomization.yaml")); d != "" {
		t.Errorf("capabilities (-want +got):\n%s", d)
	}
	for _, name := range want {
		if !strings.Contains(page(t, withDriver)+page(t, base), "`"+name+"`") {
			t.Errorf("docs/agent.md does not say what %s is for", name)
		}
	}
	if limit := c.Resources.Limits.Memory(); limit.Cmp(*c.Resources.Requests.Memory()) != 0 || limit.Cmp(*before.Resources.Limits.Memory()) <= 0 {
		t.Errorf("memory %s", limit)
	}
}
