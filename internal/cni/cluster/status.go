// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/kube/rest"
)

const (
	// Waiting after a lost race with another writer doubles from firstWait to lastWait.
	firstWait = 50 * time.Millisecond
	lastWait  = 2 * time.Second
	// maxRefused is how often the server may refuse a patch of a pod that nobody changed
	// meanwhile: then it is the patch, not another writer.
	maxRefused = 3
)

// Annotate implements planner.Reporter: a patch of pods/status, which lets metadata be
// changed, and needs no permission to change pods. It is repeated, spaced, until ctx ends.
func (s *Source) Annotate(ctx context.Context, pod planner.PodRef, annotation string, value func(old string) string) error {
	object, field := "pod "+pod.Namespace+"/"+pod.Name, "annotation "+annotation
	s.mu.Lock()
	o := s.pods[plan.NADRef{Namespace: pod.Namespace, Name: pod.Name}]
	s.mu.Unlock()
	var refused error // the last answer to a patch
	unchanged := 0    // refusals of one and the same old value
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		if o == nil || o.Meta.UID != pod.UID {
			var err error
			if o, err = s.readPod(ctx, pod.Namespace, pod.Name); err != nil {
				return err
			}
		}
		if pod.UID != "" && o.Meta.UID != pod.UID {
			return fault.New(fault.TryLater, object, "metadata.uid", "is %s by now, the sandbox belongs to %s",
				fault.Quote(o.Meta.UID), fault.Quote(pod.UID))
		}
		old, exists := o.Meta.Annotations[annotation]
		want := value(old)
		if exists && old == want {
			return nil
		}
		patched, err := s.client.PatchPod(ctx, pod.Namespace, pod.Name, "status", statusPatch(o, annotation, want))
		if err == nil {
			s.keep(patched)
			return nil
		}
		refused = err
		if code := rest.Code(err); code != http.StatusConflict && code != http.StatusUnprocessableEntity {
			return s.fault(object, field, err)
		}
		select {
		case <-ctx.Done():
			return s.fault(object, field, late(refused))
		case <-time.After(wait + rand.N(wait/4)):
		}
		if o, err = s.readPod(ctx, pod.Namespace, pod.Name); err != nil {
			if ctx.Err() != nil {
				return s.fault(object, field, late(refused))
			}
			return err
		}
		now, still := o.Meta.Annotations[annotation]
		if now != old || still != exists {
			unchanged = 0
		} else if unchanged++; unchanged >= maxRefused && rest.Code(refused) == http.StatusUnprocessableEntity {
			return s.fault(object, field, refused)
		}
	}
}

// late says that there was no time for a better answer than err. Its code is then that
// of what time may mend.
func late(err error) error {
	return &lateError{err}
}

type lateError struct{ err error }

func (e *lateError) Error() string { return "no other answer in time than: " + e.err.Error() }

// statusPatch sets the annotation on this pod and from this value, or does nothing.
func statusPatch(o *rest.Object, annotation, value string) []rest.Op {
	patch := []rest.Op{{Op: "test", Path: "/metadata/uid", Value: o.Meta.UID}}
	path := rest.Pointer("metadata", "annotations", annotation)
	old, exists := o.Meta.Annotations[annotation]
	switch {
	case exists:
		return append(patch, rest.Op{Op: "test", Path: path, Value: old}, rest.Op{Op: "replace", Path: path, Value: value})
	case len(o.Meta.Annotations) > 0:
		return append(patch, rest.Op{Op: "test", Path: path}, rest.Op{Op: "add", Path: path, Value: value})
	}
	// There is nothing to add to: a pod without annotations.
	all := rest.Pointer("metadata", "annotations")
	return append(patch, rest.Op{Op: "test", Path: all}, rest.Op{Op: "add", Path: all, Value: map[string]string{annotation: value}})
}
