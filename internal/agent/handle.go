// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
)

// syncWait is how long a request of an ADD waits for the caches after a start: a pod that
// comes while the agent is replaced should not fail for that. It is short beside the time
// that runtimes give an ADD.
const syncWait = 10 * time.Second

// handle answers one request of weft-cni.
func (a *Agent) handle(ctx context.Context, req wire.Request) wire.Response {
	begun := time.Now()
	a.awaitCaches(ctx)
	res := planner.Handle(ctx, req,
		func(*netconf.Conf) (planner.Source, error) { return a.plannerSource(ctx, req) },
		func(ctx context.Context, r wire.ReportRequest, _ planner.Open) wire.Response {
			return a.reconciler.Report(ctx, r)
		})
	var code uint
	if res.Error != nil {
		code = res.Error.Code
		a.log.Info("request is answered with an error", "verb", req.Verb, "request", req.RequestID, "code", code, "error", res.Error.Msg)
	}
	took := time.Since(begun)
	a.metrics.Planned(req.Verb, code, took)
	a.answered(&req, res.Error, took)
	a.log.Debug("request is answered", "verb", req.Verb, "request", req.RequestID, "code", code, "duration", took)
	return res
}

// plannerSource is where pods and networks come from, and claimed devices where the network driver
// is on. No pod is planned while it is not known whether it has some.
func (a *Agent) plannerSource(ctx context.Context, req wire.Request) (planner.Source, error) {
	if a.driver == nil {
		return a.source, nil
	}
	if req.Verb == wire.VerbPlan || req.Verb == wire.VerbApply {
		if err := a.driver.awaitRecovery(ctx); err != nil {
			return nil, fault.New(fault.TryLater, "network driver", "", "%v", err)
		}
	}
	return sourceOf(ctx, a.source, a.driver), nil
}

// awaitCaches waits until the caches are complete, or long enough.
func (a *Agent) awaitCaches(ctx context.Context) { await(ctx, a.cluster.Synced()) }

// await waits for what a start takes, for syncWait at most, and says whether it came.
func await(ctx context.Context, done <-chan struct{}) bool {
	if closed(done) {
		return true
	}
	timer := time.NewTimer(syncWait)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
