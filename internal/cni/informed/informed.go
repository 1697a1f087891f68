// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package informed is the agent's caches as a planner's source: pods of the node and
// NetworkAttachmentDefinitions come from memory, and what is not there is asked for once.
//
// Invariants: in the steady state a plan costs no request, but one for each NAD that is too large
// for the caches; that something does not exist
// is said on the API server's word alone, never on the cache's, so that a NAD made a
// moment ago is found; before the caches are complete there is no plan, but a fault of
// code 11; every error is a *fault.Fault that names the object, of code 7 when somebody
// must change something, else 11. A pod made anew under its name is read live: planner
// asks for it by Refresh; so is a running pod whose networks change.
//
// It does not know what annotations mean, nor how the cluster is followed or the kubelet asked.
//
// Implements: architecture 4.2 (verb plan), 4.4 (the agent's caches); spec/cni.md rule 10,
// B39-B41.
package informed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/host/wake"
	"github.com/weftnet/weft/internal/kube/informers"
)

// Cluster is what is asked of the cluster; *informers.Cluster is one.
type Cluster interface {
	caches
	live
	writer
}

type caches interface {
	Synced() <-chan struct{}
	Behind() error
	Pod(namespace, name string) (*informers.Pod, bool)
	NAD(namespace, name string) (*informers.NAD, bool)
}

type live interface {
	LivePod(ctx context.Context, namespace, name string) (*informers.Pod, error)
	LiveNAD(ctx context.Context, namespace, name string) (*informers.NAD, bool, error)
	ResourceClaim(ctx context.Context, namespace, name string) ([]byte, error)
	ResourceSlices(ctx context.Context, driver, node string) ([]json.RawMessage, error)
}

type writer interface {
	Annotate(ctx context.Context, pod informers.Ref, annotation string, value func(old string) string) error
	Event(pod informers.Ref, typ, reason, message string)
}

// Options say where the host's files are.
type Options struct {
	KubeletDir string // of the device checkpoint
	// Kubelet gives the devices that the kubelet gave to a pod. Nil: the checkpoint tells them.
	Kubelet func(ctx context.Context, pod *plan.Pod) (map[string][]string, error)
	// Own gives the devices that the driver of that name, which runs in this very process, prepared
	// for a pod, by the resource that a network draws them from. They are not looked for in
	// ResourceSlices. Nil, or no name: there is no such driver.
	Own func(podUID string) (drawn map[string][]string, driver string)
	// Late is how long a pod is waited for that is not in the cache; 0 = 200 ms. The kubelet has heard
	// of it by a watch of its own, so on a busy node the agent's is late rather than broken, and of
	// many pods that come at once each would be read.
	Late time.Duration
}

// Source implements planner.Source, planner.Sharing, planner.Refresher and planner.Reporter.
type Source struct {
	cluster Cluster
	opts    Options
	room    *semaphore.Weighted // bytes of configurations
}

// room is how many bytes of configurations are planned at once. In memory each is there about
// four times: as it was read, decoded, edited for an attachment, and in the answer.
const room = 2 * plan.MaxConfs

// New makes a Source.
func New(c Cluster, opts Options) *Source { return &Source{c, opts, semaphore.NewWeighted(room)} }

// Hold implements planner.Sharing. Room is given in the order in which it was asked for.
func (s *Source) Hold(ctx context.Context, bytes int) error { return s.room.Acquire(ctx, int64(bytes)) }

// Free implements planner.Sharing.
func (s *Source) Free(bytes int) { s.room.Release(int64(bytes)) }

// Size implements planner.Sharing.
func (s *Source) Size(ref plan.NADRef) int {
	n, ok := s.cluster.NAD(ref.Namespace, ref.Name)
	if !ok {
		return 0
	}
	return max(len(n.Config), n.Large)
}

// How long a pod is waited for, see Options.Late, and how often it is looked for.
const (
	defaultLate = 200 * time.Millisecond
	latePoll    = 5 * time.Millisecond
)

// Pod is a pod of the cache; one that does not come there in a moment is read.
func (s *Source) Pod(ctx context.Context, namespace, name string) (*plan.Pod, error) {
	if err := s.ready("pod " + namespace + "/" + name); err != nil {
		return nil, err
	}
	for end := time.Now().Add(cmp.Or(s.opts.Late, defaultLate)); ; {
		if p, ok := s.cluster.Pod(namespace, name); ok {
			return planPod(p), nil
		}
		if time.Now().After(end) || !wake.Pause(ctx, latePoll) {
			return s.Refresh(ctx, namespace, name) // which says so where ctx ended
		}
	}
}

