// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package dummy

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/host/kernel"
)

// bubble runs a test of a running manager.
func bubble(t *testing.T, h *host, count int, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(h, count)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx, r.publish) }()
		synctest.Wait()
		test(r)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func later() {
	<-time.After(5 * time.Second)
	synctest.Wait()
}

func (r *rig) expect(t *testing.T, want ...string) {
	t.Helper()
	got, _ := r.state()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func (r *rig) expectProblem(t *testing.T, name, says string) {
	t.Helper()
	_, problems := r.state()
	if got := problems[name]; (got == "") != (says == "") || !strings.Contains(got, says) {
		t.Errorf("problem of %q is %q, want %q", name, got, says)
	}
}

// Offered at once, with no link of theirs on the host; the configuration is followed (T-57).
func TestPublish(t *testing.T) {
	h := newHost(bridge("br0"))
	bubble(t, h, 3, func(r *rig) {
		if got := h.names(); got != "bridge:br0" {
			t.Errorf("the host has %s", got)
		}
		r.Configure(v2alpha1.DummyConfig{Enabled: true, Count: 5})
		later()
		r.setPrepared("dummy4")
		r.Configure(v2alpha1.DummyConfig{Enabled: true, Count: 2})
		later()
		r.setPrepared()
		later()
		r.Configure(v2alpha1.DummyConfig{Count: 2})
		later()
		r.Configure(v2alpha1.DummyConfig{Enabled: true, Count: 11})
		later()
		r.expect(t, "dummy0 dummy1 dummy2", "dummy0 dummy1 dummy2 dummy3 dummy4", "dummy0 dummy1 dummy4", "dummy0 dummy1", "",
			"dummy0 dummy1 dummy2 dummy3 dummy4 dummy5 dummy6 dummy7 dummy8 dummy9 dummy10")
	})
}

// A name that the host uses is not offered, as long as it is used; a prepared device is.
func TestTakenNames(t *testing.T) {
	h := newHost(bridge("dummy1"), foreignDummy("dummy2"), kernel.Link{Kind: "veth", Name: "x", AltNames: []string{"dummy3"}})
	bubble(t, h, 5, func(r *rig) {
		r.expectProblem(t, "dummy1", "kind bridge")
		r.expectProblem(t, "dummy2", "kind dummy")
		r.expectProblem(t, "dummy3", "x, kind veth")
		r.expectProblem(t, "dummy0", "")
		r.setPrepared("dummy2")
		later()
		h.change(func() { h.links = h.links[1:] })
		later()
		r.expectProblem(t, "dummy1", "")
		r.expect(t, "dummy0 dummy4", "dummy0 dummy2 dummy4", "dummy0 dummy1 dummy2 dummy4")
	})
}

// The kernel's module makes a dummy0 when the first link is made. That is not offered then.
func TestModuleMakesDummy0(t *testing.T) {
	h := newHost()
	h.module = true
	bubble(t, h, 2, func(r *rig) {
		r.expect(t, "dummy1")
		r.expectProblem(t, "dummy0", "did not make")
		if got := h.names(); got != "dummy:dummy0" {
			t.Errorf("the host has %s", got)
		}
	})
}

func TestKernelWithoutDummies(t *testing.T) {
	h := newHost()
	h.fail["AddDummy"] = syscall.EOPNOTSUPP
	bubble(t, h, 2, func(r *rig) {
		r.expect(t, "")
		r.expectProblem(t, "", syscall.EOPNOTSUPP.Error())
		h.change(func() { delete(h.fail, "AddDummy") })
		later()
		r.expect(t, "", "dummy0 dummy1")
	})
}

// What a crash left of the try is removed by the next.
func TestProbeIsLeft(t *testing.T) {
	h := newHost(foreignDummy(probe))
	bubble(t, h, 1, func(r *rig) {
		r.expect(t, "dummy0")
		if got := h.names(); got != "" {
			t.Errorf("the host has %s", got)
		}
	})
}

// A claim's whole life, while the manager runs: its own link is never in the way.
func TestLife(t *testing.T) {
	h := newHost(bridge("br0"))
	bubble(t, h, 2, func(r *rig) {
		dev, saved := prepare(t, r, Device{IfName: "dummy1"})
		later()
		if got := h.names(); got != "bridge:br0 dummy:dummy1" {
			t.Errorf("the host has %s", got)
		}
		got := dev.(Device)
		if got.HWAddr == "" || got.MTU != 1500 || got.Flags != "broadcast" {
			t.Errorf("prepared %+v", got)
		}
		link, err := r.Link(kernel.Namespace{}, dev, saved)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.Home(dev, saved), kernel.LinkState{Name: link.Name, AltNames: link.AltNames, MAC: link.MAC, MTU: link.MTU}); diff != "" {
			t.Error(diff)
		}
		// The sandbox dies, and the link with it: made again, it has the same address.
		h.change(func() { h.links = h.links[:1] })
		again, err := r.Setup(t.Context(), dev, v2alpha1.DeviceConfig{}, saved)
		if err != nil || again != dev {
			t.Errorf("%+v, %v; want %+v", again, err, dev)
		}
		for range 2 {
			if err := r.Free(t.Context(), dev, v2alpha1.DeviceConfig{}, saved); err != nil {
				t.Error(err)
			}
		}
		later()
		if got := h.names(); got != "bridge:br0" {
			t.Errorf("the host has %s", got)
		}
		r.expect(t, "dummy0 dummy1")
	})
}

