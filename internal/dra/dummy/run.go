// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/rescan"
	"github.com/weftnet/weft/internal/host/kernel"
)

const (
	// quiet is how long signals are collected before the next look.
	quiet = 250 * time.Millisecond
	// probe is the link that Run makes and removes at once, to know whether the kernel has dummy links.
	probe = "weft-try-dummy"
)

// runner is the state of one Run; only its goroutine uses it.
type runner struct {
	*Manager

	publish   func([]device.Device)
	published []string // nil before the first time
	problems  rescan.Problems
	able      bool // the kernel makes dummy links
}

// Run publishes the devices at once, and again when the configuration or the host's links changed.
func (m *Manager) Run(ctx context.Context, publish func([]device.Device)) error {
	r := &runner{Manager: m, publish: publish}
	var watching sync.WaitGroup
	watching.Go(func() { m.watch(ctx) })
	defer watching.Wait()
	for {
		r.pass()
		if !m.signal.Await(ctx, m.conf.Interval, quiet) {
			return nil
		}
	}
}

// watch has the kernel's signals cause a look. Without them Interval does.
func (m *Manager) watch(ctx context.Context) {
	rescan.Follow(ctx, m.signal, m.conf.Kernel.Watch, func(err error) {
		m.conf.Log.Warn("changes of links are seen late", "interval", m.conf.Interval, "error", err)
	})
}

// pass looks at everything once.
func (r *runner) pass() {
	spec, prepared := r.configured(), r.conf.Prepared()
	problems := map[string]error{}
	offered := r.offered(spec, prepared, problems)
	r.report(problems)
	if r.published != nil && slices.Equal(r.published, offered) {
		return
	}
	r.published = offered
	devices := make([]device.Device, len(offered))
	for i, name := range offered {
		devices[i] = Device{IfName: name}
	}
	r.publish(devices)
}

// offered are the names of the devices: those of the configuration that can be made, and those that
// a claim has.
func (r *runner) offered(spec v2alpha1.DummyConfig, prepared []string, problems map[string]error) []string {
	names := append([]string{}, prepared...)
	if spec.Enabled && spec.Count > 0 {
		names = append(names, r.free(spec.Count, prepared, problems)...)
	}
	slices.SortFunc(names, byNumber)
	return slices.Compact(names)
}

// free are the names that no link of the host stands in the way of.
func (r *runner) free(count int, prepared []string, problems map[string]error) []string {
	if err := r.try(); err != nil {
		problems[""] = err
		return nil
	}
	links, err := r.conf.Kernel.Links(kernel.Namespace{})
	if err != nil {
		problems[""] = fmt.Errorf("list the host's links: %w", err)
		return r.published
	}
	taken := map[string]kernel.Link{}
	for _, link := range links {
		if link.Kind == kind && slices.ContainsFunc(link.AltNames, isMark) {
			continue // Weft's: of a claim that is being prepared or freed
		}
		for _, name := range append([]string{link.Name}, link.AltNames...) {
			taken[name] = link
		}
	}
	var names []string
	for i := range count {
		name := kind + strconv.Itoa(i)
		if link, ok := taken[name]; ok && !slices.Contains(prepared, name) {
			problems[name] = fmt.Errorf("%s is not offered: the host has a link of that name (%s, kind %s, index %d) that Weft did not make",
				name, link.Name, link.Kind, link.Index)
			continue
		}
		names = append(names, name)
	}
	return names
}

// try finds out, once, whether the kernel makes dummy links. It also has the kernel load the module
// now, which may make a dummy0 of its own: that is seen before anybody was offered the name.
func (r *runner) try() error {
	if r.able {
		return nil
	}
	host := kernel.Namespace{}
	link, err := r.conf.Kernel.AddDummy(host, probe)
	if err != nil {
		links, listErr := r.conf.Kernel.Links(host)
		i := slices.IndexFunc(links, func(l kernel.Link) bool { return l.Name == probe && l.Kind == kind })
		if listErr != nil || i < 0 {
			return errors.Join(fmt.Errorf("try to make a dummy link: %w", err), listErr)
		}
		link = links[i] // left by a crash
	}
	if err := r.conf.Kernel.Remove(host, link.Index); err != nil {
		return fmt.Errorf("remove the dummy link %s again: %w", probe, err)
	}
	r.able = true
	return nil
}

// byNumber sorts dummy2 before dummy10.
func byNumber(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// report tells of each problem once, and of its end.
func (r *runner) report(problems map[string]error) {
	r.problems.Tell(problems, func(name string, err error) {
		if err != nil {
			r.conf.Log.Warn("dummy links are not offered as configured", "device", name, "error", err)
		} else {
			r.conf.Log.Info("dummy links are offered as configured again", "device", name)
		}
		r.conf.Report(name, err)
	})
}
