// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/vmistatus"
	"github.com/weftnet/weft/vmistatus/podcache"
)

func update(t *testing.T, s *vmistatus.NetStat, m *vmi, d *vmistatus.Domain) {
	t.Helper()
	if err := s.UpdateStatus(m, d); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, c podcache.Dir, uid types.UID, network string, ips ...string) {
	t.Helper()
	if err := c.Write(uid, network, read(ips...)); err != nil {
		t.Fatal(err)
	}
}

// TestCache has N1, N2, N3's and N11's cache and the cases 10, 33, 34, 36 and 41 of section 6, on
// real files.
func TestCache(t *testing.T) {
	both := []spec{{"prim", "B", "pod", "", ""}, {"sec", "B", "mul", "", ""}}
	domain := nics(d("prim", m1), d("sec", m2))
	setup := func(t *testing.T) (*vmistatus.NetStat, *vmi, podcache.Dir) {
		t.Helper()
		c := podcache.New(t.TempDir())
		return vmistatus.NewNetStat(c), vmiOf(both, nil), c
	}
	shown := func(t *testing.T, m *vmi, want ...string) {
		t.Helper()
		if got := m.Status.Interfaces[0].IPs; !slices.Equal(got, want) {
			t.Errorf("shown %v, want %v", got, want)
		}
	}
	t.Run("N1", func(t *testing.T) {
		s, m, _ := setup(t)
		update(t, s, m, nil)
	})
	t.Run("N2 N3", func(t *testing.T) {
		s, m, c := setup(t)
		write(t, c, m.UID, "prim", p4, p6)
		update(t, s, m, domain)
		shown(t, m, p4, p6)
		if !s.Cached(m, "prim") || s.Cached(m, "sec") {
			t.Error("not what was read is kept")
		}
		if err := c.Remove(m.UID, "prim"); err != nil {
			t.Fatal(err)
		}
		update(t, s, m, domain)
		shown(t, m, p4, p6)
	})
	t.Run("N11", func(t *testing.T) {
		s, m, c := setup(t)
		longer := vmiOf(both, nil)
		longer.UID = m.UID + "4"
		for _, m := range []*vmi{m, longer} {
			write(t, c, m.UID, "prim", p4)
			write(t, c, m.UID, "sec", s4)
			update(t, s, m, domain)
		}
		s.Teardown(m)
		s.Teardown(vmiNamed(""))
		if s.Cached(m, "prim") || s.Cached(m, "sec") {
			t.Error("a torn down machine is still cached")
		}
		if !s.Cached(longer, "prim") || !s.Cached(longer, "sec") {
			t.Error("another machine's cache went with it")
		}
	})
	t.Run("10 the file comes later", func(t *testing.T) {
		s, m, c := setup(t)
		update(t, s, m, domain)
		write(t, c, m.UID, "prim")
		update(t, s, m, domain)
		shown(t, m)
		if s.Cached(m, "prim") {
			t.Error("a file without addresses is kept")
		}
		write(t, c, m.UID, "prim", p4)
		update(t, s, m, domain)
		shown(t, m, p4)
	})
	t.Run("33 34 another pod", func(t *testing.T) {
		s, m, c := setup(t)
		m.Status.NodeName = "a"
		for i, ip := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			m.Status.ActivePods = map[types.UID]string{types.UID("pod-" + ip): "a", "elsewhere": "b"}
			write(t, c, m.UID, "prim", ip)
			update(t, s, m, domain)
			shown(t, m, ip)
			if !s.Cached(m, "prim") {
				t.Errorf("pod %d is not cached", i)
			}
		}
	})
	t.Run("36 who got the status may write to it", func(t *testing.T) {
		s, m, c := setup(t)
		write(t, c, m.UID, "prim", p4)
		update(t, s, m, domain)
		m.Status.Interfaces[0].IPs[0] = "6.6.6.6"
		_ = append(m.Status.Interfaces[0].IPs, "7.7.7.7")
		update(t, s, m, domain)
		shown(t, m, p4)
	})
	t.Run("41 an absent interface is not kept", func(t *testing.T) {
		s, m, c := setup(t)
		write(t, c, m.UID, "sec", s4)
		update(t, s, m, domain)
		if !s.Cached(m, "sec") {
			t.Error("it is not cached before")
		}
		m.Spec.Domain.Devices.Interfaces[1].State = "absent"
		update(t, s, m, domain)
		if s.Cached(m, "sec") || !slices.Equal(m.Status.Interfaces[1].IPs, ips{s4}) {
			t.Errorf("it is cached, or not shown while it is there: %v", m.Status.Interfaces[1])
		}
		m.Spec.Domain.Devices.Interfaces = m.Spec.Domain.Devices.Interfaces[:1]
		update(t, s, m, domain)
	})
	t.Run("an unreadable file", func(t *testing.T) {
		s, m, c := setup(t)
		write(t, c, m.UID, "prim", p4)
		update(t, s, m, domain)
		s.Teardown(m)
		s = vmistatus.NewNetStat(brokenCache{})
		err := s.UpdateStatus(m, domain)
		if err == nil || !strings.Contains(err.Error(), "vmi ns/vm: the pod interface cache of prim cannot be read: broken") {
			t.Errorf("error: %v", err)
		}
		shown(t, m, p4)
	})
	t.Run("nothing is replaced when nothing changed", func(t *testing.T) {
		s, m, _ := setup(t)
		update(t, s, m, domain)
		before := &m.Status.Interfaces[0]
		update(t, s, m, domain)
		if before != &m.Status.Interfaces[0] {
			t.Error("the status was replaced by an equal one")
		}
	})
}