// Refresh reads a pod.
func (s *Source) Refresh(ctx context.Context, namespace, name string) (*plan.Pod, error) {
	p, err := s.cluster.LivePod(ctx, namespace, name)
	if err != nil {
		return nil, faultOf("pod "+namespace+"/"+name, "", err)
	}
	return planPod(p), nil
}

func planPod(p *informers.Pod) *plan.Pod {
	// planner sets the UID of its copy; the annotations it only reads.
	return &plan.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Annotations: p.Annotations}
}

// ready is a fault of code 11 until the caches are complete.
func (s *Source) ready(object string) error {
	select {
	case <-s.cluster.Synced():
		return nil
	default:
	}
	err := s.cluster.Behind()
	if err == nil {
		err = errors.New("they are being listed")
	}
	return fault.New(fault.TryLater, object, "", "the agent has not yet seen all pods of this node and all NetworkAttachmentDefinitions: %w", err)
}

// NAD is a NAD of the cache; for one that is not there, or too large to be kept, the API server
// is asked.
func (s *Source) NAD(ctx context.Context, ref plan.NADRef) (plan.NAD, error) {
	object := "NetworkAttachmentDefinition " + ref.Namespace + "/" + ref.Name
	if err := s.ready(object); err != nil { // STATUS and the conf's own networks have no pod
		return plan.NAD{}, err
	}
	n, ok := s.cluster.NAD(ref.Namespace, ref.Name)
	if !ok || n.Large > 0 {
		var err error
		if n, ok, err = s.cluster.LiveNAD(ctx, ref.Namespace, ref.Name); err != nil {
			return plan.NAD{}, faultOf(object, "", err)
		}
	}
	switch {
	case !ok:
		return plan.NAD{}, nil
	case n.Broken != "":
		return plan.NAD{}, fault.New(fault.Config, object, "spec.config", "%s", n.Broken)
	}
	return plan.NAD{Found: true, Config: n.Config, ResourceName: n.Annotations[plan.ResourceNameAnnotation]}, nil
}

// Devices are those that the kubelet gave to the pod, and those of its claims.
func (s *Source) Devices(ctx context.Context, pod *plan.Pod) (map[string][]string, error) {
	fromKubelet, err := s.fromKubelet(ctx, pod)
	if err != nil {
		return nil, err
	}
	fromClaims, err := s.claimed(ctx, pod)
	if err != nil {
		return nil, err
	}
	own, _ := s.own(pod.UID)
	return devices.Merge(fromKubelet, fromClaims, own), nil
}

func (s *Source) fromKubelet(ctx context.Context, pod *plan.Pod) (map[string][]string, error) {
	if s.opts.Kubelet != nil {
		return s.opts.Kubelet(ctx, pod)
	}
	return devices.Checkpoint(s.opts.KubeletDir, pod.RuntimeUID())
}

// Warnings has none: an API server holds no half objects.
func (s *Source) Warnings() []fault.Warning { return nil }

// Annotate implements planner.Reporter.
func (s *Source) Annotate(ctx context.Context, pod planner.PodRef, annotation string, value func(old string) string) error {
	err := s.cluster.Annotate(ctx, informers.Ref(pod), annotation, value)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, informers.ErrReplaced):
		return &fault.Fault{Code: fault.TryLater, Object: pod.String(), Field: "metadata.uid", Text: oneLine(err), Err: err}
	}
	return faultOf(pod.String(), "annotation "+annotation, err)
}

// Tell implements planner.Reporter.
func (s *Source) Tell(pod planner.PodRef, e planner.Event) {
	s.cluster.Event(informers.Ref(pod), "Warning", e.Reason, e.Message)
}

// maxText bounds a fault's text, in bytes.
const maxText = 2 << 10

func oneLine(err error) string { return fault.Bound(err.Error(), maxText) }

// faultOf is what an error of a request means for the pod.
func faultOf(object, field string, err error) error {
	code := fault.TryLater
	if informers.Lasting(err) {
		code = fault.Config
	}
	return &fault.Fault{Code: code, Object: object, Field: field, Text: oneLine(err), Err: err}
}