func prepare(t *testing.T, r *rig, d Device) (device.Device, device.Saved) {
	t.Helper()
	saved, err := r.Inspect(d, v2alpha1.DeviceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := r.Setup(t.Context(), d, v2alpha1.DeviceConfig{}, saved)
	if err != nil {
		t.Fatal(err)
	}
	return dev, saved
}

// T-38: a link that has the name is no claim's to take, whatever its kind, before Inspect or after.
func TestForeignLink(t *testing.T) {
	for _, link := range []kernel.Link{bridge("dummy1"), foreignDummy("dummy1")} {
		h := newHost(link)
		r := newRig(h, 3)
		d := Device{IfName: "dummy1"}
		if _, err := r.Inspect(d, v2alpha1.DeviceConfig{}); err == nil || !strings.Contains(err.Error(), "kind "+link.Kind) {
			t.Errorf("inspect: %v", err)
		}
		saved := device.Saved(`{"mark":"weft-00000001","mac":"AgAAAAAB"}`)
		if _, err := r.Setup(t.Context(), d, v2alpha1.DeviceConfig{}, saved); err == nil {
			t.Error("set up over a foreign link")
		}
		for _, s := range []device.Saved{saved, nil} {
			if err := r.Free(t.Context(), d, v2alpha1.DeviceConfig{}, s); err != nil {
				t.Error(err)
			}
		}
		if got := h.names(); got != link.Kind+":dummy1" {
			t.Errorf("the host has %s", got)
		}
	}
}

// A link of that name that comes between the look and the last step.
func TestForeignLinkInBetween(t *testing.T) {
	h := newHost()
	h.fail["Rename"] = &kernel.ClashError{Name: "dummy1"}
	r := newRig(h, 3)
	saved, err := r.Inspect(Device{IfName: "dummy1"}, v2alpha1.DeviceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Setup(t.Context(), Device{IfName: "dummy1"}, v2alpha1.DeviceConfig{}, saved)
	if _, ok := errors.AsType[*kernel.ClashError](err); !ok {
		t.Errorf("%v", err)
	}
	if got := h.names(); got != "" {
		t.Errorf("the host has %s", got)
	}
}

// I2: after a crash behind any step Setup completes, and Free leaves nothing.
func TestCrash(t *testing.T) {
	for _, method := range []string{"AddDummy", "Restore", "Rename", "Remove"} {
		for _, then := range []string{"setup", "free"} {
			t.Run(method+" then "+then, func(t *testing.T) {
				h := newHost(bridge("br0"))
				r := newRig(h, 3)
				d := Device{IfName: "dummy1"}
				saved, err := r.Inspect(d, v2alpha1.DeviceConfig{})
				if err != nil {
					t.Fatal(err)
				}
				h.crash = method
				_, err = r.Setup(t.Context(), d, v2alpha1.DeviceConfig{}, saved)
				if method != "Remove" && !errors.Is(err, errCrash) {
					t.Fatalf("no crash: %v", err)
				}
				if method == "Remove" {
					if err := r.Free(t.Context(), d, v2alpha1.DeviceConfig{}, saved); !errors.Is(err, errCrash) {
						t.Fatalf("no crash: %v", err)
					}
				}
				h.crash, h.crashed = "", false
				want := "bridge:br0"
				if then == "setup" {
					want += " dummy:dummy1"
					_, err = r.Setup(t.Context(), d, v2alpha1.DeviceConfig{}, saved)
				} else {
					err = r.Free(t.Context(), d, v2alpha1.DeviceConfig{}, saved)
				}
				if got := h.names(); err != nil || got != want {
					t.Errorf("the host has %s, %v; want %s", got, err, want)
				}
			})
		}
	}
}

// A claim that another driver prepared is known by name and MAC address together.
func TestAnotherDriversClaim(t *testing.T) {
	h := newHost(foreignDummy("dummy1"))
	r := newRig(h, 3)
	dev, err := r.RestoreDevice(json.RawMessage(`{"Name":"dummy1","HWAddr":"02:01:01:01:01:01","MTU":1500,"Flags":"up|broadcast"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Setup(t.Context(), dev, v2alpha1.DeviceConfig{}, nil); err != nil || got.(Device).HWAddr != "02:01:01:01:01:01" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := r.Free(t.Context(), dev, v2alpha1.DeviceConfig{}, nil); err != nil || h.names() != "" {
		t.Errorf("the host has %s, %v", h.names(), err)
	}
	// After a reboot it is made with that address.
	if got, err := r.Setup(t.Context(), dev, v2alpha1.DeviceConfig{}, nil); err != nil || got.(Device).HWAddr != "02:01:01:01:01:01" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCheck(t *testing.T) {
	d := Device{IfName: "dummy1"}
	if err := d.Check(v2alpha1.DeviceConfig{VLAN: 5}); err == nil || !strings.Contains(err.Error(), "vlan 5") {
		t.Errorf("%v", err)
	}
	if err := d.Check(v2alpha1.DeviceConfig{PodIfName: "net1"}); err != nil {
		t.Error(err)
	}
}

// T-18.
func TestMatches(t *testing.T) {
	d, x := Device{IfName: "dummy10"}, []string{"x"}
	tests := []struct {
		name   string
		filter *v2alpha1.DeviceFilter
		want   bool
	}{
		{"none", nil, false},
		{"empty", &v2alpha1.DeviceFilter{}, true},
		{"ifNames", &v2alpha1.DeviceFilter{IfNames: []string{"x", "dummy10"}}, true},
		{"ifNames is no prefix", &v2alpha1.DeviceFilter{IfNames: []string{"dummy1"}}, false},
		{"pfNames", &v2alpha1.DeviceFilter{PFNames: x}, true},
		{"parentIfNames", &v2alpha1.DeviceFilter{ParentIfNames: x}, false},
		{"pciAddrs", &v2alpha1.DeviceFilter{PCIAddrs: x}, false},
		{"vendorIDs", &v2alpha1.DeviceFilter{VendorIDs: x}, false},
		{"deviceIDs", &v2alpha1.DeviceFilter{DeviceIDs: x}, false},
		{"drivers", &v2alpha1.DeviceFilter{Drivers: x}, false},
	}
	for _, test := range tests {
		if got := d.Matches(test.filter); got != test.want {
			t.Errorf("%s: matches %t, want %t", test.name, got, test.want)
		}
	}
}

func TestDevice(t *testing.T) {
	d := Device{IfName: "dummy1"}
	want := device.Attributes{}
	for _, name := range []resourceapi.QualifiedName{"ifName", "kernelIfName"} {
		want[name] = resourceapi.DeviceAttribute{StringValue: new("dummy1")}
	}
	if diff := cmp.Diff(want, d.Attributes()); diff != "" {
		t.Error(diff)
	}
	made := Device{IfName: "dummy1", HWAddr: "02:00:00:00:00:01", MTU: 1500, Flags: "up"}
	if got := d.Merge(made); got != made {
		t.Errorf("merged %+v", got)
	}
	const text = `{"Name":"dummy1","HWAddr":"02:00:00:00:00:01","MTU":1500,"Flags":"up"}`
	if got, err := json.Marshal(made); err != nil || string(got) != text {
		t.Errorf("%s, %v", got, err)
	}
}

// Whatever is in a status: no panic, and what is accepted is stable and a name for a link.
func FuzzRestoreDevice(f *testing.F) {
	for _, text := range []string{
		`{"Name":"dummy1","HWAddr":"02:00:00:00:00:01","MTU":1500,"Flags":"up"}`, `{"name":"dummy0","mtu":"1500","flags":3}`,
		`{"Name":".."}`, `{"Name":"a/b"}`, `null`, `{"Name":"dummy1234567890x"}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := restore(json.RawMessage(text))
		if err != nil {
			return
		}
		if n := d.Name(); n == "" || len(n) > 15 || n == "." || n == ".." || strings.ContainsAny(n, "/: \x00") {
			t.Fatalf("name %q", n)
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		second, err := restore(again)
		if err != nil || second != d {
			t.Fatalf("%v, %v after %v", second, err, d)
		}
	})
}
