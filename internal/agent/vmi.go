// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"

	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/agent/metrics"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/kube/informers"
	"github.com/weftnet/weft/internal/vm/report"
	vmsource "github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
	"github.com/weftnet/weft/vmistatus/podcache"
)

// newMachines makes the part that reports virtual machines; nil: it is off. It touches nothing.
func newMachines(a *Agent, log *slog.Logger) (*report.Reporter, error) {
	if a.cfg.VMI.Mode == config.VMIDisabled {
		return nil, nil
	}
	var numbers *metrics.VMIs
	r, err := report.New(report.Config{
		Node: a.cfg.NodeName, Conn: a.cluster.Conn(), Publish: a.cfg.VMI.Mode == config.VMIPublish,
		Policy: vmistatus.Policy(a.cfg.VMI.Policy), Cache: podcache.New(a.cfg.VMI.PodCacheDir), Proc: a.cfg.VMI.ProcDir,
		Pods:    func(uid string) (report.Pod, bool) { return launcherPod(a.cluster, uid) },
		Times:   vmsource.Times{Slow: a.cfg.VMI.PollInterval},
		Written: func(err error) { numbers.Written(err) },
		Log:     log,
	})
	if err != nil {
		return nil, err
	}
	numbers = a.metrics.VMIs(r.Differing)
	a.debug.ServeVMIs(r)
	a.cluster.NotifyPods(func(ref informers.Ref) { r.PodChanged(ref.UID) })
	return r, nil
}

func launcherPod(cluster *informers.Cluster, uid string) (report.Pod, bool) {
	p, ok := cluster.PodByUID(uid)
	if !ok {
		return report.Pod{}, false
	}
	return report.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, NetworkStatus: p.Annotations[plan.StatusAnnotation],
		Ended: p.Terminal, Ending: p.Deleting,
	}, true
}
