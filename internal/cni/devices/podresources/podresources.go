// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet, over its pod-resources socket, which devices of
// device plugins it gave to a pod, and holds the answer against the kubelet's checkpoint.
// It is the agent's: the one-shot planners read the checkpoint alone (devices.Checkpoint).
//
// The kubelet is asked by Get. Where that is not served it is asked by List, one at a time,
// whose answer all that were waiting for it share; that Get is not served is remembered for
// the socket that said so, since a kubelet makes a new one when it starts. A kubelet that is
// asked too often (ResourceExhausted) is asked again with growing pauses, within a bound. When
// there is no socket, or no answer, the checkpoint's word stands alone.
//
// Invariants: a pod is never given what another one had under its name. The socket's answers
// are by name, without a UID, so: an answer that is younger than the request is about the pod
// that has the name now, which is the one that the request is for or its successor; an older one,
// of List, counts only when the checkpoint, which is by UID, has each of its devices for this
// pod; and what the checkpoint has for another UID is dropped from any answer. An older answer
// that lacks the pod says nothing. The result is what both sources say together (the
// socket leaves out containers that have ended their part, such as init containers); it is
// sorted and has each ID once. Nothing is asked, and no connection is open, between two requests.
//
// It must not know API clients, NADs or plans, and decides on codes of answers, never on texts.
//
// Implements: spec/cni.md rule 10, section 1.15 and B33; KEP 606 and 2403 (pod-resources v1).
package podresources

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
)

// Method is how a pod's devices were asked for.
type Method string

// The methods: two calls of the socket, and the file.
const (
	Get        Method = "get"
	List       Method = "list"
	Checkpoint Method = "checkpoint"
)

// Outcome is what came of one attempt.
type Outcome string

// The outcomes.
const (
	Done      Outcome = "done"
	Absent    Outcome = "absent"    // there is no checkpoint
	Refused   Outcome = "refused"   // the call is not served, or the kubelet does not know the pod
	Exhausted Outcome = "exhausted" // asked too often; it is asked again
	Failed    Outcome = "failed"
)

// Config says where the kubelet is, and who is told.
type Config struct {
	KubeletDir string
	// Observe is told of every attempt; nil: nobody is.
	Observe func(method Method, outcome Outcome, took time.Duration)
	Log     *slog.Logger
}

// Source answers for one node. Its methods may be called by several goroutines.
type Source struct {
	cfg    Config
	client *client
}

// New makes a Source. It touches nothing.
func New(cfg Config) *Source {
	if cfg.Observe == nil {
		cfg.Observe = func(Method, Outcome, time.Duration) {}
	}
	return &Source{cfg: cfg, client: newClient(Socket(cfg.KubeletDir), cfg.Observe)}
}

// Socket is where a kubelet answers.
func Socket(kubeletDir string) string {
	return filepath.Join(kubeletDir, "pod-resources", "kubelet.sock")
}

// Pod is whose devices are asked for. UID is the kubelet's, as in K8S_POD_UID.
type Pod struct{ Namespace, Name, UID string }

// Answer is what a pod was given.
type Answer struct {
	Devices map[string][]string // resource to IDs, sorted; never nil
	From    []Method            // whose word it is
}

// Origin names the sources for people.
func (a Answer) Origin() string {
	words := map[Method]string{
		Get: "the kubelet's pod-resources socket (Get)", List: "the kubelet's pod-resources socket (List)", Checkpoint: "the kubelet's checkpoint",
	}
	var all []string
	for _, m := range a.From {
		all = append(all, words[m])
	}
	if len(all) == 0 {
		return "neither a pod-resources socket nor a checkpoint of the kubelet is there"
	}
	return strings.Join(all, " and ")
}

// Devices are those that the kubelet gave to a pod; a pod that it gave none has none. The error
// is a *fault.Fault of code 11: both sources are there and neither can be read, or the one that is.
func (s *Source) Devices(ctx context.Context, pod Pod) (Answer, error) {
	held, own, heldErr := s.checkpoint(pod.UID)
	found, method, err := s.client.pod(ctx, pod, func(old map[string][]string) bool { return heldErr == nil && covers(own, old) })
	switch {
	case errors.Is(err, fs.ErrNotExist): // no socket: an old kubelet, or none
		if heldErr != nil {
			return Answer{}, heldErr
		}
		return Answer{Devices: devices.Merge(own), From: checkpointed(held)}, nil
	case err != nil && (heldErr != nil || held == nil):
		return Answer{}, s.unanswered(pod, err, heldErr)
	case err != nil:
		s.cfg.Log.Warn("the kubelet does not say what devices a pod has: its checkpoint does", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return Answer{Devices: devices.Merge(own), From: checkpointed(held)}, nil
	case heldErr != nil:
		s.cfg.Log.Warn("the kubelet's checkpoint cannot be read: its word for a pod's devices is not compared", "pod", pod.Namespace+"/"+pod.Name, "error", heldErr)
	}
	return Answer{Devices: devices.Merge(without(found, held, pod.UID), own), From: append([]Method{method}, checkpointed(held)...)}, nil
}

// checkpoint reads the file, and what of it is the pod's.
func (s *Source) checkpoint(podUID string) (held *devices.Held, own map[string][]string, err error) {
	begun, outcome := time.Now(), Done
	if held, err = devices.ReadCheckpoint(s.cfg.KubeletDir); err == nil {
		own, err = held.Of(podUID)
	}
	switch {
	case err != nil:
		held, own, outcome = nil, nil, Failed
	case held == nil:
		outcome = Absent
	}
	s.cfg.Observe(Checkpoint, outcome, time.Since(begun))
	return held, own, err
}

func checkpointed(held *devices.Held) []Method {
	if held == nil {
		return nil
	}
	return []Method{Checkpoint}
}

// unanswered is the fault of a pod of which nothing is known.
func (s *Source) unanswered(pod Pod, err, heldErr error) error {
	other := "there is no checkpoint in " + filepath.Join(s.cfg.KubeletDir, "device-plugins")
	if heldErr != nil {
		other = heldErr.Error()
	}
	return fault.New(fault.TryLater, "pod "+pod.Namespace+"/"+pod.Name, "",
		"what devices it has, the kubelet does not say (asked at %s: %w; %s): see whether the kubelet runs, and what it logs", s.client.socket, err, other)
}

// covers says whether every device of found, of which there is one at least, is among own.
func covers(own, found map[string][]string) bool {
	some := false
	for resource, ids := range found {
		for _, id := range ids {
			if !slices.Contains(own[resource], id) {
				return false
			}
			some = true
		}
	}
	return some
}

// without leaves out what the checkpoint has for another pod.
func without(found map[string][]string, held *devices.Held, podUID string) map[string][]string {
	left := map[string][]string{}
	for resource, ids := range found {
		for _, id := range ids {
			if !held.ByAnother(podUID, resource, id) {
				left[resource] = append(left[resource], id)
			}
		}
	}
	return left
}
