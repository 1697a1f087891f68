// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/host/kernel"
)

const pf0 kernel.PCIAddr = "0000:03:00.0"

func iface(name string, count int) v2alpha1.SRIOVInterface {
	return v2alpha1.SRIOVInterface{IfName: name, VFCount: count}
}

// later lets time pass until everything that signals cause is done.
func later(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// bubble runs a test of a running manager.
func bubble(t *testing.T, n *node, test func(r *rig), ifaces ...v2alpha1.SRIOVInterface) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, n, ifaces...)
		stop := r.run()
		defer stop()
		synctest.Wait()
		test(r)
	})
}

func (r *rig) expect(what string) {
	r.t.Helper()
	if got := r.last(); got != what {
		r.t.Errorf("published %q, want %q", got, what)
	}
}

func (r *rig) expectProblem(pf string, parts ...string) {
	r.t.Helper()
	got := r.problem(pf)
	if (got == "") != (len(parts) == 0) {
		r.t.Errorf("problem of %q is %q, want %q", pf, got, parts)
	}
	for _, part := range parts {
		if !strings.Contains(got, part) {
			r.t.Errorf("problem of %q is %q, want %q in it", pf, got, part)
		}
	}
}

func (r *rig) expectWrites(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.node.written()); diff != "" {
		r.t.Error(diff)
	}
}

// T-1: everything at once, and nothing again while nothing changes.
func TestPublish(t *testing.T) {
	bubble(t, fixture(), func(r *rig) {
		r.expect(fourVFs)
		later(10 * time.Minute)
		if n, _ := r.count(); n != 1 {
			t.Errorf("published %d times", n)
		}
		r.expectWrites()
	}, iface("ens1f0", 4))
}

// T-2.
func TestMakesVFsAndAwaitsTheirLinks(t *testing.T) {
	n := newNode()
	n.addPF(pf0, "ens1f0", 8)
	n.delay = 300 * time.Millisecond
	bubble(t, n, func(r *rig) {
		r.expect("")
		later(2 * time.Second)
		r.expect(fourVFs)
		r.expectWrites("numvfs 0000:03:00.0 4")
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, published := range r.published {
			for _, d := range published {
				if d.(Device).KernelIfaceName == "" {
					t.Errorf("%s was published before it had its link", d.Name())
				}
			}
		}
	}, iface("ens1f0", 4))
}

// With sriov_drivers_autoprobe=0 no driver comes: the VFs are offered all the same, and it is said.
func TestVFsThatNoDriverTakes(t *testing.T) {
	n := newNode()
	n.addPF(pf0, "ens1f0", 8)
	n.driver = ""
	bubble(t, n, func(r *rig) {
		later(5 * time.Second)
		r.expect("")
		r.expectProblem("ens1f0")
		later(settleFor)
		r.expect("0000-03-00-2= 0000-03-00-3=")
		r.expectProblem("ens1f0", "0000:03:00.2, 0000:03:00.3", "sriov_drivers_autoprobe")
		n.change(func() {
			for id := range 2 {
				n.update(vfAddr(pf0, id), func(f *kernel.Function) { f.Driver = "vfio-pci" })
			}
		})
		later(time.Second)
		r.expectProblem("ens1f0")
	}, iface("ens1f0", 2))
}

// T-3.
func TestOthersVFsAreLeftAlone(t *testing.T) {
	n := newNode()
	n.addPF(pf0, "ens1f0", 8)
	n.makeVFs(pf0, 2)
	bubble(t, n, func(r *rig) {
		later(10 * time.Minute)
		r.expect("0000-03-00-2=ens1f0v0 0000-03-00-3=ens1f0v1")
		r.expectProblem("ens1f0", "ens1f0", "has 2 VFs", "vfCount is 4")
		r.expectWrites()
		if _, reports := r.count(); reports != 1 {
			t.Errorf("reported %d times", reports)
		}
	}, iface("ens1f0", 4))
}

