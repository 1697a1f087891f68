// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/operator/metrics"
)

// Config says what a controller works with.
type Config struct {
	Conn *rest.Config // how to reach the API server, with the rate of requests
	// Elected is closed once this process is the leader, which it stays until Start's ctx ends.
	Elected <-chan struct{}
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	Log     *slog.Logger

	Workers int           // requests at once; 0 = 8
	Refresh time.Duration // everything is looked at this often; 0 = 5 minutes
	Look    time.Duration // which kind nodes are, is asked this often; 0 = 30 seconds
}

// Controller is a runnable of a manager, which runs on every replica: those that do not lead have
// everything at hand for when they do.
type Controller struct {
	cfg    Config
	scheme *runtime.Scheme
	client client.Client
	behind atomic.Pointer[error]
}

// New makes a controller; nothing is sent yet.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers == 0 {
		cfg.Workers = 8
	}
	if cfg.Refresh == 0 {
		cfg.Refresh = 5 * time.Minute
	}
	if cfg.Look == 0 {
		cfg.Look = 30 * time.Second
	}
	c := &Controller{cfg: cfg, scheme: runtime.NewScheme()}
	if err := v2alpha1.AddToScheme(c.scheme); err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	var err error
	if c.client, err = client.New(cfg.Conn, client.Options{Scheme: c.scheme, Mapper: mapper()}); err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	c.say(errors.New("which resources the API server has is not known yet"))
	return c, nil
}

// NeedLeaderElection says no: who waits for its turn follows the cluster as well.
func (c *Controller) NeedLeaderElection() bool { return false }

// Behind says why not everything is known; nil when it is.
func (c *Controller) Behind() error { return *c.behind.Load() }

func (c *Controller) say(err error) { c.behind.Store(&err) }

// Start works until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		kind, ok := c.look(ctx)
		if !ok {
			break
		}
		c.cfg.Log.InfoContext(ctx, "follow nodes", "kind", kind.String())
		c.ended(ctx, c.follow(ctx, kind))
	}
	return nil
}

// ended says why all begins anew, and waits where that is for a fault.
func (c *Controller) ended(ctx context.Context, why error) {
	if ctx.Err() != nil {
		return
	}
	c.say(why)
	c.cfg.Log.WarnContext(ctx, "begin anew", "reason", why)
	if !errors.Is(why, errOther) {
		_ = sleep(ctx, min(c.cfg.Look, 5*time.Second)) // its error is ctx's
	}
}

// errOther: nodes are of another kind now.
var errOther = errors.New("nodes are of another kind now") //nolint:gochecknoglobals // a sentinel

// follow works as long as nodes are of a kind.
func (c *Controller) follow(ctx context.Context, kind nodeKind) error {
	g, ctx := errgroup.WithContext(ctx)
	objects, err := cache.New(c.cfg.Conn, cache.Options{Scheme: c.scheme, Mapper: mapper(), DefaultTransform: trim})
	if err != nil {
		return fmt.Errorf("make cache: %w", err)
	}
	g.Go(func() error {
		if err := objects.Start(ctx); err != nil {
			return fmt.Errorf("follow objects: %w", err)
		}
		return context.Cause(ctx)
	})
	g.Go(func() error { return c.watchKind(ctx, kind) })
	g.Go(func() error { return c.work(ctx, objects, kind) })
	return g.Wait() //nolint:wrapcheck // names itself
}

// work waits until all is known and this process leads, and then does what is to be done.
func (c *Controller) work(ctx context.Context, objects cache.Cache, kind nodeKind) error {
	l := newLedger(c.cfg.Log)
	synced := []toolscache.InformerSynced{}
	for _, f := range []struct {
		what    client.Object
		handler toolscache.ResourceEventHandler
	}{
		{kind.object(), l.nodes()},
		{&v2alpha1.CiliumNetworkDriverNodeConfig{}, l.nodeConfigs()},
		{&v2alpha1.CiliumNetworkDriverClusterConfig{}, l.clusterConfigs()},
	} {
		informer, err := objects.GetInformer(ctx, f.what, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("follow objects: %w", err)
		}
		told, err := informer.AddEventHandler(f.handler)
		if err != nil {
			return fmt.Errorf("follow objects: %w", err)
		}
		synced = append(synced, told.HasSynced)
	}
	c.say(errors.New("not all nodes and configurations are known yet"))
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return context.Cause(ctx)
	}
	c.say(nil)
	c.cfg.Metrics.Follow(l)
	defer c.cfg.Metrics.Follow(nil)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.cfg.Elected:
	}
	return c.lead(ctx, l, kind)
}
