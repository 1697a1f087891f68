// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator is the wiring of weft-operator: the manager with its election of a leader, the
// controller of the network driver's configurations, the admission webhook, and what is served over
// HTTP. There is no logic in it.
//
// Invariants: what is not asked for is not started, and asks for no right; a process that has lost
// its lead ends, and one that is told to end gives the lead away after its last request.
//
// Implements: architecture 2 (weft-operator), 4.5; spec/dra.md 1.9.
package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/agent/health"
	"github.com/weftnet/weft/internal/operator/controller"
	"github.com/weftnet/weft/internal/operator/metrics"
	"github.com/weftnet/weft/internal/operator/webhook"
)

// leaseName is that of the leader's lease.
const leaseName = "weft-operator"

// Operator is one replica.
type Operator struct {
	cfg     Config
	log     *slog.Logger
	conn    *rest.Config
	metrics *metrics.Metrics
	ready   []func() error
}

// New makes an operator; nothing is sent yet. The error joins every fault of cfg.
func New(cfg Config, version string, log *slog.Logger) (*Operator, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	conn, err := connect(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	conn.QPS, conn.Burst = float32(cfg.APIRate), 2*cfg.APIRate
	conn.UserAgent = "weft-operator/" + version
	return &Operator{cfg: cfg, log: log, conn: conn, metrics: metrics.New(version)}, nil
}

func connect(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		conn, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kubeconfig: is not given, and there is no service account: %w", err)
		}
		return conn, nil
	}
	conn, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return conn, nil
}

// Run works until ctx ends.
func (o *Operator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	run := func(context.Context) error { <-ctx.Done(); return nil }
	if o.cfg.NetworkDriver || o.cfg.Webhook.Enabled {
		m, err := o.manager()
		if err != nil {
			return err
		}
		run = m.Start
	} else {
		o.log.InfoContext(ctx, "nothing is asked for: neither the network driver's configurations nor the admission webhook")
	}
	if o.cfg.MetricsAddress != "" {
		server := health.New(health.Options{Address: o.cfg.MetricsAddress, Metrics: o.metrics.Handler(), Ready: o.isReady, PProf: o.cfg.PProf}, o.log.With("part", "health"))
		g.Go(func() error { return server.Run(ctx) })
	}
	g.Go(func() error { return run(ctx) })
	return g.Wait() //nolint:wrapcheck // names itself
}

// isReady says whether everything that was started works, and if not, why.
func (o *Operator) isReady() (bool, []string) {
	var reasons []string
	for _, check := range o.ready {
		if err := check(); err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	return len(reasons) == 0, reasons
}

// manager has all that is asked for, and starts nothing.
func (o *Operator) manager() (manager.Manager, error) {
	log := logr.FromSlogHandler(o.log.With("part", "manager").Handler())
	ctrl.SetLogger(log) //nolint:forbidigo // the library has one for all of a process
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgo.AddToScheme(scheme), v2alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	options := manager.Options{
		Scheme: scheme, Logger: log, MapperProvider: noMapper,
		Metrics:        metricsserver.Options{BindAddress: "0"}, // o.metrics is served instead
		LeaderElection: o.cfg.LeaderElection, LeaderElectionID: leaseName, LeaderElectionNamespace: o.cfg.Namespace,
		LeaderElectionReleaseOnCancel: true, GracefulShutdownTimeout: new(stopTime),
		LeaseDuration: new(o.cfg.Lease), RenewDeadline: new(o.cfg.Lease * 2 / 3), RetryPeriod: new(o.cfg.Lease * 2 / 15),
	}
	m, err := manager.New(o.conn, options)
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	parts, err := o.parts(m)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if err := m.Add(p); err != nil {
			return nil, fmt.Errorf("make manager: %w", err)
		}
	}
	return m, nil
}

// parts are what the manager runs.
func (o *Operator) parts(m manager.Manager) ([]manager.Runnable, error) {
	parts := []manager.Runnable{manager.RunnableFunc(o.leads)}
	if o.cfg.NetworkDriver {
		c, err := controller.New(controller.Config{
			Conn: o.conn, Elected: m.Elected(), Events: m.GetEventRecorder(leaseName), Metrics: o.metrics, Log: o.log.With("part", "controller"), Look: o.cfg.Look,
		})
		if err != nil {
			return nil, err //nolint:wrapcheck // names itself
		}
		parts = append(parts, c)
		o.ready = append(o.ready, c.Behind)
	}
	if w := o.cfg.Webhook; w.Enabled {
		host, n, err := port(w.Address)
		if err != nil {
			return nil, err
		}
		log := o.log.With("part", "webhook")
		k, err := webhook.NewKeeper(webhook.KeeperConfig{
			Conn: o.conn, Elected: m.Elected(), Namespace: o.cfg.Namespace, Service: w.Service, Secret: w.Secret,
			Configuration: w.Configuration, Life: w.CertificateLife, Metrics: o.metrics, Log: log,
		})
		if err != nil {
			return nil, err //nolint:wrapcheck // names itself
		}
		parts = append(parts, k, webhook.Server(host, n, w.Pods, k, o.metrics, log))
		o.ready = append(o.ready, k.Behind)
	}
	return parts, nil
}

// stopTime is what is left for what is under way when the process is to end.
const stopTime = 20 * time.Second

// leads is run by the leader.
func (o *Operator) leads(ctx context.Context) error {
	o.metrics.Leads()
	<-ctx.Done()
	return nil
}

// noMapper: the parts know the resources that they ask for.
func noMapper(*rest.Config, *httpClient) (meta.RESTMapper, error) {
	return meta.NewDefaultRESTMapper(nil), nil
}

// port takes HOST:PORT apart.
func port(address string) (host string, n int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err //nolint:wrapcheck // names the address
	}
	n, err = strconv.Atoi(text)
	if err != nil || n < 1 || n > 65535 {
		return "", 0, fmt.Errorf("%q is no port from 1 to 65535", text)
	}
	return host, n, nil
}
