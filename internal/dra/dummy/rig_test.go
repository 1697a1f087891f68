// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is the links of a host.
type host struct {
	mu       sync.Mutex
	links    []kernel.Link
	index    int
	module   bool             // making the first dummy link makes dummy0 as well
	fail     map[string]error // by method
	crash    string           // the method after which nothing works
	crashed  bool
	watchers map[*func()]bool
}

func newHost(links ...kernel.Link) *host {
	h := &host{index: 1, fail: map[string]error{}, watchers: map[*func()]bool{}}
	for _, l := range links {
		h.index++
		l.Index = h.index
		h.links = append(h.links, l)
	}
	return h
}

var errCrash = fmt.Errorf("crashed")

// do is one call of a method.
func (h *host) do(method string, f func() error) error {
	h.mu.Lock()
	if h.crashed {
		h.mu.Unlock()
		return errCrash
	}
	err := h.fail[method]
	if err == nil {
		err = f()
	}
	h.crashed = method == h.crash
	watchers := h.watchers
	h.mu.Unlock()
	if method != "Links" {
		for w := range watchers {
			(*w)()
		}
	}
	if h.crash == method {
		return errCrash
	}
	return err
}

func (h *host) at(index int) (*kernel.Link, error) {
	for i := range h.links {
		if h.links[i].Index == index {
			return &h.links[i], nil
		}
	}
	return nil, kernel.ErrNoLink
}

func (h *host) taken(name string) bool {
	return slices.ContainsFunc(h.links, func(l kernel.Link) bool { return l.Name == name || slices.Contains(l.AltNames, name) })
}

func (h *host) add(name string) kernel.Link {
	h.index++
	l := kernel.Link{Name: name, Index: h.index, Kind: "dummy", MTU: 1500, MAC: net.HardwareAddr{6, 0, 0, 0, 0, byte(h.index)}}
	h.links = append(h.links, l)
	return l
}

func (h *host) Links(kernel.Namespace) (links []kernel.Link, err error) {
	err = h.do("Links", func() error {
		links = slices.Clone(h.links)
		return nil
	})
	return links, err
}

func (h *host) AddDummy(_ kernel.Namespace, name string) (link kernel.Link, err error) {
	err = h.do("AddDummy", func() error {
		if h.module {
			h.module = false
			h.add("dummy0")
		}
		if h.taken(name) {
			return fs.ErrExist
		}
		link = h.add(name)
		return nil
	})
	return link, err
}

func (h *host) Restore(_ kernel.Namespace, index int, want kernel.LinkState) (link kernel.Link, err error) {
	err = h.do("Restore", func() error {
		l, err := h.at(index)
		if err != nil {
			return err
		}
		l.AltNames, l.MAC, l.MTU, l.Up = want.AltNames, want.MAC, want.MTU, want.Up
		if l.Name != want.Name && h.taken(want.Name) {
			return &kernel.ClashError{Name: want.Name}
		}
		l.Name, link = want.Name, *l
		link.Name = want.Name
		return nil
	})
	return link, err
}

func (h *host) Rename(_ kernel.Namespace, index int, name string) error {
	return h.do("Rename", func() error {
		l, err := h.at(index)
		if err != nil {
			return err
		}
		if h.taken(name) {
			return &kernel.ClashError{Name: name}
		}
		l.Name = name
		return nil
	})
}

func (h *host) Remove(_ kernel.Namespace, index int) error {
	return h.do("Remove", func() error {
		if _, err := h.at(index); err != nil {
			return err
		}
		h.links = slices.DeleteFunc(h.links, func(l kernel.Link) bool { return l.Index == index })
		return nil
	})
}

func (h *host) Watch(ctx context.Context, changed func()) error {
	h.mu.Lock()
	h.watchers = map[*func()]bool{&changed: true}
	h.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// change changes the host as somebody else would.
func (h *host) change(f func()) {
	_ = h.do("change", func() error { f(); return nil })
}

// names are the links by kind and name.
func (h *host) names() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, l := range h.links {
		all = append(all, l.Kind+":"+l.Name)
	}
	return strings.Join(all, " ")
}

func bridge(name string) kernel.Link { return kernel.Link{Kind: "bridge", Name: name} }

func foreignDummy(name string) kernel.Link {
	return kernel.Link{Kind: "dummy", Name: name, MAC: net.HardwareAddr{2, 1, 1, 1, 1, 1}}
}

// rig runs a manager on a host.
type rig struct {
	*Manager
	host *host

	mu        sync.Mutex
	published []string
	problems  map[string]string
	prepared  []string
}

func newRig(h *host, count int) *rig {
	r := &rig{host: h, problems: map[string]string{}}
	r.Manager = New(Config{
		Spec: v2alpha1.DummyConfig{Enabled: true, Count: count}, Kernel: h, Log: slog.New(slog.DiscardHandler),
		Prepared: func() []string {
			r.mu.Lock()
			defer r.mu.Unlock()
			return slices.Clone(r.prepared)
		},
		Report: func(name string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if delete(r.problems, name); err != nil {
				r.problems[name] = err.Error()
			}
		},
	})
	return r
}

func (r *rig) publish(devices []device.Device) {
	var names []string
	for _, d := range devices {
		names = append(names, d.Name())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published = append(r.published, strings.Join(names, " "))
}

func (r *rig) state() (published []string, problems map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.published), r.problems
}

func (r *rig) setPrepared(names ...string) {
	r.mu.Lock()
	r.prepared = names
	r.mu.Unlock()
	r.Rescan()
}
