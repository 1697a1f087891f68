// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// manifests is everything that is installed.
type manifests struct {
	accounts []*corev1.ServiceAccount
	configs  []*corev1.ConfigMap
	roles    []*rbacv1.ClusterRole
	bindings []*rbacv1.ClusterRoleBinding
	agents   []*appsv1.DaemonSet
	crds     []map[string]any
	policies []*admissionv1.ValidatingAdmissionPolicy
	bound    []*admissionv1.ValidatingAdmissionPolicyBinding
}

// load decodes every file that the kustomization lists; a field that the API does not have,
// or a kind that is not expected here, ends the test.
func load(t *testing.T) *manifests {
	t.Helper()
	m := &manifests{}
	for _, name := range kustomized(t).Resources {
		for _, doc := range documents(t, name) {
			m.add(t, name, doc)
		}
	}
	return m
}

func (m *manifests) add(t *testing.T, file string, doc []byte) {
	t.Helper()
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &head); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	switch head.APIVersion + " " + head.Kind {
	case "v1 ServiceAccount":
		m.accounts = append(m.accounts, strict[corev1.ServiceAccount](t, file, doc))
	case "v1 ConfigMap":
		m.configs = append(m.configs, strict[corev1.ConfigMap](t, file, doc))
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		m.roles = append(m.roles, strict[rbacv1.ClusterRole](t, file, doc))
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		m.bindings = append(m.bindings, strict[rbacv1.ClusterRoleBinding](t, file, doc))
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":
		m.policies = append(m.policies, strict[admissionv1.ValidatingAdmissionPolicy](t, file, doc))
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding":
		m.bound = append(m.bound, strict[admissionv1.ValidatingAdmissionPolicyBinding](t, file, doc))
	case "apps/v1 DaemonSet":
		m.agents = append(m.agents, strict[appsv1.DaemonSet](t, file, doc))
	case "apiextensions.k8s.io/v1 CustomResourceDefinition":
		m.crds = append(m.crds, *strict[map[string]any](t, file, doc))
	default:
		t.Errorf("%s holds a %s %s, which no test looks at", file, head.APIVersion, head.Kind)
	}
}

func strict[T any](t *testing.T, file string, doc []byte) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict(doc, v); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	return v
}

// documents splits a file; one that holds comments alone is none.
func documents(t *testing.T, name string) [][]byte {
	t.Helper()
	var docs [][]byte
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(read(t, name)))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		docs = append(docs, doc)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// kustomization is the part of the file that is used; every other key fails.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string `json:"resources"`
	Images          []struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	} `json:"images"`
}

func kustomized(t *testing.T) *kustomization {
	t.Helper()
	return strict[kustomization](t, "kustomization.yaml", read(t, "kustomization.yaml"))
}

// TestKustomization: it lists every manifest but those of the network driver's definitions (see
// TestDriverDefinitions), and changes nothing as it is shipped.
func TestKustomization(t *testing.T) {
	k := kustomized(t)
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(name string) bool {
		return name == "kustomization.yaml" || strings.HasPrefix(name, "crd-ciliumnetworkdriver")
	})
	listed := slices.Sorted(slices.Values(k.Resources))
	if d := cmp.Diff(files, listed); d != "" {
		t.Errorf("resources (-files +listed):\n%s", d)
	}
	if len(k.Images) != 1 || k.Images[0].NewName != "" {
		t.Fatalf("images: %+v", k.Images)
	}
	image := k.Images[0].Name + ":" + k.Images[0].NewTag
	for _, c := range containers(load(t).agents[0]) {
		if c.Image != image {
			t.Errorf("container %s has the image %s, the kustomization makes %s of it", c.Name, c.Image, image)
		}
	}
	if !bytes.Contains(read(t, "../build/image/main.go"), []byte(`"`+image+`"`)) {
		t.Errorf("build/image makes no %s", image)
	}
}

// TestLicence: manifests carry the licence as sources do.
func TestLicence(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found no manifest: %v", err)
	}
	for _, name := range files {
		if !bytes.HasPrefix(read(t, name), []byte("# Copyright The Weft Authors.\n# SPDX-License-Identifier: Apache-2.0\n")) {
			t.Errorf("%s does not start with the licence header", name)
		}
	}
}

// TestObjects: names and namespaces fit each other, and every kind is there once.
func TestObjects(t *testing.T) {
	m := load(t)
	if len(m.accounts) != 1 || len(m.configs) != 1 || len(m.roles) != 1 || len(m.bindings) != 1 || len(m.agents) != 1 || len(m.crds) != 1 ||
		len(m.policies) != 1 || len(m.bound) != 1 {
		t.Fatalf("manifests: %+v", m)
	}
	agent, account, binding := m.agents[0], m.accounts[0], m.bindings[0]
	for kind, meta := range map[string]metav1.ObjectMeta{
		"account": account.ObjectMeta, "config": m.configs[0].ObjectMeta, "agent": agent.ObjectMeta,
	} {
		if meta.Namespace != "kube-system" {
			t.Errorf("%s is in %q: system-node-critical pods belong into kube-system", kind, meta.Namespace)
		}
	}
	if got := agent.Spec.Template.Spec.ServiceAccountName; got != account.Name {
		t.Errorf("the agent runs as %s", got)
	}
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
	if d := cmp.Diff(want, binding.Subjects); d != "" {
		t.Errorf("subjects (-want +got):\n%s", d)
	}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: m.roles[0].Name}
	if d := cmp.Diff(role, binding.RoleRef); d != "" {
		t.Errorf("role (-want +got):\n%s", d)
	}
}

// TestNetworkDefinition: the names that everybody uses, and no object refused or trimmed that
// other projects' definitions take.
func TestNetworkDefinition(t *testing.T) {
	crd := load(t).crds[0]
	spec := crd["spec"].(map[string]any)
	if _, set := spec["preserveUnknownFields"]; set {
		t.Error("preserveUnknownFields is set: applied over an old definition it would change what is kept of old objects")
	}
	if d := cmp.Diff(map[string]any{
		"kind": "NetworkAttachmentDefinition", "listKind": "NetworkAttachmentDefinitionList",
		"plural": "network-attachment-definitions", "singular": "network-attachment-definition",
		"shortNames": []any{"net-attach-def"},
	}, spec["names"]); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
	versions := spec["versions"].([]any)
	if len(versions) != 1 || spec["group"] != "k8s.cni.cncf.io" || spec["scope"] != "Namespaced" {
		t.Fatalf("spec: %v", spec)
	}
	version := versions[0].(map[string]any)
	if version["name"] != "v1" || version["served"] != true || version["storage"] != true {
		t.Errorf("version: %v", version)
	}
	schema := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
	got := map[string]string{}
	fields(t, "", schema, got)
	want := map[string]string{
		"": "object", ".spec": "object", ".spec.config": "string",
		".status": "object", ".status.state": "string", ".status.observation": "string",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("fields (-want +got):\n%s", d)
	}
}

// fields collects the types of a schema; anything that narrows what is accepted is an error.
func fields(t *testing.T, path string, schema map[string]any, into map[string]string) {
	t.Helper()
	for key, v := range schema {
		switch key {
		case "description":
		case "type":
			into[path] = v.(string)
		case "properties":
			for name, property := range v.(map[string]any) {
				fields(t, path+"."+name, property.(map[string]any), into)
			}
		default:
			t.Errorf("%s has %s: an object that exists may not satisfy it", strings.TrimPrefix(path, "."), key)
		}
	}
}
