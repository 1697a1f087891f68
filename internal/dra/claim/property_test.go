// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// model is what the node should look like, by what the kubelet and a tester know.
type model struct {
	claims   []*resourceapi.ResourceClaim
	prepared map[types.UID]bool // the kubelet was told so, and has not asked to free it since
	unsure   map[types.UID]bool // a call failed or was cut off: the claim may be prepared or not
}

// wanted gives the VLANs that must be there, and those that may.
func (m *model) wanted() (must, may map[string]int32) {
	must, may = map[string]int32{}, map[string]int32{}
	for i, c := range m.claims {
		for j, r := range c.Status.Allocation.Devices.Results {
			vlan := int32(10*(i+1) + j)
			if m.prepared[c.UID] {
				must[r.Device] = vlan
			} else if m.unsure[c.UID] {
				may[r.Device] = vlan
			}
		}
	}
	return must, may
}

// TestAnythingInAnyOrder has claims that want one another's devices prepared, freed, cut off at any
// step, restarted, rebooted and refused by hardware and API: I1 to I3 hold after each, and in the
// end the host is as it was.
func TestAnythingInAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &rig{dir: t.TempDir(), boot: "boot-0", hw: newHardware(), api: newCluster(), log: io.Discard}
		r.start(t)
		defer func() { _ = r.Close() }()
		m := &model{prepared: map[types.UID]bool{}, unsure: map[types.UID]bool{}}
		before := map[string]int32{}
		for i := range vfs {
			before[vfName(i)] = int32(100 * (i + 1)) // what an administrator has set
		}
		maps.Copy(r.hw.vlan, before)
		for i, devices := range [][]int{{0, 1}, {1, 2}, {3}, {2, 3}} {
			config := map[string]string{}
			for j := range devices {
				config[fmt.Sprintf("net%d", j)] = fmt.Sprintf(`{"vlan":%d}`, 10*(i+1)+j)
			}
			c := newClaim(fmt.Sprintf("c%d", i), fmt.Sprintf("p%d", i), config, devices...)
			m.claims = append(m.claims, c)
			r.api.add(c)
		}
		boots := 0
		rt.Repeat(map[string]func(*rapid.T){
			"prepare": func(rt *rapid.T) {
				c := rapid.SampledFrom(m.claims).Draw(rt, "claim")
				m.prepare(r, c, func() error { return r.prepareNow(t.Context(), c) })
			},
			"unprepare": func(rt *rapid.T) {
				c := rapid.SampledFrom(m.claims).Draw(rt, "claim")
				m.unprepare(r, c, func() error { _, err := r.Claims.unprepare(t.Context(), c.UID); return err })
			},
			"crash": func(rt *rapid.T) {
				c := rapid.SampledFrom(m.claims).Draw(rt, "claim")
				n := rapid.IntRange(0, 12).Draw(rt, "step")
				free := rapid.Bool().Draw(rt, "free")
				ended := r.crashing(n, func() {
					if free {
						m.unprepare(r, c, func() error { _, err := r.Claims.unprepare(t.Context(), c.UID); return err })
					} else {
						m.prepare(r, c, func() error { return r.prepareNow(t.Context(), c) })
					}
				})
				if ended {
					m.cut(c, free)
				}
				_ = r.Close()
				// The start may be cut off as well.
				for r.crashing(rapid.IntRange(0, 12).Draw(rt, "step of start"), func() { r.start(t) }) {
					_ = r.Close()
				}
			},
			"reboot": func(rt *rapid.T) {
				boots++
				r.boot = fmt.Sprintf("boot-%d", boots)
				_ = r.Close()
				maps.Copy(r.hw.vlan, before)
				r.start(t)
			},
			"fault": func(rt *rapid.T) {
				call := rapid.SampledFrom([]string{"setup", "free", "inspect", "return"}).Draw(rt, "call")
				on := vfName(rapid.IntRange(0, vfs-1).Draw(rt, "device"))
				if call == "return" {
					on = string(rapid.SampledFrom(m.claims).Draw(rt, "claim").UID)
				}
				r.hw.fault[call+" "+on] = errors.New("no")
			},
			"mend": func(*rapid.T) { clear(r.hw.fault); r.api.err = nil },
			"away": func(*rapid.T) { r.api.err = errors.New("away") },
			"":     func(rt *rapid.T) { m.check(rt, r, before) },
		})
		clear(r.hw.fault)
		r.api.err = nil
		for _, c := range m.claims {
			if _, err := r.Claims.unprepare(t.Context(), c.UID); err != nil {
				rt.Fatal(err)
			}
		}
		if diff := cmp.Diff(before, r.hw.vlan); diff != "" {
			rt.Fatalf("the host is not as it was: %s", diff)
		}
		if rows := r.rows.Allocations(); len(rows) > 0 {
			rt.Fatalf("rows are left: %v", rows)
		}
		if keys, err := r.records.Keys(); err != nil || len(keys) > 0 || len(r.book.booked) > 0 || len(r.book.faults) > 0 {
			rt.Fatalf("records %v, %v, book %v, %v", keys, err, r.book.booked, r.book.faults)
		}
	})
}

