// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"path/filepath"

	"github.com/weftnet/weft/internal/cni/orphans"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/upkeep"
)

// keeping says with what the node's attachments are kept right between the runtime's calls.
func (a *Agent) keeping() upkeep.Options {
	return upkeep.Options{
		Hands:      upkeep.Plugin{Binary: filepath.Join(a.cfg.CNI.BinDir, "weft-cni"), Conf: a.confPath()},
		Records:    a.observer,
		Knows:      a.knows,
		Asked:      a.asked,
		Tell:       pods{a.cluster}.Tell,
		ResultsDir: upkeep.DefaultResultsDir,
	}
}

// knows says what the API knows of a pod of this node. A cache that is not complete, or is
// not being followed, knows nothing.
func (a *Agent) knows(pod planner.PodRef) orphans.Knowledge {
	if !closed(a.cluster.Synced()) || a.cluster.Behind() != nil {
		return orphans.Unsure
	}
	if row, ok := a.cluster.Pod(pod.Namespace, pod.Name); ok && asPlanned(row).Is(pod.UID) {
		return orphans.Known
	}
	return orphans.Unknown
}

// asked is the networks annotation of a pod of this node that runs.
func (a *Agent) asked(pod planner.PodRef) (annotation string, ok bool) {
	row, ok := a.cluster.Pod(pod.Namespace, pod.Name)
	if !ok || row.Terminal || row.Deleting || !asPlanned(row).Is(pod.UID) {
		return "", false
	}
	return row.Annotations[plan.NetworksAnnotation], true
}
