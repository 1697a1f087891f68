// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/agent/metrics"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/sriov"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/wake"
)

// inUse says what has a VF that sysfs does not show.
func (d *networkDriver) inUse(addr kernel.PCIAddr) (bool, string) {
	if !closed(d.recovered) || !closed(d.records.Synced()) {
		return true, "what was attached before the agent's start is not known yet"
	}
	for _, row := range d.store.Allocations() {
		if vf, ok := row.PreparedDevice.(sriov.Device); ok && vf.Addr == addr {
			return true, "claim " + row.Claim.String()
		}
	}
	for _, s := range d.records.Sandboxes() {
		for i := range s.Attachments {
			if a := &s.Attachments[i]; a.DeviceID == string(addr) && !a.Undone {
				return true, "pod " + s.PodNamespace + "/" + s.PodName
			}
		}
	}
	return false, ""
}

func (d *networkDriver) preparedDummies() (names []string) {
	for _, row := range d.store.Allocations() {
		if row.Manager == device.Dummy {
			names = append(names, row.DeviceName)
		}
	}
	return names
}

// devices counts the devices.
func (d *networkDriver) devices() (all []metrics.Devices) {
	counts := map[metrics.Devices]int{}
	rows, allocations := d.store.Snapshot()
	prepared := map[string]bool{}
	for _, a := range allocations {
		if !prepared[a.DeviceName] { // a shared one counts once
			prepared[a.DeviceName] = true
			counts[metrics.Devices{Manager: string(a.Manager), Pool: a.Pool, State: "prepared"}]++
		}
	}
	for _, row := range rows {
		if !prepared[row.Name] {
			counts[metrics.Devices{Manager: string(row.Manager), State: "free"}]++
		}
	}
	for d, n := range counts {
		d.Count = n
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b metrics.Devices) int {
		return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.State, b.State))
	})
	return all
}

// attachments are the records of weft-cni; *observe.Observer has them.
type attachments interface {
	Notify(f func(podUID string))
	ByPod(uid string) []*observe.Sandbox
	Refresh(ctx context.Context, key journal.Key) (*observe.Sandbox, error)
}

// detacher brings devices home; *handover.Handover is one.
type detacher interface {
	DetachIf(ctx context.Context, sandboxID string, over func() bool) error
}

// ends sees records of weft-cni end, and has the devices of their sandboxes brought home: a DEL tells
// nobody.
type ends struct {
	records attachments
	wake    wake.Signal

	mu      sync.Mutex
	changed map[string]bool // UIDs of pods

	// Of run alone: by pod, the sandboxes of its records, and whether their devices are home.
	seen map[string]map[journal.Key]*sandboxEnd
}

type sandboxEnd struct {
	id   string
	home bool
}

func newEnds(records attachments) *ends {
	e := &ends{records: records, wake: wake.New(), changed: map[string]bool{}, seen: map[string]map[journal.Key]*sandboxEnd{}}
	records.Notify(e.note)
	return e
}

func (e *ends) note(podUID string) {
	e.mu.Lock()
	e.changed[podUID] = true
	e.mu.Unlock()
	e.wake.Raise()
}

// How long bringing the devices of one sandbox home may take, and the pause before it is tried again.
const (
	detachTimeout = 10 * time.Second
	detachPause   = 5 * time.Second
)

// run has devices brought home until ctx ends.
func (e *ends) run(ctx context.Context, h detacher, log *slog.Logger) error {
	var again <-chan time.Time
	failed := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		case <-again:
		}
		e.mu.Lock()
		pods := e.changed
		e.changed = map[string]bool{}
		e.mu.Unlock()
		maps.Copy(pods, failed)
		failed, again = map[string]bool{}, nil
		for _, uid := range slices.Sorted(maps.Keys(pods)) {
			if err := e.look(ctx, uid, h); err != nil && ctx.Err() == nil {
				log.Warn("devices of a sandbox that ended are not home yet", "pod_uid", uid, "error", err, "next", detachPause)
				failed[uid], again = true, time.After(detachPause)
			}
		}
	}
}

// look compares a pod's records with what was seen of them.
func (e *ends) look(ctx context.Context, podUID string, h detacher) (first error) {
	seen := e.seen[podUID]
	if seen == nil {
		seen = map[journal.Key]*sandboxEnd{}
		e.seen[podUID] = seen
	}
	living := map[journal.Key]bool{}
	for _, s := range e.records.ByPod(podUID) {
		end := seen[s.Key]
		if end == nil {
			end = &sandboxEnd{id: s.Body.Sandbox.ContainerID}
			seen[s.Key] = end
		}
		if living[s.Key] = true; !s.Undoing {
			end.home = false
			continue
		}
		first = cmp.Or(first, e.bring(ctx, s.Key, end, h))
	}
	for key, end := range seen {
		if living[key] {
			continue
		}
		if err := e.bring(ctx, key, end, h); err != nil {
			first = cmp.Or(first, err)
			continue
		}
		delete(seen, key)
	}
	if len(seen) == 0 {
		delete(e.seen, podUID)
	}
	return first
}

// bring has the devices of a sandbox brought home, unless its ADD was repeated meanwhile.
func (e *ends) bring(ctx context.Context, key journal.Key, end *sandboxEnd, h detacher) error {
	if end.home {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	err := h.DetachIf(within, end.id, func() bool {
		s, err := e.records.Refresh(within, key)
		return err == nil && (s == nil || s.Undoing)
	})
	end.home = err == nil
	return err
}
