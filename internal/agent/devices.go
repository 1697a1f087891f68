// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/weftnet/weft/internal/cni/devices/podresources"
	"github.com/weftnet/weft/internal/cni/informed"
	"github.com/weftnet/weft/internal/cni/plan"
)

// kubeletDevices implements informed.Options.Kubelet.
func (a *Agent) kubeletDevices(ctx context.Context, pod *plan.Pod) (map[string][]string, error) {
	answer, err := a.kubelet.Devices(ctx, asHeld(pod))
	return answer.Devices, err
}

// asHeld is a pod as the kubelet knows it.
func asHeld(pod *plan.Pod) podresources.Pod {
	return podresources.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.RuntimeUID()}
}

// askedKubelet implements podresources.Config.Observe.
func (a *Agent) askedKubelet(method podresources.Method, outcome podresources.Outcome, took time.Duration) {
	a.metrics.DevicesAsked(string(method), string(outcome), took)
}

// explaining is the planner's source for people: it tells where a pod's devices come from.
func (a *Agent) explaining(tell func(plan.Decision)) *informed.Source {
	return informed.New(a.cluster, informed.Options{Own: a.own, Kubelet: func(ctx context.Context, pod *plan.Pod) (map[string][]string, error) {
		answer, err := a.kubelet.Devices(ctx, asHeld(pod))
		if err != nil {
			return nil, err
		}
		n := 0
		for _, ids := range answer.Devices {
			n += len(ids)
		}
		tell(plan.Decision{
			Attachment: -1, Subject: plan.SubjectDevice, Value: fmt.Sprintf("%d of device plugins", n), Reason: "asked: " + answer.Origin(),
		})
		return answer.Devices, nil
	}})
}
