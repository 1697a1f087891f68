// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeconfig_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

func accepted(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{{Type: v2alpha1.ConditionAccepted, Status: status, Reason: reason, Message: message, ObservedGeneration: 1}}
}

// following is a follower that knows the configuration of n1.
func following(t *testing.T, server *kubetest.Server) (*follower, *v2alpha1.CiliumNetworkDriverNodeConfig) {
	t.Helper()
	server.Apply(config("n1", 1, 3))
	f := start(t, server)
	f.next("n1 of generation 1 has 3")
	c, _ := f.Current()
	until(t, server, "a watch", func() bool { return server.Watches(resource) == 1 })
	return f, c
}

// conditions are those that the server has of n1.
func conditions(t *testing.T, server *kubetest.Server) []metav1.Condition {
	t.Helper()
	text, err := json.Marshal(server.Object(resource, "", "n1"))
	if err != nil {
		t.Fatal(err)
	}
	var c v2alpha1.CiliumNetworkDriverNodeConfig
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c.Status.Conditions
}

func reasons(server *kubetest.Server) (all []string) {
	for _, e := range server.Events("default") {
		all = append(all, e.Type+" "+e.Reason+" "+e.Pod+": "+e.Message)
	}
	return all
}

// set sets a status, and waits until the follower has seen what it wrote.
func set(t *testing.T, server *kubetest.Server, f *follower, c *v2alpha1.CiliumNetworkDriverNodeConfig, want []metav1.Condition) {
	t.Helper()
	if err := f.SetStatus(t.Context(), c, want); err != nil {
		t.Fatal(err)
	}
	until(t, server, "the status to arrive", func() bool {
		now, _ := f.Current()
		return cmp.Equal(now.Status.Conditions, conditions(t, server))
	})
}

func TestSetStatus(t *testing.T) {
	server := kubetest.New(t)
	f, c := following(t, server)
	set(t, server, f, c, accepted("True", "Valid", ""))
	first := conditions(t, server)
	if len(first) != 1 || first[0].Reason != "Valid" || first[0].LastTransitionTime.IsZero() {
		t.Fatalf("conditions: %+v", first)
	}
	set(t, server, f, c, accepted("True", "Valid", ""))
	if n := server.Count("patch", resource); n != 1 {
		t.Errorf("%d patches for one and the same status", n)
	}
	set(t, server, f, c, accepted("False", "Invalid", "spec.pools[0].name: …"))
	set(t, server, f, c, accepted("False", "Invalid", "spec.pools[1].name: …"))
	set(t, server, f, c, accepted("True", "Valid", "again"))
	want := []string{
		"Warning Invalid n1: spec.pools[0].name: …", "Warning Invalid n1: spec.pools[1].name: …", "Normal Valid n1: again",
	}
	if d := cmp.Diff(want, reasons(server)); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
	for _, r := range server.Requests() {
		if r.Verb == "patch" && (r.Subresource != "status" || !strings.Contains(r.Body, `"uid":"uid-n1"`) || strings.Contains(r.Body, `"spec"`)) {
			t.Errorf("patch of %s: %s", r.Subresource, r.Body)
		}
	}
	f.quiet() // an own status is no news
}

// The time is that of the last change of the status, also across processes; what others say stays.
func TestSetStatusKeeps(t *testing.T) {
	server := kubetest.New(t)
	server.Apply(config("n1", 1, 3) + `
status:
  conditions:
  - {type: Accepted, status: "True", reason: Valid, message: "", lastTransitionTime: "2026-01-02T03:04:05Z"}
  - {type: Other, status: "True", reason: Theirs, message: "", lastTransitionTime: "2026-01-02T03:04:05Z"}
`)
	f := start(t, server)
	f.next("n1 of generation 1 has 3")
	c, _ := f.Current()
	if err := f.SetStatus(t.Context(), c, accepted("True", "Valid", "changed")); err != nil {
		t.Fatal(err)
	}
	got := conditions(t, server)
	if len(got) != 2 || got[0].Message != "changed" || got[0].LastTransitionTime.UTC().Format("2006-01-02T15:04:05Z") != "2026-01-02T03:04:05Z" || got[1].Reason != "Theirs" {
		t.Errorf("conditions: %+v", got)
	}
	if events := reasons(server); events != nil {
		t.Errorf("events of what was told before: %q", events)
	}
}

// What is not known yet is a condition, and no event: every start begins so.
func TestUnknownIsNoEvent(t *testing.T) {
	server := kubetest.New(t)
	f, c := following(t, server)
	for _, status := range []metav1.ConditionStatus{"Unknown", "True"} {
		if err := f.SetStatus(t.Context(), c, accepted(status, "NotRegistered", "not yet")); err != nil {
			t.Fatal(err)
		}
		if got := conditions(t, server); len(got) != 1 || got[0].Status != status {
			t.Errorf("conditions %+v, want %s", got, status)
		}
	}
	if events := reasons(server); events != nil {
		t.Errorf("events %q", events)
	}
}

