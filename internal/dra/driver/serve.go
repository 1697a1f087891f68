// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

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

// unknownTo is what Report is told of a registration.
func unknownTo(driver string) string { return "claims of before, of " + driver }

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
	all := sessions{}
	defer all.end(func(string) bool { return true }) // what is offered stays for the next process
	for {
		changed := d.cfg.Store.Changed()
		d.configureKinds()
		d.keep(ctx)
		d.arrange(ctx, all)
		if len(all) == 0 || len(all) == 1 && d.inForce() != nil {
			changed = nil // there is nothing that goes when the last claim does
		}
		select {
		case <-d.wake:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// sessions are the registrations that there are, by driver.
type sessions map[string]*session

// end ends those that are chosen, and names them.
func (all sessions) end(chosen func(driver string) bool) (ended []string) {
	for name, s := range all {
		if chosen(name) {
			s.end()
			delete(all, name)
			ended = append(ended, name)
		}
	}
	return ended
}

// arrange has one registration offer devices, that of the spec in force, and keeps one without
// devices for each other name that claims were prepared under: the kubelet calls for them there. The
// last one in force stays when there is no spec any more.
func (d *Driver) arrange(ctx context.Context, all sessions) {
	spec := d.inForce()
	needed := map[string]bool{}
	for _, a := range d.cfg.Store.Allocations() {
		needed[cmp.Or(a.Driver, v2alpha1.DefaultDriverName)] = true
	}
	front := d.Name()
	if spec != nil {
		front = spec.DriverName
	} else if all[front] == nil && len(needed) > 0 {
		front = slices.Min(slices.Collect(maps.Keys(needed)))
	}
	d.setFront(front)
	for _, name := range all.end(func(name string) bool { return name != front && !needed[name] }) {
		d.withdraw(ctx, name)
	}
	d.keepRegistered(ctx, all, needed, front, spec)
	if spec != nil && (all[front] == nil || all[front].id != identityOf(spec)) {
		all[front].end()
		all[front] = d.start(ctx, identityOf(spec))
	}
	for name, s := range all {
		if spec != nil && name == front {
			s.offer(d.cfg.Node, spec.Pools)
			continue
		}
		s.offer(d.cfg.Node, nil)
	}
}

// keepRegistered registers the names that claims need beside that of the spec in force.
func (d *Driver) keepRegistered(ctx context.Context, all sessions, needed map[string]bool, front string, spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec) {
	like := spec
	if like == nil {
		like = defaults()
	}
	for name := range needed {
		if all[name] == nil && (spec == nil || name != front) {
			id := identityOf(like)
			id.driver = name
			all[name] = d.start(ctx, id)
		}
	}
}

// Name is the driver that offers devices, or did last; "" before there was one. The status tells of its
// registration.
func (d *Driver) Name() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.frontName
}

func (d *Driver) setFront(name string) {
	d.mu.Lock()
	before := d.frontName
	d.frontName = name
	now := d.registrations[name]
	d.mu.Unlock()
	if before != "" && before != name {
		d.cfg.Registered(now)
		d.status.Raise()
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
	a := newAsked(d.cfg.Plugin(id.driver))
	r := kubelet.New(kubelet.Config{
		Driver: id.driver, Node: d.cfg.Node, Dir: d.cfg.KubeletDir, Client: d.cfg.Client,
		Plugin: a, Interval: id.interval, Timeout: id.timeout, MaxAttempts: id.attempts,
		Report: func(s kubelet.Status) {
			d.registered(id.driver, s)
			a.news.Raise()
		},
	}, d.cfg.Log)
	s.publisher = publish.New(publish.Options{
		Store: d.cfg.Store, Log: log,
		Publish: func(ctx context.Context, resources resourceslice.DriverResources) error {
			a.set(resources)
			return r.Publish(ctx, resources)
		},
		Observe: func(o publish.Outcome) { d.observed(id.driver, o) },
	})
	s.done.Go(func() { d.look(ctx, s, log) })
	s.done.Go(func() { d.agree(ctx, id.driver, a) })
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
		d.Report(unknownTo(s.id.driver), fmt.Errorf("they are not known yet, so nothing is offered: %w", err))
	})
	d.Report(unknownTo(s.id.driver), nil)
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

func (d *Driver) registered(driver string, s kubelet.Status) {
	d.mu.Lock()
	d.registrations[driver] = s
	front := driver == d.frontName
	d.mu.Unlock()
	if front {
		d.cfg.Registered(s)
		d.status.Raise()
	}
}

func (d *Driver) observed(driver string, o publish.Outcome) {
	d.mu.Lock()
	front := driver == d.frontName
	if front {
		d.offered = o.Problems
	}
	d.mu.Unlock()
	if front {
		d.cfg.Observe(o)
		d.status.Raise()
	}
}
