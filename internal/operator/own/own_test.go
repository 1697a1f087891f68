// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/operator/assign"
	"github.com/weftnet/weft/internal/operator/own"
)

func spec(pool string) v2alpha1.CiliumNetworkDriverNodeConfigSpec {
	return v2alpha1.CiliumNetworkDriverNodeConfigSpec{Pools: []v2alpha1.DevicePool{{Name: pool, Filter: &v2alpha1.DeviceFilter{}}}}
}

func config(pool string, labels, annotations map[string]string) *v2alpha1.CiliumNetworkDriverNodeConfig {
	return &v2alpha1.CiliumNetworkDriverNodeConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels, Annotations: annotations}, Spec: spec(pool),
	}
}

func TestPlan(t *testing.T) {
	ours := map[string]string{own.ManagedBy: own.Manager}
	by := func(name string) map[string]string { return map[string]string{own.Cluster: name} }
	adopted := map[string]string{own.Cluster: "a", own.Adopted: `{"pools":[{"name":"hand","filter":{}}]}`}
	governed := assign.Decision{Node: "n1", Exists: true, State: assign.Governed, Config: "a"}
	unselected := assign.Decision{Node: "n1", State: assign.Unselected}
	for _, c := range []struct {
		name        string
		decision    assign.Decision
		existing    *v2alpha1.CiliumNetworkDriverNodeConfig
		do          own.Do
		pool        string
		annotations map[string]string
		adopts      bool
	}{
		{name: "made", decision: governed, do: own.Apply, pool: "new", annotations: by("a")},
		{name: "T-64: right already", decision: governed, existing: config("new", ours, by("a")), do: own.Nothing},
		{name: "T-62: edited by hand", decision: governed, existing: config("edited", ours, by("a")), do: own.Apply, pool: "new", annotations: by("a")},
		{name: "taken from another", decision: governed, existing: config("new", ours, by("b")), do: own.Apply, pool: "new", annotations: by("a")},
		{
			name: "adopted", decision: governed, existing: config("hand", nil, nil), do: own.Apply, pool: "new", annotations: by("a"), adopts: true,
		},
		{name: "the mark of somebody else", decision: governed, existing: config("hand", map[string]string{own.ManagedBy: "Helm"}, nil), do: own.Apply, pool: "new", annotations: by("a"), adopts: true},
		{name: "adopted stays kept", decision: governed, existing: config("edited", ours, adopted), do: own.Apply, pool: "new", annotations: adopted},
		{name: "the label is somebody else's by now", decision: governed, existing: config("new", map[string]string{own.ManagedBy: "Helm"}, adopted), do: own.Apply, pool: "new", annotations: adopted},
		{name: "the label is gone", decision: governed, existing: config("new", nil, adopted), do: own.Apply, pool: "new", annotations: adopted},
		{name: "all marks are gone but what was kept", decision: governed, existing: config("new", nil, map[string]string{own.Adopted: adopted[own.Adopted]}), do: own.Apply, pool: "new", annotations: adopted},
		{name: "put back without the label", decision: unselected, existing: config("new", nil, adopted), do: own.Restore, pool: "hand", annotations: map[string]string{}},
		{name: "frozen", decision: assign.Decision{Node: "n1", State: assign.Frozen, Config: "a"}, existing: config("old", ours, by("a")), do: own.Nothing},
		{name: "T-62: no longer selected", decision: unselected, existing: config("new", ours, by("a")), do: own.Delete},
		{name: "put back", decision: unselected, existing: config("new", ours, adopted), do: own.Restore, pool: "hand", annotations: map[string]string{}},
		{name: "T-63: by hand", decision: unselected, existing: config("hand", nil, nil), do: own.Nothing},
		{name: "none", decision: unselected, do: own.Nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			fresh := spec("new")
			step, err := own.Plan(c.decision, &fresh, c.existing)
			if err != nil {
				t.Fatal(err)
			}
			if step.Adopts != c.adopts {
				t.Errorf("adopts: %t", step.Adopts)
			}
			if step.Do != c.do || step.Why == "" {
				t.Fatalf("step is %d (%s), not %d", step.Do, step.Why, c.do)
			}
			if c.pool == "" {
				return
			}
			if diff := cmp.Diff(spec(c.pool), step.Want.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.annotations, step.Want.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if step.Want.Name != "n1" || step.Want.Kind != v2alpha1.NodeConfigKind {
				t.Errorf("object is %s %s", step.Want.Kind, step.Want.Name)
			}
			if got := own.Owner(step.Want); (got == "a") != (c.do == own.Apply) {
				t.Errorf("owner is %q", got)
			}
		})
	}
}

// TestBroken: a spec that was kept and cannot be read any more leaves the object alone.
func TestBroken(t *testing.T) {
	existing := config("new", map[string]string{own.ManagedBy: own.Manager}, map[string]string{own.Cluster: "a", own.Adopted: "{"})
	_, err := own.Plan(assign.Decision{Node: "n1", State: assign.Unselected}, nil, existing)
	if err == nil || !strings.Contains(err.Error(), own.Adopted+" of n1") {
		t.Fatalf("error is %v", err)
	}
}

// TestOver: another spec takes the place of all that is known; what is not known stays where it is.
func TestOver(t *testing.T) {
	parse := func(text string) own.Spec {
		raw, err := own.Kept(text)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, c := range []struct{ name, stored, other, want string }{
		{"known alone", `{"driverName":"a","pools":[{"name":"x"}]}`, `{"pools":[{"name":"y"}]}`, `{"pools":[{"name":"y"}]}`},
		{"a field", `{"frob":{"n":12345678901234567,"deep":[1]},"pools":[{"name":"x"}]}`, `{"pools":[{"name":"y"}]}`, `{"frob":{"n":12345678901234567,"deep":[1]},"pools":[{"name":"y"}]}`},
		{
			"a manager", `{"deviceManagerConfigs":{"macvlan":{"enabled":true},"dummy":{"enabled":true,"count":3,"prefix":"d"}}}`,
			`{"deviceManagerConfigs":{"dummy":{"enabled":true}}}`, `{"deviceManagerConfigs":{"macvlan":{"enabled":true},"dummy":{"enabled":true,"prefix":"d"}}}`,
		},
		{"an object that only keeps what is not known", `{"deviceManagerConfigs":{"macvlan":{"enabled":true},"dummy":{"enabled":true}}}`, `{}`, `{"deviceManagerConfigs":{"macvlan":{"enabled":true}}}`},
		{"an object of which nothing is left", `{"deviceManagerConfigs":{"dummy":{"enabled":true}}}`, `{}`, `{}`},
		{"in lists", `{"pools":[{"name":"x","frob":1}]}`, `{"pools":[{"name":"x"}]}`, `{"pools":[{"name":"x"}]}`},
		{"the other one has it, too", `{"frob":1}`, `{"frob":2,"pools":[{"name":"x","frob":3}]}`, `{"frob":2,"pools":[{"name":"x","frob":3}]}`},
		{"nothing was there", `{}`, `{"driverName":"a"}`, `{"driverName":"a"}`},
	} {
		got, err := own.Over(parse(c.stored), parse(c.other))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(parse(c.want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
