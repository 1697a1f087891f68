// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/agent/health"
	"github.com/weftnet/weft/internal/agent/metrics"
	"github.com/weftnet/weft/internal/agent/readiness"
	"github.com/weftnet/weft/internal/agent/recent"
	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/devices/podresources"
	"github.com/weftnet/weft/internal/cni/informed"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/listen"
	"github.com/weftnet/weft/internal/cni/reconcile"
	"github.com/weftnet/weft/internal/cni/upkeep"
	"github.com/weftnet/weft/internal/kube/informers"
)

// Agent is one node's agent, made and not yet running.
type Agent struct {
	cfg     config.Config
	version string
	log     *slog.Logger
	started time.Time

	ready      *readiness.Machine
	cluster    *informers.Cluster
	observer   *observe.Observer
	kubelet    *podresources.Source
	source     *informed.Source
	reconciler *reconcile.Reconciler
	keeper     *upkeep.Keeper
	planner    *listen.Server
	publisher  *confpub.Publisher
	metrics    *metrics.Metrics
	health     *health.Server // nil = none is wanted
	debug      *debug.Server
	driver     *networkDriver // nil = it is off
	machines   component      // nil = virtual machines are not reported
	differing  func() (differ, all int)
	recent     *recent.Recent
}

// New makes an agent of a version. It touches nothing; the error joins every fault of the
// configuration, each with its key.
func New(cfg config.Config, version string, log *slog.Logger) (*Agent, error) {
	lately := recent.New(time.Now)
	log = listening(log, lately)
	a := &Agent{cfg: cfg, version: version, log: log, recent: lately, ready: readiness.New(time.Now, conditions(cfg)...)}
	var faults []error
	made := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	part := func(name string) *slog.Logger { return log.With("part", name) }
	var err error
	a.cluster, err = informers.New(informers.Config{
		NodeName: cfg.NodeName, Kubeconfig: cfg.Kubeconfig, UserAgent: "weft-agent/" + version, Outline: outline,
	}, part("informers"))
	made(err)
	a.observer, err = observe.New(cfg.StateDir, part("observe"))
	made(err)
	a.publisher, err = confpub.New(a.publishing(), part("confpub"))
	made(err)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	a.kubelet = podresources.New(podresources.Config{KubeletDir: cfg.CNI.KubeletDir, Observe: a.askedKubelet, Log: part("devices")})
	a.source = informed.New(a.cluster, informed.Options{Kubelet: a.kubeletDevices, Own: a.own})
	a.reconciler = reconcile.New(a.reconciling(), a.observer, pods{a.cluster}, part("reconcile"))
	a.keeper = upkeep.New(a.keeping(), part("upkeep"))
	a.planner, err = listen.New(cfg.AgentSocket(), socketMode, a.handle, part("planner"))
	made(err)
	a.metrics = metrics.New(version, a.numbers())
	if cfg.MetricsAddress != "" {
		a.health = health.New(health.Options{
			Address: cfg.MetricsAddress, Metrics: a.metrics.Handler(), Ready: a.ready.Ready, PProf: cfg.PProf,
		}, part("health"))
	}
	a.debug = debug.New(cfg.DebugSocket(), view{a}, part("debug"))
	a.debug.ServeTop(view{a})
	if cfg.NetworkDriver.Enabled {
		a.driver, err = newNetworkDriver(a, part("network-driver"))
		made(err)
		if err == nil {
			a.debug.ServeTables(a.driver.store.Dump)
			a.debug.ServeDriver(driverView{a.driver})
		}
	}
	if machines, err := newMachines(a, part("vmi")); err != nil {
		made(err)
	} else if machines != nil {
		a.machines, a.differing = machines, machines.Differing
	}
	a.connect()
	return a, errors.Join(faults...)
}

// conditions are those of readiness: of an agent that only serves claims, nothing of the CNI part.
func conditions(cfg config.Config) []string {
	if cfg.CNI.Enabled {
		return readiness.Order()
	}
	return []string{readiness.RecordsLoaded}
}

const (
	socketMode = 0o600
	folderMode = 0o755 // of the sockets' folder; each socket guards itself
)

// own are the devices that the network driver prepared for a pod, where it is on.
func (a *Agent) own(podUID string) (drawn map[string][]string, driver string) {
	if a.driver == nil {
		return nil, ""
	}
	return a.driver.own(podUID)
}

// connect has the parts tell each other what changes.
func (a *Agent) connect() {
	a.observer.Timings(a.timed)
	a.publisher.Notify(a.published)
	a.cluster.NotifyPods(func(r informers.Ref) {
		a.reconciler.Pod(planner.PodRef(r))
		a.keeper.Wake()
	})
	a.observer.Notify(func(string) { a.keeper.Wake() })
}

// Run runs the agent until ctx ends or a part of it fails.
func (a *Agent) Run(ctx context.Context) error {
	a.started = time.Now()
	a.log.Info("agent starts", "version", a.version, "node", a.cfg.NodeName, "state_dir", a.cfg.StateDir, "conf", a.confPath())
	if err := os.MkdirAll(a.cfg.SocketDir, folderMode); err != nil {
		return fmt.Errorf("socketDir: %w", err)
	}
	g := newGroup(ctx, a.log)
	if a.health != nil {
		g.goBack(a.health)
	}
	g.goBack(task{"informers", a.cluster.Run})
	g.goBack(task{"record observer", a.observer.Run})
	g.goBack(task{"status reconciler", a.reconciler.Run})
	g.goBack(task{"readiness", a.watch})
	g.goBack(task{"publishing gate", a.gate})
	g.goBack(task{a.debug.String(), a.inspect})
	if a.driver != nil {
		g.goBack(a.driver)
	}
	if a.machines != nil {
		g.goBack(a.machines)
	}
	if a.cfg.CNI.Enabled {
		g.goBack(task{"orphans", a.keeper.Run})
		g.goBack(task{"hot-plug", a.keeper.RunPlug})
		g.goFront(a.planner)
		g.goFront(a.publisher)
	}
	err := g.wait(func(reason string) {
		a.ready.Stop(reason)
		a.log.Info("agent ends", "reason", reason)
	})
	if err != nil {
		return fmt.Errorf("run agent: %w", err)
	}
	a.log.Info("agent has ended")
	return nil
}

// inspect serves the debug socket once the planner's is this agent's: of two agents on one
// node, the second must not take the first one's. Without the CNI part there is no such socket.
func (a *Agent) inspect(ctx context.Context) error {
	if !a.cfg.CNI.Enabled {
		return a.debug.Run(ctx)
	}
	select {
	case <-a.planner.Ready():
		return a.debug.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}
