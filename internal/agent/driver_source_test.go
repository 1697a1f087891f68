// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/kube/informers"
)

// TestElsewhere: a second pod of a claim is refused; a pod is looked for only where another one has
// something, once.
func TestElsewhere(t *testing.T) {
	claims := []byte(`{"metadata":{"name":"web"},"spec":{"resourceClaims":[{"name":"net","resourceClaimName":"net"}]}}`)
	both := []byte(`{"metadata":{"namespace":"default","name":"web"},"spec":{"resourceClaims":[{"name":"tmp","resourceClaimTemplateName":"t"},{"name":"net","resourceClaimName":"net"}]}}`)
	made := []byte(`{"metadata":{"namespace":"default","name":"web"},"spec":{"resourceClaims":[{"name":"tmp","resourceClaimTemplateName":"t"}]},"status":{"resourceClaimStatuses":[{"name":"tmp","resourceClaimName":"web-tmp"}]}}`)
	const held = "claim default/net is prepared for the pod of UID u2"
	of := func(pod types.UID, claim string) device.Allocation {
		return device.Allocation{PodUID: pod, Claim: types.NamespacedName{Namespace: "default", Name: claim}}
	}
	for _, c := range []struct {
		name     string
		prepared []device.Allocation
		pod      *informers.Pod
		looks    int
		refused  string
	}{
		{name: "nothing is prepared", pod: &informers.Pod{Namespace: "default", Claims: claims}},
		{name: "its own alone", prepared: []device.Allocation{of("u1", "net"), of("u1", "other")}, pod: &informers.Pod{Namespace: "default", Claims: claims}},
		{name: "of pods that share", prepared: []device.Allocation{of("", "net")}, pod: &informers.Pod{Namespace: "default", Claims: claims}},
		{name: "it claims nothing", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "default"}, looks: 1},
		{name: "it claims another", prepared: []device.Allocation{of("u2", "other")}, pod: &informers.Pod{Namespace: "default", Claims: claims}, looks: 1},
		{name: "of another namespace", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "else", Claims: claims}, looks: 1},
		{name: "another pod has it", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "default", Claims: claims}, looks: 1, refused: held},
		{name: "another pod has it, and a template's is not made yet", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "default", Claims: both}, looks: 1, refused: held},
		{name: "a template's is not made yet", prepared: []device.Allocation{of("u2", "other")}, pod: &informers.Pod{Namespace: "default", Claims: both}, looks: 1, refused: "a claim of the pod is not seen yet: pod default/web: spec.resourceClaims[0]"},
		{name: "another pod has the template's", prepared: []device.Allocation{of("u2", "web-tmp")}, pod: &informers.Pod{Namespace: "default", Claims: made}, looks: 1, refused: "claim default/web-tmp is prepared for the pod of UID u2"},
		{name: "claims of another namespace", prepared: []device.Allocation{of("u2", "net")}, pod: &informers.Pod{Namespace: "else", Claims: both}, looks: 1},
		{name: "not known", prepared: []device.Allocation{of("u2", "net")}, looks: 1, refused: "the pod is not seen yet"},
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
			if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// TestAlone: a hook waits for a cache that is behind, for no longer than it may, and then refuses. A static
// pod, which the API knows by another UID and which claims nothing, is let through, and so is one that
// nothing is known of because the caches are not complete, or that runs already.
func TestAlone(t *testing.T) {
	held := errors.New("held")
	for _, c := range []struct {
		name    string
		sandbox handover.Sandbox
		behind  error // at first
		until   time.Duration
		then    error
		partial bool // caches
		want    error
		after   time.Duration
	}{
		{name: "nobody has it"},
		{name: "held", then: held, want: held},
		{name: "seen in time", behind: errUnseenPod, until: 300 * time.Millisecond, after: 300 * time.Millisecond},
		{name: "seen in time, held", behind: errUnseenClaim, until: 300 * time.Millisecond, then: held, want: held, after: 300 * time.Millisecond},
		{name: "pod never seen", behind: errUnseenPod, until: time.Hour, want: errUnseenPod, after: seenWithin},
		{name: "claim never seen", behind: errUnseenClaim, until: time.Hour, want: errUnseenClaim, after: seenWithin},
		{name: "static", sandbox: handover.Sandbox{Static: true}, behind: errUnseenPod, until: time.Hour},
		{name: "it runs", sandbox: handover.Sandbox{Yields: true}, behind: errUnseenPod, until: time.Hour},
		{name: "it runs, with a claim", sandbox: handover.Sandbox{Yields: true}, behind: errUnseenClaim, until: time.Hour, want: errUnseenClaim, after: seenWithin},
		{name: "caches are not complete", behind: errUnseenPod, until: time.Hour, partial: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				err := alone(t.Context(), c.sandbox, func() error {
					if time.Since(start) < c.until {
						return fmt.Errorf("behind: %w", c.behind)
					}
					return c.then
				}, func() bool { return !c.partial })
				if took := time.Since(start); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || took < c.after || took > c.after+2*seenPause {
					t.Errorf("%v after %s", err, took)
				}
			})
		})
	}
}
