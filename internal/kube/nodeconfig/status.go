// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
)

// statusTimeout bounds one writing of a status, with all requests that it takes.
const statusTimeout = 15 * time.Second

// patched is what an apply of a status is.
type patched struct {
	APIVersion string                                       `json:"apiVersion"`
	Kind       string                                       `json:"kind"`
	Metadata   patchedMeta                                  `json:"metadata"`
	Status     v2alpha1.CiliumNetworkDriverNodeConfigStatus `json:"status"`
}

// patchedMeta has the UID, so that an object of the same name that came later is left alone.
type patchedMeta struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// SetStatus has the configuration that of is a version of say these conditions, whose times are
// set here, and tells events: a Warning for each condition that is news and False, and a Normal
// one when it is True again. Nothing is sent when it says so already, nor when the configuration
// is gone. Where the definition cannot hold conditions, events are all there is. The error is one
// that may be gone at the next try; nothing was told then.
func (f *Follower) SetStatus(ctx context.Context, of *v2alpha1.CiliumNetworkDriverNodeConfig, conditions []metav1.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	now, narrow := f.current, f.narrow
	f.mu.Unlock()
	if now == nil || now.UID != of.UID {
		return nil
	}
	if f.toldOf != string(of.UID) { // what an earlier process wrote, it has told
		f.told, f.toldOf = now.Status.Conditions, string(of.UID)
	}
	conditions = timed(conditions, f.told)
	if !narrow && !holds(now.Status.Conditions, conditions) {
		gone, err := f.write(ctx, of, conditions)
		if err != nil {
			return fmt.Errorf("write status of %s: %w", f.object(), err)
		}
		if gone {
			return nil
		}
	}
	f.tell(ctx, of, conditions)
	f.told = conditions
	return nil
}

// timed gives conditions the time of their last change of status: that of before, or now.
func timed(conditions, before []metav1.Condition) []metav1.Condition {
	all := make([]metav1.Condition, len(conditions))
	for i, c := range conditions {
		c.LastTransitionTime = metav1.Now().Rfc3339Copy()
		if old := meta.FindStatusCondition(before, c.Type); old != nil && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
		all[i] = c
	}
	return all
}

// holds says whether have has all of want, times aside.
func holds(have, want []metav1.Condition) bool {
	for _, c := range want {
		old := meta.FindStatusCondition(have, c.Type)
		if old == nil {
			return false
		}
		c.LastTransitionTime = old.LastTransitionTime
		if *old != c {
			return false
		}
	}
	return true
}

// write applies conditions; gone: there is no such object any more. A definition that cannot hold
// them is noted.
func (f *Follower) write(ctx context.Context, of *v2alpha1.CiliumNetworkDriverNodeConfig, conditions []metav1.Condition) (gone bool, err error) {
	p := patched{
		APIVersion: v2alpha1.GroupVersion().String(), Kind: v2alpha1.NodeConfigKind, Metadata: patchedMeta{of.Name, of.UID},
		Status: v2alpha1.CiliumNetworkDriverNodeConfigStatus{Conditions: conditions},
	}
	got, err := f.patch(ctx, types.ApplyPatchType, p, map[string]string{"fieldManager": f.cfg.Manager, "force": "true"})
	switch code := codeOf(err); {
	case err == nil && holds(got.Status.Conditions, conditions):
		return false, nil
	case err == nil: // pruned
	case code == http.StatusConflict: // of the UID: force leaves no other
		return true, nil
	case code == http.StatusNotFound: // the object, or its status
		now := &v2alpha1.CiliumNetworkDriverNodeConfig{}
		lookErr := f.client.Get().Resource(v2alpha1.NodeConfigResource).Name(of.Name).MaxRetries(0).Do(ctx).Into(now)
		if apierrors.IsNotFound(lookErr) || lookErr == nil && now.UID != of.UID {
			return true, nil
		}
		if lookErr != nil {
			return false, lookErr
		}
	case code == http.StatusInternalServerError:
		// So an apply of fields is answered that the definition does not have. Whether it is
		// that, a merge says, which drops them: it is not carried out.
		dropped, lookErr := f.patch(ctx, types.MergePatchType, p, map[string]string{"dryRun": metav1.DryRunAll})
		if lookErr != nil || holds(dropped.Status.Conditions, conditions) {
			return false, err
		}
	default:
		return false, err
	}
	f.mu.Lock()
	f.narrow = true
	f.mu.Unlock()
	f.cfg.Log.InfoContext(ctx, "definition of the configuration holds no conditions: they are told as events", "resource", v2alpha1.NodeConfigResource+"."+v2alpha1.Group)
	return false, nil
}

func (f *Follower) patch(ctx context.Context, kind types.PatchType, p patched, params map[string]string) (*v2alpha1.CiliumNetworkDriverNodeConfig, error) {
	body, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	req := f.client.Patch(kind).Resource(v2alpha1.NodeConfigResource).Name(p.Metadata.Name).SubResource("status").Body(body).MaxRetries(0)
	for name, value := range params {
		req.Param(name, value)
	}
	got := &v2alpha1.CiliumNetworkDriverNodeConfig{}
	return got, req.Do(ctx).Into(got)
}

// codeOf is the HTTP code of an answer, 0 when there was none.
func codeOf(err error) int32 {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return status.Status().Code
	}
	return 0
}
