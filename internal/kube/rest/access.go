// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Access is one thing that an account may be allowed to do, in all namespaces.
type Access struct {
	Verb        string
	Group       string // "" = core
	Resource    string // plural
	Subresource string
}

func (a Access) String() string {
	what := strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
	if a.Group != "" {
		what += "." + a.Group
	}
	return a.Verb + " " + what
}

// Allowed asks whether an account may do it: the client's own, or with user and its groups
// another one, to ask which needs a right itself. Nothing is changed.
func (c *Client) Allowed(ctx context.Context, a Access, user string, groups ...string) (bool, error) {
	kind, spec := "SelfSubjectAccessReview", map[string]any{"resourceAttributes": map[string]any{
		"verb": a.Verb, "group": a.Group, "resource": a.Resource, "subresource": a.Subresource,
	}}
	if user != "" {
		kind, spec["user"], spec["groups"] = "SubjectAccessReview", user, groups
	}
	r := call{
		verb: "create", object: kind + " of " + a.String(), method: http.MethodPost, contentType: "application/json",
		path: []string{"apis", "authorization.k8s.io", "v1", strings.ToLower(kind) + "s"},
	}
	var err error
	if r.body, err = json.Marshal(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}); err != nil {
		return false, c.failed(r, nil, fmt.Errorf("encode review: %w", err))
	}
	var answer struct {
		Status *struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	if err := c.do(ctx, r, &answer); err != nil {
		return false, err
	}
	if answer.Status == nil {
		return false, c.failed(r, nil, fmt.Errorf("%w: it has no status", ErrGarbage))
	}
	return answer.Status.Allowed, nil
}