func vmiNamed(uid types.UID) *vmi {
	m := vmiOf(nil, nil)
	m.UID = uid
	return m
}

type brokenCache struct{}

func (brokenCache) Read(types.UID, string) (vmistatus.PodRead, error) {
	return vmistatus.PodRead{}, errors.New("broken")
}

// gate is a cache whose reads wait, so that a teardown can come between.
type gate struct{ reading, goOn chan struct{} }

func (g gate) Read(types.UID, string) (vmistatus.PodRead, error) {
	g.reading <- struct{}{}
	<-g.goOn
	return read(p4), nil
}

// TestTeardownWins is case 48: what was read before a teardown does not come back after it.
func TestTeardownWins(t *testing.T) {
	c := gate{make(chan struct{}), make(chan struct{})}
	s := vmistatus.NewNetStat(c)
	m := vmiOf([]spec{{"prim", "B", "pod", "", ""}}, nil)
	done := make(chan error)
	go func() { done <- s.UpdateStatus(m.DeepCopy(), nics(d("prim", m1))) }()
	<-c.reading
	s.Teardown(m)
	close(c.goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s.Cached(m, "prim") {
		t.Error("the torn down machine is cached again")
	}
}

// TestConcurrentUse has value only under the race detector.
func TestConcurrentUse(t *testing.T) {
	root := t.TempDir()
	c := podcache.New(root)
	s := vmistatus.NewNetStat(c)
	all := []spec{{"prim", "B", "pod", "", ""}, {"sec", "B", "mul", "", ""}}
	write(t, c, "vmi-1", "prim", p4)
	domain := nics(d("prim", m1), d("sec", m2))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			m := vmiOf(all, nil)
			for range 50 {
				if err := s.UpdateStatus(m, domain); err != nil {
					t.Error(err)
				}
				if i == 0 {
					s.Teardown(m)
				}
				if got := m.Status.Interfaces[0].IP; got != p4 {
					t.Errorf("shown %q", got)
				}
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(filepath.Join(root, "vmi-1", "prim")); errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// An address that a status lists first is ipAddress of it, whoever wrote it: only that is equal, and
// UpdateStatus mends the rest.
func TestFirstAddressIsMended(t *testing.T) {
	s := vmistatus.NewNetStat(nil)
	broken := guestOnly("wg0", "", g6, g4)
	broken.IP = g4
	m := vmiOf(nil, []entry{broken})
	domain := nics()
	domain.Guest = []guest{g("wg0", "", g6, g4)}
	update(t, s, m, domain)
	compare(t, []entry{guestOnly("wg0", "", g4, g6)}, m.Status.Interfaces)
}

// A file that has texts and no address in them is read again, as one that has none.
func TestOnlyAddressesAreKept(t *testing.T) {
	for name, r := range map[string]vmistatus.PodRead{
		"empty":       {PodIPs: ips{""}},
		"no address":  {PodIP: "pending", PodIPs: ips{"pending"}},
		"unspecified": {PodIP: "0.0.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := podcache.New(t.TempDir())
			s, m := vmistatus.NewNetStat(c), vmiOf([]spec{{"prim", "B", "pod", "", ""}}, nil)
			for _, r := range []vmistatus.PodRead{r, read(p4)} {
				if err := c.Write(m.UID, "prim", r); err != nil {
					t.Fatal(err)
				}
				update(t, s, m, nics(d("prim", m1)))
			}
			compare(t, []entry{nic("prim", m1, dom, "", p4)}, m.Status.Interfaces)
			if !s.Cached(m, "prim") {
				t.Error("the address is not kept")
			}
		})
	}
}
