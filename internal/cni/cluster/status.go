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
	field := "annotation " + annotation
	s.mu.Lock()
	o := s.pods[plan.NADRef{Namespace: pod.Namespace, Name: pod.Name}]
	s.mu.Unlock()
	unchanged := 0 // refusals of one and the same old value
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		var err error
		if o, err = s.same(ctx, pod, o); err != nil {
			return err
		}
		refused, err := s.patch(ctx, o, annotation, value)
		switch {
		case err != nil:
			return s.fault(pod.String(), field, err)
		case refused == nil:
			return nil
		case !pause(ctx, wait):
			return s.fault(pod.String(), field, late(refused))
		}
		next, err := s.readPod(ctx, pod.Namespace, pod.Name)
		switch {
		case ctx.Err() != nil:
			return s.fault(pod.String(), field, late(refused))
		case err != nil:
			return err
		}
		if unchanged++; !equal(o, next, annotation) {
			unchanged = 0
		}
		if unchanged >= maxRefused && rest.Code(refused) == http.StatusUnprocessableEntity {
			return s.fault(pod.String(), field, refused)
		}
		o = next
	}
}

// same gives o, or what is read when o is not that pod; a fault when neither is.
func (s *Source) same(ctx context.Context, pod planner.PodRef, o *rest.Object) (*rest.Object, error) {
	if o == nil || o.Meta.UID != pod.UID {
		var err error
		if o, err = s.readPod(ctx, pod.Namespace, pod.Name); err != nil {
			return nil, err
		}
	}
	if pod.UID != "" && o.Meta.UID != pod.UID {
		return nil, fault.New(fault.TryLater, pod.String(), "metadata.uid", "is %s by now, the sandbox belongs to %s",
			fault.Quote(o.Meta.UID), fault.Quote(pod.UID))
	}
	return o, nil
}

// patch sets the annotation of o, if it is to be another. refused says that o is no longer
// what the server has.
func (s *Source) patch(ctx context.Context, o *rest.Object, annotation string, value func(string) string) (refused, err error) {
	old, exists := o.Meta.Annotations[annotation]
	want := value(old)
	if exists && old == want {
		return nil, nil
	}
	patched, err := s.client.PatchPod(ctx, o.Meta.Namespace, o.Meta.Name, "status", statusPatch(o, annotation, want))
	switch code := rest.Code(err); {
	case err == nil:
		s.keep(patched)
		return nil, nil
	case code == http.StatusConflict || code == http.StatusUnprocessableEntity:
		return err, nil
	}
	return nil, err
}

// pause waits; false = ctx has ended.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait + rand.N(wait/4)):
		return true
	}
}

func equal(a, b *rest.Object, annotation string) bool {
	valueA, inA := a.Meta.Annotations[annotation]
	valueB, inB := b.Meta.Annotations[annotation]
	return valueA == valueB && inA == inB
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
