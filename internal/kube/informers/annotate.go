// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/host/wake"
	"github.com/weftnet/weft/internal/kube/rest"
)

const (
	// Waiting after a lost race with another writer doubles from firstRace to lastRace.
	firstRace = 50 * time.Millisecond
	lastRace  = 2 * time.Second
	// maxRefused is how often the server may refuse a patch of a pod that nobody changed
	// meanwhile: then it is the patch, not another writer.
	maxRefused = 3
)

// ErrReplaced says that another pod has that name by now.
var ErrReplaced = errors.New("another pod has that name by now") //nolint:gochecknoglobals // a sentinel

// Annotate sets an annotation of the pod, one of KeptAnnotations, to what value makes of
// its present one ("" = absent), and of no newer one: value is called again when another
// writer was quicker. Nothing is sent when value returns what is there. It begins with the
// cache, so that without another writer it is one request, a JSON patch of pods/status,
// which lets metadata be changed and needs no permission to change pods. It goes on
// until ctx ends; other faults than a lost race are the caller's to try again.
func (c *Cluster) Annotate(ctx context.Context, ref Ref, annotation string, value func(old string) string) error {
	if !slices.Contains(KeptAnnotations(), annotation) {
		return fmt.Errorf("%s: annotation %s is none of those that are kept", ref, annotation)
	}
	p, ok := c.Pod(ref.Namespace, ref.Name)
	if !ok || p.UID != ref.UID {
		var err error
		if p, err = c.same(ctx, ref); err != nil {
			return err
		}
	}
	unchanged := 0 // refusals of one and the same old value
	for wait := firstRace; ; wait = min(2*wait, lastRace) {
		refused, err := c.patch(ctx, p, annotation, value)
		if err != nil || refused == nil {
			return err
		}
		if !pause(ctx, wait) {
			return refused
		}
		next, err := c.same(ctx, ref)
		if err != nil {
			return err
		}
		if unchanged++; !equal(p, next, annotation) {
			unchanged = 0
		}
		if unchanged >= maxRefused && rest.Code(refused) == http.StatusUnprocessableEntity {
			return refused
		}
		p = next
	}
}

// same reads the pod, and no other of its name.
func (c *Cluster) same(ctx context.Context, ref Ref) (*Pod, error) {
	p, err := c.LivePod(ctx, ref.Namespace, ref.Name)
	if err == nil && p.UID != ref.UID {
		return nil, fmt.Errorf("%s of UID %s: %w", ref, ref.UID, ErrReplaced)
	}
	return p, err
}

// pause waits; false = ctx has ended.
func pause(ctx context.Context, wait time.Duration) bool {
	return wake.Pause(ctx, wait+rand.N(wait/4))
}

// patch sets the annotation of p, if it is to be another. refused says that p is no longer
// what the server has.
func (c *Cluster) patch(ctx context.Context, p *Pod, annotation string, value func(string) string) (refused, err error) {
	old := p.Annotations[annotation]
	want := value(old)
	if old == want {
		return nil, nil
	}
	body, err := json.Marshal(statusPatch(p, annotation, want))
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	answer := &corev1.Pod{}
	err = c.core.Patch(types.JSONPatchType).Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("status").
		Body(body).MaxRetries(0).Do(ctx).Into(answer)
	err = c.failed("patch", "pods/status of "+p.Ref().String(), err)
	switch code := rest.Code(err); {
	case code == http.StatusConflict || code == http.StatusUnprocessableEntity:
		return err, nil
	case code == http.StatusForbidden:
		return nil, fmt.Errorf("the permission patch on pods/status is missing: %w", err)
	case err != nil:
		return nil, err
	}
	row, err := trimPod(answer)
	if err != nil {
		return nil, err
	}
	c.pods.refresh(row)
	return nil, nil
}

func equal(a, b *Pod, annotation string) bool {
	valueA, inA := a.Annotations[annotation]
	valueB, inB := b.Annotations[annotation]
	return valueA == valueB && inA == inB
}

// statusPatch sets the annotation on this pod and from this value, or does nothing.
func statusPatch(p *Pod, annotation, value string) []rest.Op {
	patch := []rest.Op{{Op: "test", Path: "/metadata/uid", Value: p.UID}}
	path := rest.Pointer("metadata", "annotations", annotation)
	old, exists := p.Annotations[annotation]
	switch {
	case exists:
		return append(patch, rest.Op{Op: "test", Path: path, Value: old}, rest.Op{Op: "replace", Path: path, Value: value})
	case p.annotated:
		return append(patch, rest.Op{Op: "test", Path: path}, rest.Op{Op: "add", Path: path, Value: value})
	}
	// There is nothing to add to: a pod without annotations.
	all := rest.Pointer("metadata", "annotations")
	return append(patch, rest.Op{Op: "test", Path: all}, rest.Op{Op: "add", Path: all, Value: map[string]string{annotation: value}})
}
