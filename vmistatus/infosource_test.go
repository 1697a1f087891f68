// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/vmistatus"
)

// TestInfoSource is InfoSource of the table 2.3.
func TestInfoSource(t *testing.T) {
	for _, r := range []struct{ list, token, want string }{
		{"", dom, dom},
		{dom, ga, dga},
		{dga, mul, dgm},
		{dga, ga, dga},
		{"domain,multus-status", mul, "domain,multus-status, multus-status"}, // without a space it is one token
	} {
		if got := vmistatus.AddInfoSource(r.list, r.token); got != r.want {
			t.Errorf("%q + %q = %q, want %q", r.list, r.token, got, r.want)
		}
	}
	for _, r := range []struct{ list, token, want string }{
		{"", dom, ""},
		{dom, dom, ""},
		{dga, dom, ga},
		{dgm, ga, "domain, multus-status"},
		{dga, "foo", dga},
	} {
		if got := vmistatus.RemoveInfoSource(r.list, r.token); got != r.want {
			t.Errorf("%q - %q = %q, want %q", r.list, r.token, got, r.want)
		}
	}
	if vmistatus.ContainsInfoSource("domain,multus-status", mul) || !vmistatus.ContainsInfoSource(dgm, mul) {
		t.Error("a token is what stands between comma and space")
	}
}

// TestLookupDefault is LookUpDefault of the table 2.3.
func TestLookupDefault(t *testing.T) {
	pod, sec := spec{"pod", "B", "pod", "", ""}, spec{"sec", "B", "mul", "", ""}
	alt, claim := spec{"alt", "B", "default", "", ""}, spec{"claim", "S", "claim", "", ""}
	for _, r := range []struct {
		name string
		all  []spec
		want string
	}{
		{"none", nil, ""},
		{"secondaries", []spec{sec, sec}, ""},
		{"claims", []spec{claim}, ""},
		{"claim and secondary", []spec{claim, sec}, ""},
		{"pod first", []spec{pod, sec}, "pod"},
		{"multus default", []spec{sec, alt}, "alt"},
		{"after a claim", []spec{claim, pod}, "pod"},
	} {
		_, networks := specs(r.all)
		got := ""
		if n := vmistatus.LookupDefault(networks); n != nil {
			got = n.Name
		}
		if got != r.want {
			t.Errorf("%s: %q, want %q", r.name, got, r.want)
		}
	}
	_, networks := specs([]spec{pod})
	if n := vmistatus.LookupDefault(networks); n != &networks[0] || n.Pod == (*v1.PodNetwork)(nil) {
		t.Error("it is not the network of the list")
	}
}
