// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/internal/vm/libvirttest"
	"github.com/weftnet/weft/vmistatus"
)

// seen runs a watcher on a fake, in a bubble; look gives what is known.
func watching(t *testing.T, f *libvirttest.Fake) (look func() Snapshot) {
	t.Helper()
	var mu sync.Mutex
	var last Snapshot
	w := NewWatcher(Config{
		Dial: func(context.Context) (net.Conn, error) {
			silent := false
			f.Set(func() { silent = f.Silent && f.State == 0 })
			if silent {
				return nil, errors.New("nobody listens")
			}
			return f.Dial(), nil
		},
		URIs: []string{"qemu:///session"}, Domain: "ns_vm", Log: slog.New(slog.DiscardHandler),
		Changed: func(s Snapshot) {
			mu.Lock()
			defer mu.Unlock()
			last = s
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		f.Drop()
		synctest.Wait()
	})
	return func() Snapshot {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

// A guest is asked often while it has no address, and seldom once it has one.
func TestPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := libvirttest.New("ns_vm")
		f.Addresses("127.0.0.1", "fe80::1")
		look := watching(t, f)
		look()
		<-time.After(time.Minute)
		look()
		if f.Asked() < 12 {
			t.Errorf("a guest without address is asked %d times a minute", f.Asked())
		}
		f.Set(func() { f.Addresses("10.0.0.5") })
		<-time.After(usualFast)
		if s := look(); !s.hasAddress() {
			t.Errorf("%+v: the address is not seen", s)
		}
		before := f.Asked()
		<-time.After(10 * usualSlow)
		look()
		if n := f.Asked() - before; n < 9 || n > 11 {
			t.Errorf("a guest with an address is asked %d times in ten of the slow intervals", n)
		}
		before = f.Asked()
		for range 100 { // a storm is one look
			f.Happens()
		}
		<-time.After(2 * settle)
		look()
		if n := f.Asked() - before; n < 1 || n > 3 {
			t.Errorf("a hundred events have the guest asked %d times", n)
		}
	})
}

func TestAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := libvirttest.New("ns_vm")
		look := watching(t, f)
		if s := look(); s.Domain == nil || s.Domain.Agent != vmistatus.AgentConnected {
			t.Fatalf("%+v, want an agent", s)
		}
		// The agent goes: its data is old, then dropped.
		f.Set(func() { f.XML = libvirttest.XML("ns_vm", "disconnected") })
		f.Happens()
		<-time.After(2 * settle)
		if s := look(); s.Domain.Agent != vmistatus.AgentSilent {
			t.Errorf("agent just gone: %v", s.Domain.Agent)
		}
		<-time.After(usualGrace)
		if s := look(); s.Domain.Agent != vmistatus.AgentDisconnected {
			t.Errorf("agent gone for long: %v", s.Domain.Agent)
		}
		// It comes back.
		f.Set(func() { f.XML = libvirttest.XML("ns_vm", "connected") })
		f.Happens()
		<-time.After(2 * settle)
		if s := look(); s.Domain.Agent != vmistatus.AgentConnected {
			t.Errorf("agent back: %v", s.Domain.Agent)
		}
		// A machine that is paused keeps what it said, however long.
		f.Set(func() { f.State = 3 })
		f.Happens()
		<-time.After(time.Hour)
		if s := look(); s.State != Paused || s.Domain.Agent != vmistatus.AgentSilent {
			t.Errorf("paused: %v %v", s.State, s.Domain.Agent)
		}
		f.Set(func() { f.State = 1 })
		f.Happens()
		<-time.After(2 * settle)
		// Libvirt goes.
		f.Set(func() { f.Silent, f.State = true, 0 })
		f.Drop()
		if s := look(); s.Err == nil || s.Domain.Err == nil || s.Domain.Agent != vmistatus.AgentSilent || len(s.Domain.Guest) != 1 {
			t.Errorf("libvirt just gone: %+v", s)
		}
		<-time.After(usualGrace + time.Second)
		if s := look(); s.Domain.Agent != vmistatus.AgentDisconnected {
			t.Errorf("libvirt gone for long: %v", s.Domain.Agent)
		}
		f.Set(func() { f.Silent, f.State = false, 1 })
		<-time.After(lastRetry)
		if s := look(); s.Err != nil || s.Domain.Err != nil || s.Domain.Agent != vmistatus.AgentConnected {
			t.Errorf("libvirt back: %+v", s)
		}
	})
}

// A libvirt that takes a question and never answers costs the time limit, and no goroutine stays.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := libvirttest.New("ns_vm")
		look := watching(t, f)
		look()
		f.Set(func() { f.Silent = true })
		f.Happens()
		<-time.After(settle + usualLimit + time.Second)
		s := look()
		if s.Err == nil || len(s.Domain.Guest) != 1 {
			t.Errorf("%+v, want the fault beside the last answer", s)
		}
		f.Set(func() { f.Silent = false })
		<-time.After(usualLimit + lastRetry)
		if s := look(); s.Err != nil {
			t.Errorf("%v, want it to be asked again", s.Err)
		}
	})
}
