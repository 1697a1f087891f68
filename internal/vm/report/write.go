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
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/vm/source"
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
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	w.writes.tries(now)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err):
		w.writes.refused(now) // it has changed meanwhile, which the watch tells, or it will be so again
		r.queue.AddAfter(key, w.writes.wait(vmi, true, now))
		return nil
	case err != nil:
		return err
	}
	w.writes.wrote(vmi.ResourceVersion, want, now)
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
	const limit = 15 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	old, err := r.written(ctx, vmi)
	if err != nil {
		return fmt.Errorf("read status.interfaces: %w", err)
	}
	value, err := withUnknown(want, old)
	if err != nil {
		return fmt.Errorf("status.interfaces: %w", err)
	}
	body, err := json.Marshal([]op{{"test", "/metadata/uid", vmi.UID}, {"test", path, old}, {"add", path, value}})
	if err != nil {
		return err
	}
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

// written is the object's list as the API server has it, byte for byte: what this version of KubeVirt's
// types makes of it may be another value. It is the one that was looked at. Nil: there is none.
func (r *Reporter) written(ctx context.Context, vmi *v1.VirtualMachineInstance) (json.RawMessage, error) {
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", vmi.Name).String(), Limit: 1}
	text, err := r.client.Get().Resource(resource).Namespace(vmi.Namespace).VersionedParams(&o, r.params).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				UID types.UID `json:"uid"`
			} `json:"metadata"`
			Status struct {
				Interfaces json.RawMessage `json:"interfaces"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 || list.Items[0].Metadata.UID != vmi.UID {
		return nil, apierrors.NewNotFound(v1.Resource(resource), vmi.Name)
	}
	raw := list.Items[0].Status.Interfaces
	var now []vmistatus.Interface
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &now); err != nil {
			return nil, err
		}
	}
	if !vmistatus.Equal(now, vmi.Status.Interfaces) {
		return nil, apierrors.NewConflict(v1.Resource(resource), vmi.Name, errors.New("status.interfaces has changed since it was looked at"))
	}
	return raw, nil
}

// withUnknown is the list to write, with what entries of the old one have besides the fields of this
// version of KubeVirt's types.
func withUnknown(want []vmistatus.Interface, old json.RawMessage) (json.RawMessage, error) {
	var before []map[string]json.RawMessage
	if len(old) > 0 {
		if err := json.Unmarshal(old, &before); err != nil {
			return nil, err
		}
	}
	all := make([]map[string]json.RawMessage, 0, len(want))
	unknown := map[string]map[string]json.RawMessage{}
	for _, e := range before {
		unknown[entryKey(e)] = e
	}
	known := knownFields()
	for i := range want {
		text, err := json.Marshal(&want[i])
		if err != nil {
			return nil, err
		}
		var e map[string]json.RawMessage
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, err
		}
		for field, value := range unknown[entryKey(e)] {
			if !known[field] {
				e[field] = value
			}
		}
		all = append(all, e)
	}
	return json.Marshal(all)
}

// entryKey tells entries of a list apart: those that only the guest knows have no name.
func entryKey(e map[string]json.RawMessage) string {
	if name := string(e["name"]); name != "" && name != `""` {
		return name
	}
	return string(e["mac"]) + " " + string(e["interfaceName"])
}

// knownFields are an entry's, as they are written.
func knownFields() map[string]bool {
	known := map[string]bool{}
	for f := range reflect.TypeFor[vmistatus.Interface]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known[name] = true
	}
	return known
}

// writes spaces the writes of a status, which a guest can cause, and notices another writer: when what
// was written is replaced, over and over, it is given way to for longer and longer.
type writes struct {
	at       time.Time // of the last one
	over     string    // the version of the object that it changed
	last     []vmistatus.Interface
	replaced int
	pace     source.Pace
	refusals int       // since the last one
	failed   time.Time // when the last of them was
}

// newWrites: a few writes are done at once, as when a machine starts, and then one each half minute.
func newWrites() writes {
	const every, burst = 30 * time.Second, 5
	return writes{pace: source.Pace{Every: every, Burst: burst}}
}

const (
	firstWait = 5 * time.Second
	lastWait  = 10 * time.Minute
	// patience is how often a value is written again at once: the sources change, too.
	patience = 3
)

// tries notes that a write was tried.
func (w *writes) tries(now time.Time) { w.pace.Done(now) }

// refused notes that the API server refused one.
func (w *writes) refused(now time.Time) {
	w.refusals++
	w.failed = now
}

// wrote notes a write.
func (w *writes) wrote(over string, value []vmistatus.Interface, now time.Time) {
	w.at, w.over, w.last, w.refusals = now, over, value, 0
}

// wait is how long to wait before the status of an object may be written.
func (w *writes) wait(vmi *v1.VirtualMachineInstance, differs bool, now time.Time) time.Duration {
	if w.over != "" && w.over == vmi.ResourceVersion {
		return retry // the watch is behind the write
	}
	if w.last != nil && differs && !vmistatus.Equal(vmi.Status.Interfaces, w.last) {
		w.replaced++
		w.last = nil // it is counted once
	}
	if now.Sub(w.at) > 2*lastWait {
		w.replaced = 0
	}
	if !differs {
		w.refusals = 0
	}
	wait := w.pace.Wait(now)
	if w.refusals > 0 {
		wait = max(wait, w.failed.Add(growing(w.refusals-1)).Sub(now))
	}
	if w.replaced >= patience {
		wait = max(wait, w.at.Add(growing(w.replaced-patience)).Sub(now))
	}
	return wait
}

// growing is the pause after the nth time.
func growing(n int) time.Duration {
	const doublings = 7
	if n < doublings {
		return firstWait << n
	}
	return lastWait
}
