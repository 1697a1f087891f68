// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/kube/informers"
)

// TestElsewhere: a second pod of a claim is refused; a pod is looked for only where another one has
// something, once.
func TestElsewhere(t *testing.T) {
	claims := []byte(`{"metadata":{"name":"web"},"spec":{"resourceClaims":[{"name":"net","resourceClaimName":"net"}]}}`)
	of := func(pod types.UID, claim string) device.Allocation {
		return device.Allocation{PodUID: pod, Claim: types.NamespacedName{Namespace: "default", Name: claim}}
	}
	for _, c := range []struct {
		name     string
		prepared []device.Allocation
		pod      *informers.Pod
		looks    int
		refused  bool
	}{
		{name: "nothing is prepared", pod: &informers.Pod{Namespace: "default", Claims: claims}},
		{name: "its own alone", prepared: []device.Allocation{of("u1", "net"), of("u1", "other")}, pod: &informers.Pod{Namespace: "default", Claims: claims}},
		{name: "of pods that share", prepared: []device.Allocation{of("", "net")}, pod: &informers.Pod{Namespace: "default", Claims: claims}},
		{name: "it claims nothing", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "default"}, looks: 1},
		{name: "it claims another", prepared: []device.Allocation{of("u2", "other")}, pod: &informers.Pod{Namespace: "default", Claims: claims}, looks: 1},
		{name: "of another namespace", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "else", Claims: claims}, looks: 1},
		{name: "another pod has it", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "default", Claims: claims}, looks: 1, refused: true},
		{name: "not known", prepared: []device.Allocation{of("u2", "net")}, looks: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			looks := 0
			err := elsewhere(c.prepared, func(uid string) (*informers.Pod, bool) {
				looks++
				return c.pod, c.pod != nil && uid == "u1"
			}, "u1")
			if looks != c.looks {
				t.Errorf("the pod was looked for %d times, not %d", looks, c.looks)
			}
			if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "claim default/net is prepared for the pod of UID u2") {
				t.Errorf("error is %v", err)
			}
		})
	}
}