// A status is never written to another object, and one that is gone has none.
func TestSetStatusOfAnother(t *testing.T) {
	server := kubetest.New(t)
	f, c := following(t, server)
	older := c.DeepCopy()
	older.UID = "another"
	if err := f.SetStatus(t.Context(), older, accepted("False", "Invalid", "x")); err != nil {
		t.Error(err)
	}
	// It is replaced, and the follower does not know yet.
	server.Inject(kubetest.Fault{Verb: "patch", Resource: resource, Times: 1, Before: func() {
		server.Apply(strings.ReplaceAll(config("n1", 2, 7), "uid-n1", "uid-new"))
	}})
	if err := f.SetStatus(t.Context(), c, accepted("False", "Invalid", "x")); err != nil {
		t.Error(err)
	}
	f.next("n1 of generation 2 has 7")
	now, _ := f.Current()
	server.Inject(kubetest.Fault{Verb: "patch", Resource: resource, Times: 1, Before: func() { server.Delete(resource, "", "n1") }})
	if err := f.SetStatus(t.Context(), now, accepted("False", "Invalid", "x")); err != nil {
		t.Error(err)
	}
	f.next("none")
	if got := conditions(t, server); got != nil || reasons(server) != nil {
		t.Errorf("conditions %+v, events %q", got, reasons(server))
	}
}

// Decision 12: where the definition cannot hold conditions, they are told as events, and are not
// tried again and again.
func TestSetStatusOfOldDefinition(t *testing.T) {
	bare := `{"apiVersion":"cilium.io/v2alpha1","kind":"CiliumNetworkDriverNodeConfig","metadata":{"name":"n1","uid":"uid-n1","generation":1},"spec":{}}`
	for name, faults := range map[string][]kubetest.Fault{
		"has no status":         {{Verb: "patch", Resource: resource, Times: 1, Status: 404}},
		"has another status":    {{Verb: "patch", Resource: resource, Times: 1, Status: 500}, {Verb: "patch", Resource: resource, Times: 1, Body: bare}},
		"drops what it has not": {{Verb: "patch", Resource: resource, Times: 1, Body: bare}},
	} {
		t.Run(name, func(t *testing.T) {
			server := kubetest.New(t)
			f, c := following(t, server)
			for _, fault := range faults {
				server.Inject(fault)
			}
			for _, message := range []string{"a", "a", "b"} {
				if err := f.SetStatus(t.Context(), c, accepted("False", "Invalid", message)); err != nil {
					t.Fatal(err)
				}
			}
			if n := server.Count("patch", resource); n != len(faults) {
				t.Errorf("%d patches", n)
			}
			if d := cmp.Diff([]string{"Warning Invalid n1: a", "Warning Invalid n1: b"}, reasons(server)); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
			if f.said("holds no conditions") != 1 {
				t.Errorf("log:\n%s", f.log.String())
			}
		})
	}
}

// What may be mended by another try is an error, and is told when that has succeeded.
func TestSetStatusFails(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"breaks":    {Verb: "patch", Resource: resource, Status: 500},
		"is busy":   {Verb: "patch", Resource: resource, Status: 503},
		"forbids":   {Verb: "patch", Resource: resource, Status: 403},
		"is gone":   {Verb: "patch", Resource: resource, Drop: true},
		"half gone": {Verb: "patch", Resource: resource, Status: 404}, // its cause cannot be looked at
	} {
		t.Run(name, func(t *testing.T) {
			server := kubetest.New(t)
			f, c := following(t, server)
			server.Inject(fault)
			if name == "half gone" {
				server.Inject(kubetest.Fault{Verb: "get", Resource: resource, Status: 503})
			}
			if err := f.SetStatus(t.Context(), c, accepted("False", "Invalid", "x")); err == nil || !strings.Contains(err.Error(), "CiliumNetworkDriverNodeConfig n1") {
				t.Errorf("error: %v", err)
			}
			if got := reasons(server); got != nil {
				t.Errorf("told already: %q", got)
			}
			server.Heal()
			if err := f.SetStatus(t.Context(), c, accepted("False", "Invalid", "x")); err != nil {
				t.Error(err)
			}
			if got := conditions(t, server); len(got) != 1 || len(reasons(server)) != 1 {
				t.Errorf("conditions %+v, events %q", got, reasons(server))
			}
		})
	}
}

// Many changes are not many events.
func TestEventsAreBounded(t *testing.T) {
	server := kubetest.New(t)
	f, c := following(t, server)
	for i := range 40 {
		if err := f.SetStatus(t.Context(), c, accepted("False", "Devices", strings.Repeat("x", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(reasons(server)); n < 1 || n > 15 {
		t.Errorf("%d events", n)
	}
}
