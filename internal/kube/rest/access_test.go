// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/kube/rest"
)

func TestAllowed(t *testing.T) {
	access := rest.Access{Verb: "patch", Resource: "pods", Subresource: "status"}
	attributes := map[string]any{"verb": "patch", "group": "", "resource": "pods", "subresource": "status"}
	for name, test := range map[string]struct {
		user     string
		groups   []string
		answer   string
		want     bool
		err      error
		resource string
		spec     map[string]any
	}{
		"own account": {
			answer: `{"kind":"SelfSubjectAccessReview","status":{"allowed":true}}`, want: true,
			resource: "selfsubjectaccessreviews", spec: map[string]any{"resourceAttributes": attributes},
		},
		"own account, not allowed": {
			answer: `{"status":{"allowed":false,"reason":"no role"}}`, resource: "selfsubjectaccessreviews",
			spec: map[string]any{"resourceAttributes": attributes},
		},
		"another's": {
			user: "system:serviceaccount:a:b", groups: []string{"g"}, answer: `{"status":{"allowed":true}}`, want: true,
			resource: "subjectaccessreviews",
			spec:     map[string]any{"resourceAttributes": attributes, "user": "system:serviceaccount:a:b", "groups": []any{"g"}},
		},
		"no status": {
			answer: `{}`, err: rest.ErrGarbage, resource: "selfsubjectaccessreviews", spec: map[string]any{"resourceAttributes": attributes},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := kubetest.New(t)
			server.Inject(kubetest.Fault{Body: test.answer})
			cfg, err := rest.Load(server.Kubeconfig(nil))
			if err != nil {
				t.Fatal(err)
			}
			client := rest.New(cfg)
			defer client.Close()
			got, err := client.Allowed(t.Context(), access, test.user, test.groups...)
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("Allowed: %t %v, want %t %v", got, err, test.want, test.err)
			}
			var body struct{ Spec map[string]any }
			r := server.Requests()[0]
			if err := json.Unmarshal([]byte(r.Body), &body); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(test.spec, body.Spec); d != "" || r.Resource != test.resource || r.Verb != "create" {
				t.Errorf("asked %s %s (-want +got):\n%s", r.Verb, r.Resource, d)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	server := kubetest.New(t)
	server.Apply(`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {nodeName: n2}}`)
	cfg, err := rest.Load(server.Kubeconfig(nil))
	if err != nil {
		t.Fatal(err)
	}
	client := rest.New(cfg)
	defer client.Close()
	got, err := client.Select(t.Context(), rest.Pods(), "", "spec.nodeName=n2")
	if err != nil || len(got) != 1 || got[0].Meta.Name != "b" {
		t.Errorf("Select: %v %v, want b", got, err)
	}
}
