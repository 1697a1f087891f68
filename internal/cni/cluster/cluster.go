// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster is an API server as a planner's source, for one ADD: the pod and its
// NetworkAttachmentDefinitions are read once each, network-status is written with one
// patch, and the pod's owner is told of faults by events.
//
// It needs: get on pods and on network-attachment-definitions (k8s.cni.cncf.io), patch
// on pods/status, create on events; and for NADs that draw from a resource, when the pod
// has claims, get on resourceclaims and list on resourceslices (resource.k8s.io).
//
// Invariants: every request ends with the caller's context; the patch tests the pod's UID
// and the annotation's old value, so that it changes no other pod and no newer value; an
// event delays nobody by more than eventWait, and its failure is nobody's fault; every
// error is a *fault.Fault that names the object and the server's answer, of code 7 when
// somebody must change something (kubeconfig, permissions), else 11.
//
// It does not know what annotations mean: that is plan, and planner.
//
// Implements: architecture 2 (weft-planner), 4.4 (network-status); spec/cni.md rule 4,
// 1.10, 1.17, B39–B41.
package cluster

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/kube/rest"
)

// Source is one API server, as one ADD sees it.
type Source struct {
	cfg        *rest.Config
	client     *rest.Client
	kubeletDir string

	mu   sync.Mutex
	pods map[plan.NADRef]*rest.Object // by namespace and name, as last read
	nads map[plan.NADRef]plan.NAD

	events sync.WaitGroup
	stop   context.CancelFunc
	alive  context.Context // events outlive the request that they are of
}

// Open reads a kubeconfig; nothing is asked yet. kubeletDir is where the kubelet's
// device checkpoint is. The error is a *fault.Fault of code 7.
func Open(ctx context.Context, kubeconfig, kubeletDir string) (*Source, error) {
	cfg, err := rest.Load(kubeconfig)
	if err != nil {
		return nil, &fault.Fault{Code: fault.Config, Object: "kubeconfig " + kubeconfig, Text: oneLine(err), Err: err}
	}
	s := &Source{
		cfg: cfg, client: rest.New(cfg), kubeletDir: kubeletDir,
		pods: map[plan.NADRef]*rest.Object{}, nads: map[plan.NADRef]plan.NAD{},
	}
	s.alive, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// Close waits for events that are under way, for eventWait at most.
func (s *Source) Close() {
	s.drain()
	s.stop()
	s.client.Close()
}

// Pod reads a pod, or repeats what was read. One that does not exist is a fault of code 11.
func (s *Source) Pod(ctx context.Context, namespace, name string) (*plan.Pod, error) {
	s.mu.Lock()
	o := s.pods[plan.NADRef{Namespace: namespace, Name: name}]
	s.mu.Unlock()
	if o != nil {
		return planPod(o), nil
	}
	return s.Refresh(ctx, namespace, name)
}

// Refresh reads a pod.
func (s *Source) Refresh(ctx context.Context, namespace, name string) (*plan.Pod, error) {
	o, err := s.readPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return planPod(o), nil
}

func (s *Source) readPod(ctx context.Context, namespace, name string) (*rest.Object, error) {
	o, err := s.client.Pod(ctx, namespace, name)
	if err != nil {
		return nil, s.fault("pod "+namespace+"/"+name, "", err)
	}
	s.keep(o)
	return o, nil
}

func (s *Source) keep(o *rest.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[plan.NADRef{Namespace: o.Meta.Namespace, Name: o.Meta.Name}] = o
}

func planPod(o *rest.Object) *plan.Pod {
	return &plan.Pod{Namespace: o.Meta.Namespace, Name: o.Meta.Name, UID: o.Meta.UID, Annotations: o.Meta.Annotations}
}

// NAD reads a NetworkAttachmentDefinition, or repeats what was read.
func (s *Source) NAD(ctx context.Context, ref plan.NADRef) (plan.NAD, error) {
	s.mu.Lock()
	nad, ok := s.nads[ref]
	s.mu.Unlock()
	if ok {
		return nad, nil
	}
	object := "NetworkAttachmentDefinition " + ref.Namespace + "/" + ref.Name
	o, err := s.client.NAD(ctx, ref.Namespace, ref.Name)
	switch {
	case rest.NotFound(err):
	case err != nil:
		return plan.NAD{}, s.fault(object, "", err)
	default:
		var spec struct {
			Spec struct{ Config string }
		}
		if err := json.Unmarshal(o.Raw, &spec); err != nil {
			return plan.NAD{}, &fault.Fault{Code: fault.Config, Object: object, Field: "spec.config", Text: oneLine(err), Err: err}
		}
		nad = plan.NAD{Found: true, Config: spec.Spec.Config, ResourceName: o.Meta.Annotations[plan.ResourceNameAnnotation]}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nads[ref] = nad
	return nad, nil
}

// Devices are those of the kubelet's checkpoint and of the pod's claims.
func (s *Source) Devices(ctx context.Context, pod *plan.Pod) (map[string][]string, error) {
	fromKubelet, err := devices.Checkpoint(s.kubeletDir, pod.RuntimeUID())
	if err != nil {
		return nil, err
	}
	fromClaims, err := s.claimed(ctx, pod)
	if err != nil {
		return nil, err
	}
	return devices.Merge(fromKubelet, fromClaims), nil
}

// claimed are the devices of the pod's ResourceClaims.
func (s *Source) claimed(ctx context.Context, ref *plan.Pod) (map[string][]string, error) {
	s.mu.Lock()
	o := s.pods[plan.NADRef{Namespace: ref.Namespace, Name: ref.Name}]
	s.mu.Unlock()
	if o == nil {
		return map[string][]string{}, nil // devices are asked for after the pod, and of it
	}
	pod := &devices.Pod{}
	if err := json.Unmarshal(o.Raw, pod); err != nil {
		return nil, &fault.Fault{Code: fault.TryLater, Object: "pod " + ref.Namespace + "/" + ref.Name, Text: oneLine(err), Err: err}
	}
	names, err := devices.Claims(pod)
	if err != nil && o.Meta.UID == ref.UID {
		// The status may be younger than our copy of the pod.
		if o, err = s.readPod(ctx, ref.Namespace, ref.Name); err != nil {
			return nil, err
		}
		pod = &devices.Pod{}
		if err = json.Unmarshal(o.Raw, pod); err == nil {
			names, err = devices.Claims(pod)
		}
	}
	if err != nil {
		return nil, err
	}
	var claims []devices.Claim
	for _, name := range names {
		o, err := s.client.ResourceClaim(ctx, ref.Namespace, name)
		if claims, err = appendDecoded(claims, o, err); err != nil {
			return nil, s.fault("ResourceClaim "+ref.Namespace+"/"+name, "", err)
		}
	}
	var published []devices.Slice
	for _, need := range devices.Slices(pod, claims) {
		objects, err := s.client.ResourceSlices(ctx, need.Driver, need.Node)
		if err != nil {
			return nil, s.fault("ResourceSlices of node "+need.Node, "", err)
		}
		for i := range objects {
			if published, err = appendDecoded(published, &objects[i], nil); err != nil {
				return nil, s.fault("ResourceSlice "+objects[i].Meta.Name, "", err)
			}
		}
	}
	return devices.FromClaims(pod, claims, published)
}

// appendDecoded appends o as a T, unless err says that there is none.
func appendDecoded[T any](list []T, o *rest.Object, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	var v T
	if err := json.Unmarshal(o.Raw, &v); err != nil {
		return nil, err
	}
	return append(list, v), nil
}

// Warnings has none: an API server holds no half objects.
func (s *Source) Warnings() []fault.Warning { return nil }
