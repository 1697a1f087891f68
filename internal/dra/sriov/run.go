// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/rescan"
	"github.com/weftnet/weft/internal/host/kernel"
)

const (
	// quiet is how long signals are collected before the next look, at least: making VFs, or
	// starting a pod, gives dozens at once.
	quiet = 250 * time.Millisecond
	// share bounds the part of the time that looking may take, to one in share+1.
	share = 10
	// settleFor is how long VFs that were just made are awaited: their drivers and links come later.
	settleFor = 10 * time.Second
	// firstRetry and lastRetry bound the pauses between attempts at what the kernel refused.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// runner is the state of one Run; only its goroutine uses it.
type runner struct {
	*Manager

	publish   func([]device.Device)
	published []Device // nil before the first time
	problems  rescan.Problems
	busy      map[kernel.PCIAddr]int    // PFs whose VFs are being made now, and how many
	fresh     map[kernel.PCIAddr]*fresh // those, and PFs whose VFs were made and are awaited
	retries   map[kernel.PCIAddr]retry
	working   sync.WaitGroup

	finished map[kernel.PCIAddr]error // of those that are busy; guarded by mu
}

// fresh is the wait for the VFs of a PF.
type fresh struct {
	until time.Time
	come  map[kernel.PCIAddr]bool // VFs that had a link once, or vfio
}

type retry struct {
	want  int // the number of VFs that was refused: another one is tried at once
	at    time.Time
	pause time.Duration
	err   error
}

// Run publishes the VFs at once, and again whenever something about them changed. VFs that Weft has
// just made are published when they have their links, at the latest after settleFor.
func (m *Manager) Run(ctx context.Context, publish func([]device.Device)) error {
	r := &runner{
		Manager: m, publish: publish,
		busy: map[kernel.PCIAddr]int{}, fresh: map[kernel.PCIAddr]*fresh{}, retries: map[kernel.PCIAddr]retry{},
		finished: map[kernel.PCIAddr]error{},
	}
	r.working.Go(func() { m.watch(ctx) })
	defer r.working.Wait()
	for {
		start := time.Now()
		due := r.pass(start)
		took := time.Since(start)
		if !m.signal.Await(ctx, time.Until(due), max(quiet, share*took)) {
			return nil
		}
	}
}

// watch has the kernel's signals cause a look. Without them Interval does.
func (m *Manager) watch(ctx context.Context) {
	rescan.Follow(ctx, m.signal, m.conf.Kernel.Watch, func(err error) {
		m.conf.Log.Warn("changes of network devices are seen late", "interval", m.conf.Interval, "error", err)
	})
}

// pass looks at everything once, and says when to look again at the latest.
func (r *runner) pass(now time.Time) time.Time {
	spec := r.configured()
	if !spec.Enabled {
		r.report(nil)
		r.publishIfChanged([]Device{})
		return now.Add(r.conf.Interval)
	}
	start := time.Now()
	functions, err := r.conf.Kernel.Functions()
	inv := sorted(functions)
	r.conf.Observe(inv.count, time.Since(start))
	problems := map[string]error{}
	if err != nil {
		problems[""] = fmt.Errorf("scan PCI devices: %w", err)
		if len(functions) == 0 && r.published != nil {
			// sysfs could not be read at all: that is no reason to take all devices away.
			r.report(problems)
			return now.Add(r.conf.Interval)
		}
	}
	r.provision(spec, inv, now, problems)
	held := r.settle(spec, inv, now, problems)
	r.report(problems)
	r.publishIfChanged(inv.devices(held))
	return r.due(now)
}

func (r *runner) due(now time.Time) time.Time {
	due := now.Add(r.conf.Interval)
	sooner := func(at time.Time) {
		if at.After(now) && at.Before(due) {
			due = at
		}
	}
	for _, f := range r.fresh {
		sooner(f.until)
	}
	for _, t := range r.retries {
		sooner(t.at)
	}
	return due
}

func (r *runner) publishIfChanged(devices []Device) {
	if r.published != nil && slices.Equal(r.published, devices) {
		return
	}
	r.published = devices
	all := make([]device.Device, len(devices))
	for i, d := range devices {
		all[i] = d
	}
	r.publish(all)
}

// report tells of each problem once, and of its end.
func (r *runner) report(problems map[string]error) {
	r.problems.Tell(problems, func(name string, err error) {
		if err != nil {
			r.conf.Log.Warn("a physical function is not as configured", "pf", name, "error", err)
		} else {
			r.conf.Log.Info("a physical function is as configured again", "pf", name)
		}
		r.conf.Report(name, err)
	})
}
