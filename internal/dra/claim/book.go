// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// book knows the devices that claims are about to get, or have not given back, and that have no
// row. Its lock is held for no longer than it takes to look at the tables.
type book struct {
	mu     sync.Mutex
	booked map[types.UID][]use // by claim
	faults map[types.UID]error // by claim: why its devices are not ready although there are rows
	unread map[types.UID]unread
	name   naming
}

// naming gives the name that a device takes in its pod, "" when it has none that is known.
type naming func(device.ManagerType, device.Device, v2alpha1.DeviceConfig, device.Saved) string

// unread is a record that cannot be had yet: its pod is not to start without what may be in it.
type unread struct {
	pod types.UID
	err error
}

func newBook(name naming) *book {
	return &book{booked: map[types.UID][]use{}, faults: map[types.UID]error{}, unread: map[types.UID]unread{}, name: name}
}

// plan plans a claim and books its devices, as one step.
func (b *book) plan(claim *resourceapi.ResourceClaim, v view, rows func() []device.Allocation) (planned, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pod, _ := consumer(claim) //nolint:errcheck // plan tells it
	for _, a := range rows() {
		u := use{
			claim: a.Claim, uid: a.ClaimUID, pod: a.PodUID, device: a.DeviceName, share: a.ShareID, asked: a.Config.PodIfName != "",
		}
		if a.PodUID == pod { // names of other pods' are no matter
			u.ifName = b.name(a.Manager, a.PreparedDevice, a.Config, a.Saved)
		}
		v.uses = append(v.uses, u)
	}
	v.name = b.name
	for _, uses := range b.booked {
		v.uses = append(v.uses, uses...)
	}
	p, err := plan(claim, v)
	if err == nil && len(p.body.Devices) > 0 {
		b.booked[claim.UID] = p.uses
	}
	return p, err
}

func uses(c record.Claim) (all []use) {
	for _, d := range c.Devices {
		all = append(all, use{
			claim: nameOf(c), uid: types.UID(c.UID), pod: podOf(c), device: d.Name, share: d.ShareID,
			ifName: d.Config.PodIfName, asked: d.Config.PodIfName != "",
		})
	}
	return all
}

func nameOf(c record.Claim) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
}

func podOf(c record.Claim) types.UID {
	if len(c.PodUIDs) == 0 {
		return ""
	}
	return types.UID(c.PodUIDs[0])
}

// hold books the devices of a claim that has them already.
func (b *book) hold(c record.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.booked[types.UID(c.UID)] = uses(c)
}

// release says that a claim has rows, or nothing.
func (b *book) release(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.booked, uid)
	delete(b.unread, uid)
}

// setUnread says that a claim's record cannot be had, until release.
func (b *book) setUnread(uid, pod types.UID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unread[uid] = unread{pod: pod, err: err}
}

// unreadOf says which records of a pod cannot be had.
func (b *book) unreadOf(pod types.UID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var faults []error
	for _, u := range b.unread {
		if u.pod == pod {
			faults = append(faults, u.err)
		}
	}
	return errors.Join(faults...)
}

// held are the devices that claims have by now, of rows or on their way, but for one claim's.
func (b *book) held(but types.UID, rows []device.Allocation) map[use]journal.Key {
	all := map[use]journal.Key{}
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, uses := range b.booked {
		for _, u := range uses {
			if uid != but {
				all[use{device: u.device, share: u.share}] = journal.Key(uid)
			}
		}
	}
	for _, a := range rows {
		if a.ClaimUID != but {
			all[use{device: a.DeviceName, share: a.ShareID}] = journal.Key(a.ClaimUID)
		}
	}
	return all
}

// setFault says why a claim's devices are not ready; nil: they are, or are no more.
func (b *book) setFault(uid types.UID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.faults, uid)
	} else {
		b.faults[uid] = err
	}
}

func (b *book) fault(uid types.UID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults[uid]
}
