// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// prepare makes a claim's devices ready: done before, done now, or undone with an error.
func (c *Claims) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, driver string) ([]kubeletplugin.Device, error) {
	l, err := c.prepareLocked(ctx, claim, driver)
	if err != nil {
		return nil, err
	}
	if len(l.body.Devices) > 0 {
		c.writeStatus(ctx, claim, l)
	}
	return answer(claim, driver), nil
}

// answer names the devices to the kubelet. No device needs CDI: links are moved, and device files
// are given by NRI.
func answer(claim *resourceapi.ResourceClaim, driver string) (devices []kubeletplugin.Device) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == driver {
			devices = append(devices, kubeletplugin.Device{
				Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareID: r.ShareID,
			})
		}
	}
	return devices
}

// prepareLocked is the part that needs the claim's record and not the API.
func (c *Claims) prepareLocked(ctx context.Context, claim *resourceapi.ResourceClaim, driver string) (life, error) {
	if claim.Status.Allocation == nil {
		return life{}, &Fault{Claim: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, Field: "status.allocation", Reason: "it is not allocated"}
	}
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	pod, err := consumer(claim)
	if err != nil && len(ours(claim, driver)) > 0 {
		return life{}, err
	}
	for {
		l, again, err := c.prepareOnce(ctx, claim, driver, pod)
		if !again {
			return l, err
		}
	}
}

// prepareOnce prepares a claim, or clears what there is of it, and is then to be called again: with
// what was undone its record is gone, and another call may be quicker to take it anew.
func (c *Claims) prepareOnce(
	ctx context.Context, claim *resourceapi.ResourceClaim, driver string, pod types.UID,
) (l life, again bool, err error) {
	rec, l, err := c.acquire(ctx, claim.UID)
	if err != nil {
		return life{}, false, err
	}
	defer rec.Close() //nolint:errcheck // what counts is on the disk
	same := pod == podOf(l.body) && sameDevices(l.body, claim, driver)
	switch {
	case same && l.phase == ready && l.boot:
		c.book.setFault(claim.UID, nil) // of a call that could not even begin to free it
		c.putRows(l)
		return l, false, c.mend(ctx, l)
	case same && (l.phase == ready || l.phase == begun && l.body.Kept):
		l, err = c.setUpAgain(ctx, rec, l)
		return l, false, err
	case l.phase == none:
		l, err = c.prepareNew(ctx, rec, claim, driver)
		return l, false, err
	}
	// Of before, or half of one.
	if err := c.undo(ctx, rec, l); err != nil {
		return life{}, false, fmt.Errorf("free what an earlier call has left: %w", err)
	}
	return life{}, true, nil
}

// prepareNew prepares a claim that has no record.
func (c *Claims) prepareNew(ctx context.Context, rec *journal.Record, claim *resourceapi.ResourceClaim, driver string) (life, error) {
	p, err := c.plan(claim, driver)
	if err != nil || len(p.body.Devices) == 0 {
		return life{body: p.body}, err
	}
	return c.setUp(ctx, rec, p)
}

func (c *Claims) plan(claim *resourceapi.ResourceClaim, driver string) (planned, error) {
	return c.book.plan(claim, view{
		node: c.cfg.Node, driver: driver,
		device:  c.cfg.Store.Device,
		managed: func(t device.ManagerType) bool { return c.cfg.Managers[t] != nil },
		entries: entriesOf(claim, driver),
	}, c.cfg.Store.Allocations)
}

// sameDevices says whether a record is about what a claim is allocated now.
func sameDevices(body record.Claim, claim *resourceapi.ResourceClaim, driver string) bool {
	results := ours(claim, driver)
	if body.Driver != driver || len(results) != len(body.Devices) {
		return false
	}
	for i, r := range results {
		d, share := body.Devices[i], ""
		if r.ShareID != nil {
			share = string(*r.ShareID)
		}
		if d.Request != r.Request || d.Slice != r.Pool || d.Name != r.Device || d.ShareID != share {
			return false
		}
	}
	return true
}

// setUp does what was planned, or leaves nothing of it.
func (c *Claims) setUp(ctx context.Context, rec *journal.Record, p planned) (life, error) {
	uid := types.UID(p.body.UID)
	if err := c.inspect(&p); err != nil {
		c.book.release(uid)
		return life{}, err
	}
	if err := begin(rec, p.body, c.cfg.Boot); err != nil {
		c.book.release(uid)
		return life{}, fmt.Errorf("record claim %s: %w", nameOf(p.body), err)
	}
	err := c.setUpAll(ctx, rec, p.body, p.devices)
	l, lifeErr := lifeOf(rec.State(), c.cfg.Boot)
	if err = errors.Join(err, lifeErr); err == nil {
		c.book.setFault(uid, nil)
		c.putRows(l)
		c.cfg.Log.InfoContext(ctx, "claim is prepared", "claim", nameOf(p.body).String(), "claim_uid", uid, "devices", len(p.devices))
		return l, nil
	}
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return life{}, errors.Join(err, c.undo(undoing, rec, l))
}

