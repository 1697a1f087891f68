// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api_test holds the tests that need a real API server and no node. They run with
// another Kubernetes as well: see K8S_VERSION in the lab's README.
package api_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m, 0) }

// The server says the version that was asked for; by default the one that Weft is made for.
func TestVersion(t *testing.T) {
	client, err := discovery.NewDiscoveryClientForConfig(lab.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	info, err := client.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	want := "v" + strings.TrimPrefix(os.Getenv("K8S_VERSION"), "v")
	if want == "v" {
		want = "v1.37.2"
	}
	if info.GitVersion != want && !strings.HasPrefix(info.GitVersion, want+".") {
		t.Errorf("the API server is %s, want %s", info.GitVersion, want)
	}
}

func nads(t *testing.T, namespace string) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(lab.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
	return client.Resource(kind).Namespace(namespace)
}

// What is written into a NAD is read back byte for byte, and goes when it is deleted.
func TestNetworkAttachmentDefinition(t *testing.T) {
	lab.InstallCRDs(t)
	resource := nads(t, lab.Namespace(t))
	config := "{\"cniVersion\": \"1.0.0\",\n \"type\":\"macvlan\", \"master\": \"data\"}\n"
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": "data"},
		"spec":     map[string]any{"config": config},
	}}
	if _, err := resource.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := resource.Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"config": config}, got.Object["spec"]); diff != "" {
		t.Errorf("spec read back (-want +got):\n%s", diff)
	}
	if err := resource.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := resource.Get(t.Context(), "data", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v, want not found", err)
	}
}

// A NAD whose config is no string is refused by the server, not by a pod that then does not start.
func TestNetworkAttachmentDefinitionRefused(t *testing.T) {
	lab.InstallCRDs(t)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": "wrong"},
		"spec":     map[string]any{"config": map[string]any{"type": "macvlan"}},
	}}
	_, err := nads(t, lab.Namespace(t)).Create(t.Context(), object, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("create a NAD whose config is an object: %v, want invalid", err)
	}
}

// A cluster is there before its default roles are; who is no administrator waits for them, and
// then has them.
func TestDefaultRoles(t *testing.T) {
	cp := lab.Cluster(t)
	if err := cp.DefaultRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	somebody := cp.Config()
	somebody.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{"system:authenticated"}}
	client, err := discovery.NewDiscoveryClientForConfig(somebody)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ServerGroups(); err != nil {
		t.Errorf("discovery by somebody: %v", err)
	}
}
