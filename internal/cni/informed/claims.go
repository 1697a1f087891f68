// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informed

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/kube/informers"
)

// claimed are the devices of the pod's ResourceClaims. Claims and slices are read live:
// they are wanted for pods with claims alone, and a cache would hold those of all.
func (s *Source) claimed(ctx context.Context, ref *plan.Pod) (map[string][]string, error) {
	pod, names, err := s.claims(ctx, ref)
	if err != nil || pod == nil {
		return map[string][]string{}, err
	}
	var claims []devices.Claim
	for _, name := range names {
		object := "ResourceClaim " + ref.Namespace + "/" + name
		b, err := s.cluster.ResourceClaim(ctx, ref.Namespace, name)
		if err != nil {
			return nil, faultOf(object, "", err)
		}
		if claims, err = appendDecoded(claims, b, object); err != nil {
			return nil, err
		}
	}
	_, driver := s.own(ref.UID)
	for i := range claims {
		if a := claims[i].Status.Allocation; a != nil {
			a.Devices.Results = slices.DeleteFunc(a.Devices.Results, func(r devices.Result) bool { return driver != "" && r.Driver == driver })
		}
	}
	var published []devices.Slice
	for _, need := range devices.Slices(pod, claims) {
		object := "ResourceSlices of node " + need.Node
		list, err := s.cluster.ResourceSlices(ctx, need.Driver, need.Node)
		if err != nil {
			return nil, faultOf(object, "", err)
		}
		for _, b := range list {
			if published, err = appendDecoded(published, b, object); err != nil {
				return nil, err
			}
		}
	}
	return devices.FromClaims(pod, claims, published)
}

// own are the devices of the driver of this process, and its name.
func (s *Source) own(podUID string) (drawn map[string][]string, driver string) {
	if s.opts.Own == nil {
		return nil, ""
	}
	return s.opts.Own(podUID)
}

// claims are the pod, as devices sees it, and its claims' names; a nil pod has none. A
// copy of the pod that is older than its claims is read anew, once.
func (s *Source) claims(ctx context.Context, ref *plan.Pod) (*devices.Pod, []string, error) {
	object := "pod " + ref.Namespace + "/" + ref.Name
	row, cached := s.cluster.Pod(ref.Namespace, ref.Name)
	cached = cached && row.UID == ref.UID
	for {
		if !cached {
			var err error
			if row, err = s.cluster.LivePod(ctx, ref.Namespace, ref.Name); err != nil {
				return nil, nil, faultOf(object, "", err)
			}
		}
		pod, names, err := claimNames(row, object)
		if err == nil || !cached {
			return pod, names, err
		}
		cached = false // the status may be younger than our copy of the pod
	}
}

func claimNames(row *informers.Pod, object string) (*devices.Pod, []string, error) {
	if row.Claims == nil {
		return nil, nil, nil
	}
	pods, err := appendDecoded[devices.Pod](nil, row.Claims, object)
	if err != nil {
		return nil, nil, err
	}
	names, err := devices.Claims(&pods[0])
	return &pods[0], names, err
}

// appendDecoded appends b as a T.
func appendDecoded[T any](list []T, b []byte, object string) ([]T, error) {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, &fault.Fault{Code: fault.TryLater, Object: object, Text: oneLine(err), Err: err}
	}
	return append(list, v), nil
}