// inspect reads what Setup would change, of every device, and refuses what the names would clash in.
func (c *Claims) inspect(p *planned) error {
	var faults []error
	names := map[string]string{}
	for i := range p.body.Devices {
		d := &p.body.Devices[i]
		fault := &Fault{Claim: nameOf(p.body), Request: d.Request, Device: d.Name}
		m, err := c.manager(*d)
		if err == nil {
			d.Saved, err = m.Inspect(p.devices[i], d.Config)
		}
		if err != nil {
			fault.Reason, fault.Err = "cannot be prepared", err
			faults = append(faults, fault)
			continue
		}
		name := c.podName(m.Type(), p.devices[i], d.Config, d.Saved)
		if other, twice := names[name]; twice && name != "" {
			fault.Field, fault.Value, fault.Reason = "name in the pod", name, "device "+other+" of the same claim has that name as well"
			faults = append(faults, fault)
		}
		names[name] = d.Name
	}
	return errors.Join(faults...)
}

func begin(rec *journal.Record, body record.Claim, boot string) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return rec.Begin(journal.Intent{PodUID: string(podOf(body)), Boot: boot, Body: data})
}

// setUpAll sets up one device after the other, and records it.
func (c *Claims) setUpAll(ctx context.Context, rec *journal.Record, body record.Claim, devices []device.Device) error {
	for i, d := range body.Devices {
		if err := c.setUpOne(ctx, rec, i, d, devices[i]); err != nil {
			return &Fault{Claim: nameOf(body), Request: d.Request, Device: d.Name, Reason: "cannot be set up", Err: err}
		}
	}
	if err := rec.Append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall}); err != nil {
		return fmt.Errorf("record that claim %s is prepared: %w", nameOf(body), err)
	}
	return nil
}

func (c *Claims) setUpOne(ctx context.Context, rec *journal.Record, i int, d record.Device, dev device.Device) error {
	m, err := c.manager(d)
	if err != nil {
		return err
	}
	if err := record.Note(rec, journal.Phase{Phase: journal.Attempting, Item: i}); err != nil {
		return err
	}
	dev, err = m.Setup(ctx, dev, d.Config, d.Saved)
	if err != nil {
		return err
	}
	prepared := record.Prepared{IfName: d.Config.PodIfName}
	if prepared.Dev, err = json.Marshal(dev); err != nil {
		return err
	}
	home := m.Home(dev, d.Saved)
	if prepared.IfName == "" {
		prepared.IfName = home.Name
	}
	prepared.MAC = home.MAC.String()
	if link, err := m.Link(host(), dev, d.Saved); err == nil {
		prepared.MAC = link.MAC.String() // of a link that was made just now
	}
	result, err := json.Marshal(prepared)
	if err != nil {
		return err
	}
	return record.Note(rec, journal.Phase{Phase: journal.Done, Item: i, Result: result})
}

// mend sees that the devices of a claim are still what they were set up to be.
func (c *Claims) mend(ctx context.Context, l life) error {
	if err := device.Mend(ctx, c.cfg.Managers, c.cfg.Store.OfClaim(types.UID(l.body.UID))); err != nil {
		return fmt.Errorf("claim %s was prepared, and is not what it was: %w", nameOf(l.body), err)
	}
	return nil
}

// putRows shows others what a claim has.
func (c *Claims) putRows(l life) {
	for i, d := range l.body.Devices {
		data := d.Dev
		if p, ok := l.prepared[i]; ok {
			data = p.Dev
		}
		_, dev, err := c.restore(d, data)
		if err != nil {
			c.cfg.Log.Error("device of a claim cannot be restored", "claim", nameOf(l.body).String(), "device", d.Name, "manager", d.Manager, "error", err)
			dev = unknown{name: d.Name, manager: device.ManagerType(d.Manager), data: data}
		}
		c.cfg.Store.Put(device.Allocation{
			DeviceName: d.Name, Manager: device.ManagerType(d.Manager), PreparedDevice: dev, Pool: d.Pool,
			PodUID: podOf(l.body), ClaimUID: types.UID(l.body.UID), Config: d.Config, ShareID: d.ShareID,
			Claim: nameOf(l.body), Driver: l.body.Driver, Saved: d.Saved,
		})
	}
	c.book.release(types.UID(l.body.UID))
}
