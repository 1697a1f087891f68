// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/vmistatus"
)

// input is everything that a merge looks at, without the domain.
func (r *Reporter) input(vmi *v1.VirtualMachineInstance, pod Pod) vmistatus.Input {
	in := vmistatus.Input{
		Interfaces: vmi.Spec.Domain.Devices.Interfaces, Networks: vmi.Spec.Networks, Previous: vmi.Status.Interfaces,
		Policy: r.cfg.Policy, PodCache: map[string]vmistatus.PodRead{},
	}
	if pod.NetworkStatus != "" {
		in.Multus = vmistatus.ReportOf(vmi, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
			Annotations: map[string]string{vmistatus.NetworkStatusAnnotation: pod.NetworkStatus},
		}})
	}
	for _, i := range vmi.Spec.Domain.Devices.Interfaces {
		read, err := r.cfg.Cache.Read(vmi.UID, i.Name)
		switch {
		case err == nil:
			in.PodCache[i.Name] = read
		case !errors.Is(err, fs.ErrNotExist):
			in.PodCache[i.Name] = vmistatus.PodRead{Err: err}
		}
	}
	if r.cfg.Publish {
		addFromPod(in, vmi, pod.NetworkStatus)
	}
	return in
}

// report compares what the status should be with what it is, and writes it where that is wanted.
func (r *Reporter) report(ctx context.Context, key string, vmi *v1.VirtualMachineInstance, pod Pod, w *watched) error {
	r.mu.Lock()
	s := w.snapshot
	r.mu.Unlock()
	if s.Domain == nil {
		return nil // nothing is known yet: what is written stays
	}
	in := r.input(vmi, pod)
	in.Domain = s.Domain
	want := vmistatus.Merge(in).Interfaces
	differs := !vmistatus.Equal(in.Previous, want)
	r.mu.Lock()
	w.differs = differs
	wait := w.writes.wait(vmi, differs, time.Now())
	r.mu.Unlock()
	switch {
	case !differs || !r.cfg.Publish:
		return nil
	case wait > 0:
		r.queue.AddAfter(key, wait)
		return nil
	}
	err := r.patch(ctx, vmi, want)
	if r.cfg.Written != nil {
		r.cfg.Written(err)
	}
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
		r.queue.AddAfter(key, retry) // it has changed meanwhile, which the watch tells
		return nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	w.writes.wrote(vmi.ResourceVersion, want, time.Now())
	r.mu.Unlock()
	return nil
}

// op is an operation of a JSON patch.
type op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch changes the field of exactly this object, if it still has the value that was looked at.
func (r *Reporter) patch(ctx context.Context, vmi *v1.VirtualMachineInstance, want []vmistatus.Interface) error {
	const path = "/status/interfaces"
	ops := []op{{"test", "/metadata/uid", vmi.UID}}
	if len(vmi.Status.Interfaces) > 0 {
		ops = append(ops, op{"test", path, vmi.Status.Interfaces})
	} else {
		ops = append(ops, op{"test", path, nil})
	}
	ops = append(ops, op{"add", path, want})
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	const limit = 15 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// KubeVirt's definition has no status subresource. Where one has, a patch of the object leaves
	// the status as it is.
	for _, subresource := range []string{"", "status"} {
		var now v1.VirtualMachineInstance
		request := r.client.Patch(types.JSONPatchType).Resource(resource).Namespace(vmi.Namespace).Name(vmi.Name).Body(body)
		if subresource != "" {
			request = request.SubResource(subresource)
		}
		if err := request.Do(ctx).Into(&now); err != nil {
			return fmt.Errorf("patch status.interfaces: %w", err)
		}
		if vmistatus.Equal(now.Status.Interfaces, want) {
			return nil
		}
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "the API server takes the patch and keeps another value",
	}}
}

// writes notices another writer of a status: when what was written is replaced, over and over, it
// is given way to for longer and longer.
type writes struct {
	at       time.Time // of the last one
	over     string    // the version of the object that it changed
	last     []vmistatus.Interface
	replaced int
}

const (
	firstWait = 5 * time.Second
	lastWait  = 10 * time.Minute
	// patience is how often a value is written again at once: the sources change, too.
	patience = 3
)

// wrote notes a write.
func (w *writes) wrote(over string, value []vmistatus.Interface, now time.Time) {
	w.at, w.over, w.last = now, over, value
}

// wait is how long to wait before the status of an object may be written.
func (w *writes) wait(vmi *v1.VirtualMachineInstance, differs bool, now time.Time) time.Duration {
	if w.over == vmi.ResourceVersion {
		return retry // the watch is behind the write
	}
	if w.last != nil && differs && !vmistatus.Equal(vmi.Status.Interfaces, w.last) {
		w.replaced++
		w.last = nil // it is counted once
	}
	if now.Sub(w.at) > 2*lastWait {
		w.replaced = 0
	}
	if w.replaced < patience {
		return 0
	}
	pause := lastWait
	if n := w.replaced - patience; n < 7 {
		pause = firstWait << n
	}
	return max(0, w.at.Add(pause).Sub(now))
}