// T-4, and I5.
func TestOnePFDoesNotStopOthers(t *testing.T) {
	n := fixture()
	n.addPF("0000:04:00.0", "ens2f0", 4)
	n.addPF("0000:05:00.0", "ens3f0", 4)
	n.refuse["0000:05:00.0"] = errRefused
	n.addPF("0000:06:00.0", "ens4f0", 0)
	bubble(t, n, func(r *rig) {
		later(time.Second)
		r.expect(fourVFs)
		r.expectProblem("ens9f0", "find interface ens9f0")
		r.expectProblem("ens2f0", "vfCount is 99", "4 VFs at most")
		r.expectProblem("ens3f0", "make 1 VFs of PF 0000:05:00.0", "refused")
		r.expectProblem("ens4f0", "no SR-IOV")
		r.expectProblem("ens1f0")
		if n, _ := r.made.Made("0000:05:00.0"); n != 0 {
			t.Errorf("%d VFs count as Weft's that it could not make", n)
		}
		// It is tried again, ever more slowly, and the problem stays the same one meanwhile.
		later(5 * time.Minute)
		if writes := len(n.written()); writes < 5 || writes > 15 {
			t.Errorf("tried %d times", writes)
		}
		if _, reports := r.count(); reports != 4 {
			t.Errorf("reported %d times", reports)
		}
		n.change(func() { delete(n.refuse, "0000:05:00.0") })
		later(2 * time.Minute)
		r.expectProblem("ens3f0")
		r.expect(fourVFs + " 0000-05-00-2=ens3f0v0")
	}, iface("ens1f0", 4), iface("ens9f0", 4), iface("ens2f0", 99), iface("ens3f0", 1), iface("ens4f0", 1))
}

// A PF whose driver hangs holds up nobody but itself.
func TestHangingPF(t *testing.T) {
	n := fixture()
	n.addPF("0000:04:00.0", "ens2f0", 4)
	bubble(t, n, func(r *rig) {
		release := make(chan any)
		n.change(func() { n.stuck["0000:04:00.0"] = release })
		r.Configure(v2alpha1.SRIOVConfig{Enabled: true, Ifaces: []v2alpha1.SRIOVInterface{iface("ens2f0", 1)}})
		later(time.Hour)
		r.expect(fourVFs)
		n.change(func() { n.away(vfAddr(pf0, 3)) })
		later(time.Second)
		r.expect(strings.TrimSuffix(fourVFs, "ens1f0v3"))
		close(release)
		later(time.Second)
		r.expect(strings.TrimSuffix(fourVFs, "ens1f0v3") + " 0000-04-00-2=ens2f0v0")
		r.expectWrites("numvfs 0000:04:00.0 1")
	})
}

// T-5.
func TestNoSysfs(t *testing.T) {
	n := fixture()
	n.gone = true
	bubble(t, n, func(r *rig) {
		r.expect("")
		r.expectProblem("", fs.ErrNotExist.Error())
		n.change(func() { n.gone = false })
		later(time.Second)
		r.expect(fourVFs)
		r.expectProblem("")
		// What was there is not taken away because it cannot be seen.
		n.change(func() { n.gone = true })
		later(time.Second)
		r.expect(fourVFs)
		r.expectProblem("", fs.ErrNotExist.Error())
	})
}

// T-6 and T-7.
func TestWhatIsNoVF(t *testing.T) {
	n := fixture()
	n.update(vfAddr(pf0, 0), func(f *kernel.Function) { f.Class = 0x020700 })
	n.update(vfAddr(pf0, 1), func(f *kernel.Function) { f.Driver, f.Netdevs = "vfio-pci", nil })
	n.update(vfAddr(pf0, 2), func(f *kernel.Function) { f.Driver, f.Netdevs = "", nil })
	n.functions["0000:01:00.0"] = kernel.Function{Addr: "0000:01:00.0", Class: 0x030000}
	n.scan = errors.New("read class of 0000:09:00.0: input/output error")
	bubble(t, n, func(r *rig) {
		r.expect("0000-03-00-3= 0000-03-00-4= 0000-03-00-5=ens1f0v3")
		r.expectProblem("", "0000:09:00.0")
	})
}

