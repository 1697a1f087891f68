// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/kubelet"
	"github.com/weftnet/weft/internal/dra/publish"
)

// identity is the part of a spec that a registration is made of: another one is another
// registration.
type identity struct {
	driver            string
	interval, timeout time.Duration
	attempts          int
}

func identityOf(spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec) identity {
	return identity{
		driver:   spec.DriverName,
		interval: time.Duration(spec.DRARegistrationRetryInterval) * time.Second,
		timeout:  time.Duration(spec.DRARegistrationTimeout) * time.Second,
		attempts: int(spec.DRARegistrationMaxAttempts),
	}
}

// session is one registration with its publisher.
type session struct {
	id        identity
	publisher *publish.Publisher
	cancel    context.CancelFunc
	done      sync.WaitGroup

	mu        sync.Mutex
	known     bool // what elsewhere is
	elsewhere map[string]string
}

func (s *session) end() {
	if s != nil {
		s.cancel()
		s.done.Wait()
	}
}

// offer has the devices of these pools offered, once it is known which are not free.
func (s *session) offer(node string, pools []v2alpha1.DevicePool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known || len(pools) == 0 {
		s.publisher.Set(publish.Config{Driver: s.id.driver, Node: node, Pools: pools, Elsewhere: s.elsewhere})
	}
}

// serve registers the driver and offers devices as the spec in force says, until ctx ends.
func (d *Driver) serve(ctx context.Context) {
	var s *session
	defer func() { s.end() }()
	for {
		spec := d.inForce()
		d.configureKinds()
		d.keep(ctx)
		switch {
		case spec != nil:
			if s == nil || s.id != identityOf(spec) {
				s.end()
				s = d.start(ctx, identityOf(spec))
			}
			s.offer(d.cfg.Node, spec.Pools)
		case s != nil: // the kubelet may still call for what was prepared
			s.offer(d.cfg.Node, nil)
		case len(d.cfg.Store.Allocations()) > 0:
			s = d.start(ctx, identityOf(defaults()))
			s.offer(d.cfg.Node, nil)
		}
		select {
		case <-d.wake:
		case <-ctx.Done():
			return
		}
	}
}

func defaults() *v2alpha1.CiliumNetworkDriverNodeConfigSpec {
	spec := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{}
	spec.SetDefaults()
	return spec
}

// start begins a registration.
func (d *Driver) start(ctx context.Context, id identity) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{id: id, cancel: cancel}
	log := d.cfg.Log.With("driver", id.driver)
	r := kubelet.New(kubelet.Config{
		Driver: id.driver, Node: d.cfg.Node, Dir: d.cfg.KubeletDir, Client: d.cfg.Client,
		Plugin: d.cfg.Plugin(id.driver), Interval: id.interval, Timeout: id.timeout, MaxAttempts: id.attempts,
		Report: d.registered,
	}, d.cfg.Log)
	s.publisher = publish.New(publish.Options{Store: d.cfg.Store, Publish: r.Publish, Observe: d.observed, Log: log})
	s.done.Go(func() { d.look(ctx, s, log) })
	s.done.Go(func() {
		// Devices first: a kubelet that knows the driver may call at once.
		select {
		case <-d.cfg.Store.Initialized():
		case <-ctx.Done():
			return
		}
		if err := r.Run(ctx); err != nil {
			log.Error("registration ended", "error", err)
		}
	})
	s.done.Go(func() {
		if err := s.publisher.Run(ctx); err != nil {
			log.Error("publisher ended", "error", err)
		}
	})
	return s
}

// look finds out which devices claims have under other pools, until none has one any more.
func (d *Driver) look(ctx context.Context, s *session, log *slog.Logger) {
	var elsewhere map[string]string
	var still Still
	ok := insist(ctx, func() (err error) {
		elsewhere, still, err = d.cfg.Elsewhere(ctx, s.id.driver)
		return err
	}, func(err error, pause time.Duration) {
		log.Warn("claims of before are not known yet, so nothing is offered", "error", err, "next", pause)
	})
	if !ok {
		return
	}
	d.know(s, elsewhere)
	if len(elsewhere) > 0 {
		log.Info("devices are allocated under other pools, and are not offered", "devices", elsewhere)
	}
	for pause := firstPause; len(elsewhere) > 0; pause = min(2*pause, lastPause) {
		select {
		case <-d.cfg.Store.Changed(): // what was prepared was freed, perhaps: the claim goes soon
			pause = firstPause
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		left, err := still(ctx)
		if err != nil || maps.Equal(left, elsewhere) {
			continue // a device that is not offered does no harm
		}
		elsewhere = left
		d.know(s, left)
		log.Info("devices that were allocated under other pools are offered again", "left", left)
	}
}

// know has devices withheld that claims have under other pools.
func (d *Driver) know(s *session, elsewhere map[string]string) {
	s.mu.Lock()
	s.known, s.elsewhere = true, elsewhere
	s.mu.Unlock()
	d.wake.Raise()
}

func (d *Driver) registered(s kubelet.Status) {
	d.mu.Lock()
	d.registration = s
	d.mu.Unlock()
	d.cfg.Registered(s)
	d.status.Raise()
}

func (d *Driver) observed(o publish.Outcome) {
	d.mu.Lock()
	d.offered = o.Problems
	d.mu.Unlock()
	d.cfg.Observe(o)
	d.status.Raise()
}
