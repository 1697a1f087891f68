// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"time"

	"github.com/weftnet/weft/internal/agent/readiness"
	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/reconcile"
)

// behindEvery is how often it is asked why what is to come at the start has not come yet.
const behindEvery = time.Second

// watch tells readiness what holds, until ctx ends.
func (a *Agent) watch(ctx context.Context) error {
	records, caches, listening := a.observer.Synced(), a.cluster.Synced(), a.planner.Ready()
	if !a.cfg.CNI.Enabled {
		caches, listening = nil, nil // conditions that there are not
	}
	ticker := time.NewTicker(behindEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-records:
			records = nil
			a.ready.Set(readiness.RecordsLoaded, true, "")
		case <-listening:
			listening = nil
			a.ready.Set(readiness.PlannerListening, true, "")
		case <-caches:
			caches = nil
			a.ready.Set(readiness.CachesSynced, true, "")
		case <-ticker.C:
			if err := a.observer.Fault(); records != nil && err != nil {
				a.ready.Set(readiness.RecordsLoaded, false, err.Error())
			}
			if err := a.cluster.Behind(); caches != nil && err != nil {
				a.ready.Set(readiness.CachesSynced, false, err.Error())
			}
		}
		if records == nil && caches == nil {
			ticker.Stop()
		}
	}
}

// gate lets the publisher publish when its turn has come, and logs when the agent becomes
// ready and when it is so no longer, until ctx ends.
func (a *Agent) gate(ctx context.Context) error {
	var was, told bool
	for {
		changed := a.ready.Changed()
		if a.ready.Reached(readiness.ConfPublished) {
			a.publisher.Allow()
		}
		ready, reasons := a.ready.Ready()
		switch {
		case ready && !was:
			a.log.Info("agent is ready")
		case !ready && (was || !told):
			a.log.Info("agent is not ready", "reasons", reasons)
		}
		was, told = ready, true
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// published tells readiness how the published configuration stands.
func (a *Agent) published() {
	st := a.publisher.Status()
	why := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	a.ready.Set(readiness.PrimaryConf, st.Primary != "" && st.PrimaryErr == nil, why(st.PrimaryErr))
	a.ready.Set(readiness.ConfPublished, st.Published && st.Err == nil, why(st.Err))
}

// reconciling are the reconciler's options. Where the device-info files are was read by
// config, which asked netconf about it.
func (a *Agent) reconciling() reconcile.Options {
	o := reconcile.Options{StatusTimeout: a.cfg.CNI.StatusTimeout, DeviceInfoDir: netconf.Defaults().DeviceInfoDir}
	if raw, ok := a.cfg.CNI.Conf["deviceInfoDir"]; ok {
		_ = json.Unmarshal(raw, &o.DeviceInfoDir)
	}
	o.Memory = a.remembering(a.log.With("part", "reconcile"))
	return o
}

// publishing are the publisher's options.
func (a *Agent) publishing() confpub.Options {
	c := a.cfg.CNI
	return confpub.Options{
		ConfDir: c.ConfDir, ConfName: c.ConfName, PrimaryConf: c.PrimaryConf, Extra: c.Conf,
		AgentSocket: a.cfg.AgentSocket(), StateDir: a.cfg.StateDir, BinDir: c.BinDir,
	}
}