// prepareNow is a Prepare in this goroutine, where it can be cut off.
func (r *rig) prepareNow(ctx context.Context, c *resourceapi.ResourceClaim) error {
	var fresh *resourceapi.ResourceClaim
	r.api.set(func() { fresh = r.api.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}].DeepCopy() })
	_, err := r.Claims.prepare(ctx, fresh, driver)
	return err
}

func (m *model) prepare(_ *rig, c *resourceapi.ResourceClaim, call func() error) {
	m.unsure[c.UID] = m.unsure[c.UID] || !m.prepared[c.UID]
	if call() == nil {
		m.prepared[c.UID] = true
		delete(m.unsure, c.UID)
		return
	}
	if m.prepared[c.UID] { // half freed before, and it could not be finished
		delete(m.prepared, c.UID)
		m.unsure[c.UID] = true
	}
}

func (m *model) unprepare(r *rig, c *resourceapi.ResourceClaim, call func() error) {
	// The kubelet frees what belongs to a pod that ends, and has a new one prepared anew.
	r.api.set(func() { r.api.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}].Status.Devices = nil })
	if m.prepared[c.UID] {
		delete(m.prepared, c.UID)
		m.unsure[c.UID] = true
	}
	if call() == nil {
		delete(m.unsure, c.UID)
	}
}

func (m *model) cut(c *resourceapi.ResourceClaim, free bool) {
	if free && m.prepared[c.UID] {
		delete(m.prepared, c.UID)
		m.unsure[c.UID] = true
	}
}

func (m *model) check(rt *rapid.T, r *rig, before map[string]int32) {
	must, may := m.wanted()
	for name, was := range before {
		got := r.hw.vlan[name]
		if want, ok := must[name]; ok && got != want && m.fault(r, name) == nil {
			rt.Fatalf("device %s: VLAN %d, want %d", name, got, want)
		}
		_, mustSet := must[name]
		_, maySet := may[name]
		if !mustSet && !maySet && got != was {
			rt.Fatalf("device %s: VLAN %d, want %d as before", name, got, was)
		}
	}
	holders := map[string]types.UID{}
	for _, a := range r.rows.Allocations() {
		if other, twice := holders[a.DeviceName]; twice {
			rt.Fatalf("device %s is prepared for %s and %s", a.DeviceName, other, a.ClaimUID) // I1
		}
		holders[a.DeviceName] = a.ClaimUID
		if !m.prepared[a.ClaimUID] && !m.unsure[a.ClaimUID] {
			rt.Fatalf("row of claim %s, which is freed", a.ClaimUID)
		}
	}
	for _, c := range m.claims {
		if m.prepared[c.UID] && len(r.rows.OfClaim(c.UID)) != len(c.Status.Allocation.Devices.Results) {
			rt.Fatalf("claim %s is prepared and has rows %v", c.UID, r.rows.OfClaim(c.UID))
		}
	}
}

// fault is why a device that is to be ready is not, as the pod is told.
func (m *model) fault(r *rig, name string) error {
	for _, a := range r.rows.OfDevice(name) {
		if err := r.Ready(a.PodUID); err != nil {
			return err
		}
	}
	return nil
}