// T-8 and T-9: what the kernel tells is followed within seconds, what it does not tell by the timer.
func TestRescan(t *testing.T) {
	n := fixture()
	bubble(t, n, func(r *rig) {
		n.change(func() {
			n.removeVFs(pf0)
			n.makeVFs(pf0, 5)
			delete(n.functions, vfAddr(pf0, 3))
		})
		later(5 * time.Second)
		r.expect("0000-03-00-2=ens1f0v0 0000-03-00-3=ens1f0v1 0000-03-00-4=ens1f0v2 0000-03-00-6=ens1f0v4")
		n.change(func() { n.update(pf0, func(f *kernel.Function) { f.Netdevs = []string{"ens1f0np0"} }) })
		later(5 * time.Second)
		r.mu.Lock()
		pf := r.published[len(r.published)-1][0].(Device).PFName
		r.mu.Unlock()
		if pf != "ens1f0np0" {
			t.Errorf("pfName %q", pf)
		}
		n.mu.Lock()
		n.removeVFs(pf0) // without a signal
		n.mu.Unlock()
		later(time.Minute)
		r.expect("")
	})
}

// A PF that comes back with no VFs, as after a reload of its driver, gets them again.
func TestPFComesBack(t *testing.T) {
	n := newNode()
	n.addPF(pf0, "ens1f0", 8)
	bubble(t, n, func(r *rig) {
		later(time.Second)
		r.expect(fourVFs)
		n.change(func() {
			n.removeVFs(pf0)
			delete(n.functions, pf0)
			delete(n.links, pf0)
		})
		later(time.Second)
		r.expect("")
		r.expectProblem("ens1f0", "find interface ens1f0")
		n.change(func() { n.addPF(pf0, "ens1f0", 8) })
		later(time.Second)
		r.expect(fourVFs)
		r.expectProblem("ens1f0")
	}, iface("ens1f0", 4))
}

// Decision 3: vfCount may change while nobody uses one of the VFs that Weft made.
func TestVFCountChanges(t *testing.T) {
	first := vfAddr(pf0, 0)
	tests := []struct {
		name string
		use  func(r *rig)
		free func(r *rig)
		says string
	}{
		{
			"claimed", func(r *rig) { r.use(first, "claim a/b has it") }, func(r *rig) { r.use(first, "") },
			"claim a/b has it",
		},
		{
			"away", func(r *rig) { r.node.change(func() { r.node.away(first) }) },
			func(r *rig) { r.node.change(func() { r.node.addLink(first) }) },
			"not in the host's network namespace",
		},
		{
			"vfio", func(r *rig) {
				r.node.change(func() {
					r.node.away(first)
					r.node.update(first, func(f *kernel.Function) { f.Driver = "vfio-pci" })
				})
			}, func(r *rig) {
				r.node.change(func() { r.node.update(first, func(f *kernel.Function) { f.Driver = "" }) })
			},
			"bound to vfio-pci",
		},
		{
			"address", func(r *rig) { r.node.change(func() { r.node.updateLink(first, withAddr("192.0.2.1/24")) }) },
			func(r *rig) { r.node.change(func() { r.node.updateLink(first, withAddr("fe80::1/64")) }) },
			"up with address 192.0.2.1/24",
		},
		{
			"address of one that is down", func(r *rig) {
				r.node.change(func() {
					r.node.updateLink(first, withAddr("192.0.2.1/24"))
					r.node.updateLink(first, func(l *kernel.Link) { l.Up = false })
				})
			},
			func(r *rig) {
				r.node.change(func() { r.node.updateLink(first, func(l *kernel.Link) { l.Addrs = nil }) })
			},
			"down with address 192.0.2.1/24",
		},
		{
			"port", func(r *rig) {
				r.node.change(func() { r.node.updateLink(first, func(l *kernel.Link) { l.Master = "bond0" }) })
			}, func(r *rig) {
				r.node.change(func() { r.node.updateLink(first, func(l *kernel.Link) { l.Master = "" }) })
			},
			"ens1f0v0 is a port of bond0",
		},
		{
			"upper link", func(r *rig) {
				r.node.change(func() { r.node.updateLink(first, func(l *kernel.Link) { l.Uppers = []string{"storage.5"} }) })
			}, func(r *rig) {
				r.node.change(func() { r.node.updateLink(first, func(l *kernel.Link) { l.Uppers = nil }) })
			},
			"ens1f0v0 has storage.5 on top of it",
		},
		{
			"being prepared", func(r *rig) {
				if _, err := r.Inspect(Device{Addr: first}, v2alpha1.DeviceConfig{}); err != nil {
					r.t.Error(err)
				}
			}, func(r *rig) {
				if err := r.Free(r.t.Context(), Device{Addr: first}, v2alpha1.DeviceConfig{}, nil); err != nil {
					r.t.Error(err)
				}
			}, "being prepared",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := newNode()
			n.addPF(pf0, "ens1f0", 8)
			bubble(t, n, func(r *rig) {
				later(time.Second)
				r.expect(fourVFs)
				test.use(r)
				r.Configure(v2alpha1.SRIOVConfig{Enabled: true, Ifaces: []v2alpha1.SRIOVInterface{iface("ens1f0", 2)}})
				later(time.Minute)
				r.expectProblem("ens1f0", test.says, string(pf0))
				r.expectWrites("numvfs 0000:03:00.0 4")
				test.free(r)
				later(time.Minute)
				r.expectProblem("ens1f0")
				r.expect("0000-03-00-2=ens1f0v0 0000-03-00-3=ens1f0v1")
				r.expectWrites("numvfs 0000:03:00.0 4", "numvfs 0000:03:00.0 0", "numvfs 0000:03:00.0 2")
			}, iface("ens1f0", 4))
		})
	}
}

