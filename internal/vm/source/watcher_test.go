// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
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

// What was dropped of an agent that is away does not come back when the machine is paused, nor when it
// runs again; only the agent brings it.
func TestDroppedStaysDropped(t *testing.T) {
	fails := func() ([]byte, uint32) { return libvirttest.Failure(86, "QEMU guest agent is not connected"), 1 }
	for name, goes := range map[string]func(*libvirttest.Fake){
		"its channel is closed": func(f *libvirttest.Fake) { f.XML = libvirttest.XML("ns_vm", "disconnected") },
		"it fails":              func(f *libvirttest.Fake) { f.Guest = fails },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := libvirttest.New("ns_vm")
				good, xml := f.Guest, f.XML
				look := watching(t, f)
				look()
				gone := func(when string) {
					t.Helper()
					f.Happens()
					<-time.After(usualGrace / 2)
					if s := look(); s.Domain.Agent != vmistatus.AgentDisconnected || s.Dropped.After(time.Now()) || s.Dropped.IsZero() {
						t.Errorf("%s: agent %v, dropped %v", when, s.Domain.Agent, s.Dropped)
					}
				}
				f.Set(func() { goes(f) })
				f.Happens()
				<-time.After(2 * usualGrace)
				gone("gone for long")
				f.Set(func() { f.State = 3 })
				gone("paused")
				<-time.After(time.Hour)
				gone("paused for long")
				f.Set(func() { f.State = 1 })
				gone("it runs again")
				f.Set(func() { f.Guest, f.XML = good, xml })
				f.Happens()
				<-time.After(2 * usualSlow)
				if s := look(); s.Domain.Agent != vmistatus.AgentConnected || !s.Dropped.IsZero() {
					t.Errorf("it is back: agent %v, dropped %v", s.Domain.Agent, s.Dropped)
				}
			})
		})
	}
}

// linkDown changes the machine's definition.
func linkDown(f *libvirttest.Fake) {
	f.Set(func() { f.XML = strings.Replace(f.XML, "<alias", "<link state='down'/><alias", 1) })
	f.Happens()
}

// A guest agent that never answers hides nothing of what libvirt itself says, from the start and later,
// and is asked less and less often: libvirt waits for it as long, for each who asks.
func TestHungAgent(t *testing.T) {
	for name, first := range map[string]bool{"from the start": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := libvirttest.New("ns_vm")
				f.Mute = first
				look := watching(t, f)
				s := look()
				if s.Domain == nil || len(s.Domain.Interfaces) != 1 {
					t.Fatalf("%+v, want what libvirt says", s)
				}
				f.Set(func() { f.Mute = true })
				linkDown(f)
				<-time.After(usualAgent + 2*settle)
				s = look()
				if s.Err != nil || s.Domain.Err != nil || s.Domain.GuestErr == nil || s.Domain.Agent != vmistatus.AgentSilent || (len(s.Domain.Guest) == 0) != first {
					t.Errorf("%+v %+v: want libvirt's data as it is, and the agent's fault beside its last answer", s, s.Domain)
				}
				if s.Domain.Interfaces[0].LinkState != "down" {
					t.Errorf("%+v, want the change of the domain", s.Domain.Interfaces)
				}
				before := f.Asked()
				<-time.After(10 * time.Minute)
				if s = look(); s.Err != nil || s.Domain.Err != nil || s.Domain.Agent != vmistatus.AgentDisconnected || s.At.Before(time.Now().Add(-usualSlow-usualLimit)) {
					t.Errorf("%+v %+v: want libvirt's data as it is, and nothing believed of the agent's", s, s.Domain)
				}
				if n := f.Asked() - before; n > 15 {
					t.Errorf("the agent is asked %d times in ten minutes", n)
				}
				f.Set(func() { f.Mute = false })
				<-time.After(usualSlow + usualAgent + lastRetry)
				if s = look(); s.Domain.Agent != vmistatus.AgentConnected || s.Domain.GuestErr != nil || len(s.Domain.Guest) != 1 {
					t.Errorf("%+v, want the agent's answer", s.Domain)
				}
			})
		})
	}
}

