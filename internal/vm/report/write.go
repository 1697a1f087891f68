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

// asMigrating is a snapshot as it counts while the machine moves to another node: an agent that has to rest
// for that is believed, as that of a paused machine is.
func asMigrating(vmi *v1.VirtualMachineInstance, s source.Snapshot) source.Snapshot {
	m := vmi.Status.MigrationState
	if m == nil || m.Completed || m.Failed || s.Err != nil || s.Domain == nil || s.Domain.GuestErr == nil {
		return s
	}
	if m.StartTimestamp != nil && !s.Dropped.IsZero() && s.Dropped.Before(m.StartTimestamp.Time) {
		return s // it was gone before, and what was dropped does not come back by that
	}
	d := *s.Domain
	d.Agent = vmistatus.AgentSilent
	s.Domain = &d
	return s
}

// report compares what the status should be with what it is, and writes it where that is wanted.
func (r *Reporter) report(ctx context.Context, key string, vmi *v1.VirtualMachineInstance, pod Pod, w *watched) error {
	r.mu.Lock()
	s := asMigrating(vmi, w.snapshot)
	r.mu.Unlock()
	if s.Domain == nil {
		return nil // nothing is known yet: what is written stays
	}
	in := r.input(vmi, pod)
	in.Domain = s.Domain
	want := vmistatus.Merge(in).Interfaces
	what := changeOf(in.Previous, want)
	r.mu.Lock()
	w.differs = what != unchanged
	wait := w.writes.wait(vmi, what, time.Now())
	r.mu.Unlock()
	switch {
	case what == unchanged || !r.cfg.Publish:
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
	w.writes.tries(what, now)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err):
		w.writes.refused(now) // it has changed meanwhile, which the watch tells, or it will be so again
		r.queue.AddAfter(key, w.writes.wait(vmi, what, now))
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
