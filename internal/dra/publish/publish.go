// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/wake"
)

// Pauses between attempts to hand on what was refused.
const (
	firstPause = time.Second
	maxPause   = time.Minute
)

// store are the tables; *state.Store is one.
type store interface {
	Initialized() <-chan struct{}
	Changed() <-chan struct{}
	Snapshot() ([]state.Row, []device.Allocation)
}

// Outcome is what became of one look at the tables.
type Outcome struct {
	Devices  map[string]int // offered, by the user's name of the pool
	Problems []Problem
	// Published says that the slices had changed and were handed on, or that it was tried: Err.
	Published bool
	Err       error
	Took      time.Duration // of building and handing on
}

// Options are what a Publisher needs.
type Options struct {
	Store store
	// Publish hands slices on: PublishResources of a kubeletplugin.Helper.
	Publish func(context.Context, resourceslice.DriverResources) error
	// Observe is told of each look, by one goroutine; nil is fine.
	Observe func(Outcome)
	Log     *slog.Logger
}

// Publisher keeps one registration's slices as tables and configuration say.
type Publisher struct {
	opts Options

	mu     sync.Mutex
	config *Config
	wake   wake.Signal // the configuration changed
}

// New makes a publisher. A new registration takes a new one, since nothing was handed to it yet.
func New(o Options) *Publisher {
	return &Publisher{opts: o, wake: wake.New()}
}

func (p *Publisher) String() string { return "publisher of devices" }

// Set gives the configuration that counts from now on. One without pools withdraws everything;
// before the first one nothing is handed on.
func (p *Publisher) Set(c Config) {
	p.mu.Lock()
	p.config = &c
	p.mu.Unlock()
	p.wake.Raise()
}

func (p *Publisher) current() *Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config
}

// Run follows tables and configuration until ctx ends, which is no error. It may be called once.
func (p *Publisher) Run(ctx context.Context) error {
	select {
	case <-p.opts.Store.Initialized():
	case <-ctx.Done():
		return nil
	}
	var l last
	pause := firstPause
	for {
		// The channels first: what changes while it is read is not missed.
		changed := p.opts.Store.Changed()
		select {
		case <-p.wake:
		default:
		}
		var retry <-chan time.Time
		if c := p.current(); c != nil {
			if p.look(ctx, *c, &l) {
				pause = firstPause
			} else {
				retry = time.After(pause)
				pause = min(2*pause, maxPause)
			}
		}
		select {
		case <-changed:
		case <-p.wake:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
	}
}

// last is what was handed on and told.
type last struct {
	done      bool
	driver    string
	resources resourceslice.DriverResources
	problems  []Problem
}

// look builds the slices and hands them on when they differ from the last ones; false: refused.
func (p *Publisher) look(ctx context.Context, c Config, l *last) bool {
	start := time.Now()
	rows, allocations := p.opts.Store.Snapshot()
	devices := make([]device.Device, len(rows))
	for i, r := range rows {
		devices[i] = r.Dev
	}
	before := l.resources
	if l.driver != c.Driver {
		before = resourceslice.DriverResources{}
	}
	resources, problems := build(c, devices, allocations, before)
	p.tell(ctx, l.problems, problems)
	l.problems = problems
	out := Outcome{Devices: count(c.Node, resources), Problems: problems}
	if !l.done || !equal(l.resources, resources) {
		out.Published = true
		if out.Err = p.opts.Publish(ctx, resources); out.Err == nil {
			*l = last{done: true, driver: c.Driver, resources: resources, problems: problems}
			p.opts.Log.InfoContext(ctx, "devices are offered", "pools", len(resources.Pools), "devices", total(out.Devices))
		} else {
			l.done = false // nobody knows what is in force now
			p.opts.Log.WarnContext(ctx, "devices are not offered, it is tried again", "err", out.Err)
		}
	}
	out.Took = time.Since(start)
	if p.opts.Observe != nil {
		p.opts.Observe(out)
	}
	return out.Err == nil
}

// tell logs the problems that were not there the last time.
func (p *Publisher) tell(ctx context.Context, before, now []Problem) {
	known := make(map[Problem]bool, len(before))
	for _, problem := range before {
		known[problem] = true
	}
	for _, problem := range now {
		if known[problem] {
			continue
		}
		level := slog.LevelInfo
		if problem.Kind.Fault() {
			level = slog.LevelError
		}
		p.opts.Log.Log(ctx, level, "not offered as it should be", "kind", problem.Kind.String(),
			"pool", problem.Pool, "device", problem.Device, "reason", problem.Reason)
	}
}

func count(node string, resources resourceslice.DriverResources) map[string]int {
	n := make(map[string]int, len(resources.Pools))
	for slicePool, pool := range resources.Pools {
		name, _ := device.UserPool(node, slicePool)
		n[name] = 0
		for _, s := range pool.Slices {
			n[name] += len(s.Devices)
		}
	}
	return n
}

func total(n map[string]int) int {
	sum := 0
	for _, devices := range n {
		sum += devices
	}
	return sum
}
