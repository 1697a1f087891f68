// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/brief"
)

// newAnswerer answers requests. The requests of one process are the rounds of
// one ADD: a directory is read once, so that they all see the same objects.
func newAnswerer() func(context.Context, wire.Request) wire.Response {
	sources := map[string]planner.Source{}
	open := func(conf *netconf.Conf) (planner.Source, error) {
		if src, ok := sources[conf.Manifests]; ok {
			return src, nil
		}
		src, err := openSource(conf)
		if err == nil {
			sources[conf.Manifests] = src
		}
		return src, err
	}
	return func(ctx context.Context, req wire.Request) wire.Response {
		// Files are not waited for: a look at the clock does, where a timer would start the runtime's poller.
		return planner.Handle(brief.WithTimeout(ctx, planner.Within(&req)), req, open, nil)
	}
}

// openSource opens the manifests that the conf names.
func openSource(conf *netconf.Conf) (planner.Source, error) {
	object := "configuration " + conf.Name
	switch {
	case conf.Manifests != "":
		set, err := manifests.Read(conf.Manifests)
		if err != nil {
			return nil, err
		}
		src := manifestSource{set: set}
		if conf.KubeletDirSet { // manifests are also for machines without a kubelet, or with another one's pods
			src.kubeletDir = conf.KubeletDir
		}
		return src, nil
	case conf.Kubeconfig != "":
		return nil, fault.New(fault.Config, object, "kubeconfig", "is read by weft-planner-kube, not by weft-planner")
	}
	return nil, fault.New(fault.Config, object, "manifests", "is missing, and weft-planner has no other source of pods")
}

// manifestSource is a directory of manifests as a source, with the devices of a kubelet
// where the configuration names one.
type manifestSource struct {
	set        *manifests.Set
	kubeletDir string
}

func (s manifestSource) Pod(_ context.Context, namespace, name string) (*plan.Pod, error) {
	return s.set.Pod(namespace, name)
}

func (s manifestSource) NAD(_ context.Context, ref plan.NADRef) (plan.NAD, error) {
	return s.set.NAD(ref), nil
}

// Devices are those of the kubelet's checkpoint. Without one there are none, so that a
// NAD that draws from a resource is refused with "too few".
func (s manifestSource) Devices(_ context.Context, pod *plan.Pod) (map[string][]string, error) {
	if s.kubeletDir == "" || pod == nil {
		return map[string][]string{}, nil
	}
	return devices.Checkpoint(s.kubeletDir, pod.RuntimeUID())
}

func (s manifestSource) Warnings() []fault.Warning { return s.set.Warnings }