// An agent that only answers with errors is believed for the time of grace and asked often meanwhile; the
// time that a machine is paused does not count.
func TestFailingAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := libvirttest.New("ns_vm")
		look := watching(t, f)
		look()
		<-time.After(usualSlow + time.Second) // it answered, well, longer ago than the grace
		good := f.Guest
		fails := func() ([]byte, uint32) { return libvirttest.Failure(86, "QEMU guest agent is not connected"), 1 }
		f.Set(func() { f.Guest = fails })
		f.Happens()
		<-time.After(2 * settle)
		before := f.Asked()
		<-time.After(usualGrace - 6*settle) // that it is paused is seen within the grace, too
		if s := look(); s.Domain.Agent != vmistatus.AgentSilent || len(s.Domain.Guest) != 1 {
			t.Errorf("an agent that fails for a short time: %+v", s.Domain)
		}
		if n := f.Asked() - before; n < 10 {
			t.Errorf("an agent that fails is asked %d times within the grace", n)
		}
		f.Set(func() { f.State = 3 })
		f.Happens()
		<-time.After(time.Hour)
		if s := look(); s.Domain.Agent != vmistatus.AgentSilent {
			t.Errorf("paused: %v", s.Domain.Agent)
		}
		f.Set(func() { f.State = 1 })
		f.Happens()
		<-time.After(usualGrace + usualSlow)
		if s := look(); s.Domain.Agent != vmistatus.AgentDisconnected || s.Domain.GuestErr == nil {
			t.Errorf("an agent that fails for long: %+v", s.Domain)
		}
		f.Set(func() { f.Guest = good })
		<-time.After(usualSlow)
		if s := look(); s.Domain.Agent != vmistatus.AgentConnected || s.Domain.GuestErr != nil {
			t.Errorf("it answers again: %+v", s.Domain)
		}
	})
}

// What a guest answers does not have its agent asked without end: an answer that is too large is one
// fault, on a connection that stays; one that ends the connection is followed by longer and longer silence.
func TestUnreadableAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		answer []byte
		stays  bool // the connection
		want   string
		least  int // questions in ten minutes
	}{
		"too large":   {make([]byte, maxAgent), true, "is larger than", 5},
		"out of step": {append(libvirttest.U32(nil, maxList+1), make([]byte, 3*word*(maxList+1))...), false, "list of 2049", 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := libvirttest.New("ns_vm")
				f.Guest = func() ([]byte, uint32) { return c.answer, statusOK }
				look := watching(t, f)
				if s := look(); s.Err != nil || s.Domain == nil || s.Domain.GuestErr == nil || !strings.Contains(s.Domain.GuestErr.Error(), c.want) {
					t.Fatalf("%+v %+v, want the agent's fault alone", s, s.Domain)
				}
				<-time.After(2 * usualGrace)
				before, connections := f.Asked(), f.Dialed()
				<-time.After(10 * time.Minute)
				if n := f.Asked() - before; n < c.least || n > 15 {
					t.Errorf("the agent is asked %d times in ten minutes", n)
				}
				if n := f.Dialed() - connections; (n == 0) != c.stays {
					t.Errorf("libvirt is connected to %d times more", n)
				}
				linkDown(f)
				<-time.After(2 * settle)
				if s := look(); s.Domain.Interfaces[0].LinkState != "down" {
					t.Errorf("%+v, want the change that there was an event of", s.Domain.Interfaces)
				}
			})
		})
	}
}

// Events, which a guest can cause, have the machine looked at at once a few times, and then not more
// often than one that has no address.
func TestEventsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := libvirttest.New("ns_vm")
		look := watching(t, f)
		look()
		before := f.Asked()
		for range 600 {
			f.Happens()
			<-time.After(100 * time.Millisecond)
		}
		look()
		if n := f.Asked() - before; n < 10 || n > 20 {
			t.Errorf("a minute of events has the guest asked %d times", n)
		}
	})
}

// Addresses of the guest's own bridges are none that others can reach it by.
func TestHasAddress(t *testing.T) {
	nics := []vmistatus.NIC{{Name: "default", MAC: "02:00:00:00:00:0A"}}
	bridge := vmistatus.GuestInterface{Name: "docker0", MAC: "02:42:00:00:00:01", IPs: []string{"172.17.0.1"}}
	nic := func(ip string) vmistatus.GuestInterface {
		return vmistatus.GuestInterface{Name: "eth0", MAC: "02-00-00-00-00-0a", IPs: []string{ip}}
	}
	for name, c := range map[string]struct {
		domain vmistatus.Domain
		want   bool
	}{
		"a bridge alone": {vmistatus.Domain{Interfaces: nics, Guest: []vmistatus.GuestInterface{nic("fe80::1"), bridge}}, false},
		"the NIC":        {vmistatus.Domain{Interfaces: nics, Guest: []vmistatus.GuestInterface{bridge, nic("10.0.0.5")}}, true},
		"empty MACs":     {vmistatus.Domain{Interfaces: []vmistatus.NIC{{Name: "default"}}, Guest: []vmistatus.GuestInterface{{Name: "sit0", IPs: []string{"10.0.0.5"}}}}, false},
		"a device's MAC that the domain does not tell": {vmistatus.Domain{HostDevices: []vmistatus.HostDevice{{Name: "sr"}}, Guest: []vmistatus.GuestInterface{nic("10.0.0.5")}}, true},
	} {
		if got := (Snapshot{Domain: &c.domain}).hasAddress(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
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