// The number of VFs that Weft made is not what somebody else made of it afterwards.
func TestVFCountOfOthersAfterwards(t *testing.T) {
	n := newNode()
	n.addPF(pf0, "ens1f0", 8)
	bubble(t, n, func(r *rig) {
		later(time.Second)
		n.change(func() {
			n.removeVFs(pf0)
			n.makeVFs(pf0, 3)
		})
		later(time.Minute)
		r.expectProblem("ens1f0", "has 3 VFs")
		r.expectWrites("numvfs 0000:03:00.0 4")
	}, iface("ens1f0", 4))
}

// While the VFs are being changed no claim gets one.
func TestNoClaimWhileVFsChange(t *testing.T) {
	n := newNode()
	n.addPF(pf0, "ens1f0", 8)
	bubble(t, n, func(r *rig) {
		later(time.Second)
		release := make(chan any)
		n.change(func() { n.stuck[pf0] = release })
		r.Configure(v2alpha1.SRIOVConfig{Enabled: true, Ifaces: []v2alpha1.SRIOVInterface{iface("ens1f0", 2)}})
		later(time.Second)
		dev := Device{Addr: vfAddr(pf0, 0)}
		if _, err := r.Inspect(dev, v2alpha1.DeviceConfig{}); err == nil || !strings.Contains(err.Error(), "being changed") {
			t.Errorf("a claim got a VF that is about to go: %v", err)
		}
		close(release)
		later(time.Second)
		if _, err := r.Inspect(dev, v2alpha1.DeviceConfig{}); err != nil {
			t.Error(err)
		}
	}, iface("ens1f0", 4))
}

// A manager that is turned off offers nothing and makes nothing; turned on again it does.
func TestTurnedOff(t *testing.T) {
	n := fixture()
	bubble(t, n, func(r *rig) {
		r.Configure(v2alpha1.SRIOVConfig{Ifaces: []v2alpha1.SRIOVInterface{iface("ens9f0", 4)}})
		later(time.Second)
		r.expect("")
		r.expectProblem("ens9f0")
		r.Configure(v2alpha1.SRIOVConfig{Enabled: true})
		later(time.Second)
		r.expect(fourVFs)
	})
}

// Two names of one PF do not fight about its number of VFs.
func TestPFNamedTwice(t *testing.T) {
	n := fixture()
	n.updateLink(pf0, func(l *kernel.Link) { l.AltNames = []string{"uplink"} })
	bubble(t, n, func(r *rig) {
		later(time.Second)
		r.expectProblem("uplink", "which ens1f0 names already")
		r.expectWrites()
	}, iface("ens1f0", 4), iface("uplink", 2))
}
