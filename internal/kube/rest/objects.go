// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Object is a Kubernetes object: the metadata that is read, and all of its bytes.
type Object struct {
	Kind string
	Meta Meta
	Raw  json.RawMessage // the whole object
}

// Meta is metadata of an Object.
type Meta struct {
	Namespace         string            `json:"namespace"`
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion"`
	DeletionTimestamp string            `json:"deletionTimestamp"`
	Annotations       map[string]string `json:"annotations"`
}

// UnmarshalJSON keeps the bytes beside what is read of them.
func (o *Object) UnmarshalJSON(b []byte) error {
	var head struct {
		Kind     string `json:"kind"`
		Metadata *Meta  `json:"metadata"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return err
	}
	if head.Metadata == nil {
		return fmt.Errorf("object has no metadata")
	}
	o.Kind, o.Meta, o.Raw = head.Kind, *head.Metadata, append(json.RawMessage(nil), b...)
	return nil
}

// Resource is a kind of objects that can be listed.
type Resource struct {
	Kind  string // for messages: "pod"
	group []string
	name  string
}

// Pods are the pods.
func Pods() Resource {
	return Resource{"pod", []string{"api", "v1"}, "pods"}
}

// Definitions are the CustomResourceDefinitions.
func Definitions() Resource {
	return Resource{"CustomResourceDefinition", []string{"apis", "apiextensions.k8s.io", "v1"}, "customresourcedefinitions"}
}

// NADs are NetworkAttachmentDefinitions.
func NADs() Resource {
	return Resource{"NetworkAttachmentDefinition", []string{"apis", "k8s.cni.cncf.io", "v1"}, "network-attachment-definitions"}
}

// Nodes are the nodes; they have no namespace.
func Nodes() Resource {
	return Resource{"node", []string{"api", "v1"}, "nodes"}
}

// ResourceClaims are the claims of dynamic resource allocation.
func ResourceClaims() Resource {
	return Resource{"ResourceClaim", []string{"apis", "resource.k8s.io", "v1"}, "resourceclaims"}
}

// ResourceSlices are the devices that drivers offer; they have no namespace.
func ResourceSlices() Resource {
	return Resource{"ResourceSlice", []string{"apis", "resource.k8s.io", "v1"}, "resourceslices"}
}

// NodeConfigs are the nodes' configurations of the network driver; they have no namespace.
func NodeConfigs() Resource {
	return Resource{"CiliumNetworkDriverNodeConfig", []string{"apis", "cilium.io", "v2alpha1"}, "ciliumnetworkdrivernodeconfigs"}
}

// ClusterConfigs are what nodes' configurations are made from; they have no namespace.
func ClusterConfigs() Resource {
	return Resource{"CiliumNetworkDriverClusterConfig", []string{"apis", "cilium.io", "v2alpha1"}, "ciliumnetworkdriverclusterconfigs"}
}

// CiliumNodes are the nodes where Cilium is; they have no namespace.
func CiliumNodes() Resource {
	return Resource{"CiliumNode", []string{"apis", "cilium.io", "v2"}, "ciliumnodes"}
}

// VMIs are KubeVirt's running virtual machines.
func VMIs() Resource {
	return Resource{"VirtualMachineInstance", []string{"apis", "kubevirt.io", "v1"}, "virtualmachineinstances"}
}

// path is the path of objects of namespace ns ("" = all, or none).
func (r Resource) path(ns string, more ...string) []string {
	path := append([]string{}, r.group...)
	if ns != "" {
		path = append(path, "namespaces", ns)
	}
	return append(append(path, r.name), more...)
}

// Pod reads a pod.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*Object, error) {
	return c.get(ctx, Pods(), namespace, name)
}

// NAD reads a NetworkAttachmentDefinition.
func (c *Client) NAD(ctx context.Context, namespace, name string) (*Object, error) {
	return c.get(ctx, NADs(), namespace, name)
}

// ResourceClaim reads a claim.
func (c *Client) ResourceClaim(ctx context.Context, namespace, name string) (*Object, error) {
	return c.get(ctx, ResourceClaims(), namespace, name)
}

func (c *Client) get(ctx context.Context, res Resource, namespace, name string) (*Object, error) {
	r := call{verb: "get", object: res.Kind + " " + namespace + "/" + name, method: http.MethodGet, path: res.path(namespace, name)}
	if namespace == "" {
		return nil, c.failed(r, nil, fmt.Errorf("%w: namespace is empty", ErrName))
	}
	var o Object
	if err := c.do(ctx, r, &o); err != nil {
		return nil, err
	}
	// A server that is none may well answer every path with some JSON.
	if o.Meta.Name != name || o.Meta.Namespace != namespace || o.Kind != "" && !strings.EqualFold(o.Kind, res.Kind) {
		return nil, c.failed(r, nil, fmt.Errorf("%w: it is %.64q %.64q", ErrGarbage, o.Kind, o.Meta.Namespace+"/"+o.Meta.Name))
	}
	return &o, nil
}

// ResourceSlices lists the slices of a driver on a node; "" stands for every driver, or
// every node.
func (c *Client) ResourceSlices(ctx context.Context, driver, node string) ([]Object, error) {
	var selectors []string
	if driver != "" {
		selectors = append(selectors, "spec.driver="+driver)
	}
	if node != "" {
		selectors = append(selectors, "spec.nodeName="+node)
	}
	query := url.Values{}
	if len(selectors) > 0 {
		query.Set("fieldSelector", strings.Join(selectors, ","))
	}
	return c.list(ctx, ResourceSlices(), "", query)
}

// List lists the objects of a namespace, or with "" of all.
func (c *Client) List(ctx context.Context, res Resource, namespace string) ([]Object, error) {
	return c.list(ctx, res, namespace, url.Values{})
}

// Select is List for the objects that a field selector ("spec.nodeName=a") matches.
func (c *Client) Select(ctx context.Context, res Resource, namespace, selector string) ([]Object, error) {
	return c.list(ctx, res, namespace, url.Values{"fieldSelector": {selector}})
}

// Bounds of a list: objects in one answer, and answers.
const (
	pageSize = "500"
	maxPages = 1000
)

func (c *Client) list(ctx context.Context, res Resource, namespace string, query url.Values) ([]Object, error) {
	r := call{
		verb: "list", object: strings.TrimSpace(res.name + " " + namespace), method: http.MethodGet,
		path: res.path(namespace), query: query,
	}
	query.Set("limit", pageSize)
	all := []Object{}
	for range maxPages {
		var page struct {
			Kind     string
			Metadata struct{ Continue string }
			Items    []Object
		}
		if err := c.do(ctx, r, &page); err != nil {
			return nil, err
		}
		if !strings.HasSuffix(page.Kind, "List") {
			return nil, c.failed(r, nil, fmt.Errorf("%w: it is %.64q", ErrGarbage, page.Kind))
		}
		all = append(all, page.Items...)
		if page.Metadata.Continue == "" {
			return all, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
	return nil, c.failed(r, nil, ErrTooLarge)
}

// Op is one operation of a JSON patch (RFC 6902). A nil Value is null; a test for null
// passes where the member is absent, as the API server reads it.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"` // JSON pointer; Pointer makes one
	Value any    `json:"value"`
}

// Pointer makes a JSON pointer of member names.
func Pointer(names ...string) string {
	var b strings.Builder
	for _, n := range names {
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(n))
	}
	return b.String()
}

// PatchPod changes a pod, or with a subresource ("status") what that one may change; all
// operations or none. It may have been applied although an error is returned, when
// that says that no answer came.
func (c *Client) PatchPod(ctx context.Context, namespace, name, subresource string, patch []Op) (*Object, error) {
	body, err := json.Marshal(patch)
	r := call{
		verb: "patch", object: "pod " + namespace + "/" + name, method: http.MethodPatch,
		path: Pods().path(namespace, name), contentType: "application/json-patch+json", body: body,
	}
	if err != nil {
		return nil, c.failed(r, nil, fmt.Errorf("encode patch: %w", err))
	}
	if subresource != "" {
		r.path = append(r.path, subresource)
	}
	var o Object
	if err := c.do(ctx, r, &o); err != nil {
		return nil, err
	}
	return &o, nil
}
