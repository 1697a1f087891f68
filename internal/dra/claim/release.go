// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// unprepare frees a claim; that nothing is known of it is fine. It says how many devices it had.
func (c *Claims) unprepare(ctx context.Context, uid types.UID) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, freeTime)
	defer cancel()
	rec, l, err := c.acquire(ctx, uid)
	if err != nil {
		return 0, err
	}
	defer rec.Close() //nolint:errcheck // what counts is on the disk
	if l.phase == none {
		c.forget(uid)
		return 0, nil
	}
	if err := c.undo(ctx, rec, l); err != nil {
		return 0, err
	}
	c.cfg.Log.InfoContext(ctx, "claim is freed", "claim", nameOf(l.body).String(), "claim_uid", uid, "devices", len(l.body.Devices))
	return len(l.body.Devices), nil
}

// undo brings the links home, frees the devices in reverse, and forgets the record. What cannot be
// freed stays as it is recorded, and is tried again in the background; all else is freed.
func (c *Claims) undo(ctx context.Context, rec *journal.Record, l life) error {
	uid := types.UID(l.body.UID)
	// From here on it is no prepared claim any more, whatever comes, and a pod is given nothing of it:
	// its rows are there until all is freed.
	c.freeing(l.body)
	err := record.Note(rec, journal.Phase{Phase: journal.Undoing, Item: journal.WholeCall})
	if l.phase != begun || l.body.Kept { // a pod may have had them
		if home := c.cfg.Handover.Return(ctx, l.body.UID, string(podOf(l.body))); home != nil {
			err = errors.Join(err, fmt.Errorf("bring the links of claim %s home: %w", nameOf(l.body), home))
		}
	}
	if err == nil {
		err = c.free(ctx, rec, l)
	}
	if err == nil {
		err = rec.Forget()
	}
	if err == nil {
		c.forget(uid)
		return nil
	}
	if len(c.cfg.Store.OfClaim(uid)) == 0 {
		c.book.hold(l.body) // no row keeps the devices from others
	}
	c.local.add(releaseKey(uid), firstPause, func(ctx context.Context) error { return c.releaseAgain(ctx, uid) })
	return err
}

// freeing has Ready refuse a claim until it is forgotten or prepared anew.
func (c *Claims) freeing(body record.Claim) {
	c.book.setFault(types.UID(body.UID), fmt.Errorf("claim %s is being freed: %w", nameOf(body), device.ErrFreed))
}

func releaseKey(uid types.UID) string { return "release " + string(uid) }
func setupKey(uid types.UID) string   { return "set up " + string(uid) }
func statusKey(uid types.UID) string  { return "status " + string(uid) }
func goneKey(uid types.UID) string    { return "gone " + string(uid) }

// free frees what Setup may have changed, in reverse.
func (c *Claims) free(ctx context.Context, rec *journal.Record, l life) error {
	var faults []error
	for i, d := range slices.Backward(l.body.Devices) {
		if !l.touched[i] {
			continue
		}
		if err := c.freeOne(ctx, rec, i, d, l); err != nil {
			faults = append(faults, &Fault{Claim: nameOf(l.body), Request: d.Request, Device: d.Name, Reason: "cannot be freed", Err: err})
			continue
		}
		if row, ok := c.row(types.UID(l.body.UID), d); ok {
			c.cfg.Store.Remove(row.Key())
		}
	}
	return errors.Join(faults...)
}

func (c *Claims) freeOne(ctx context.Context, rec *journal.Record, i int, d record.Device, l life) error {
	data := d.Dev
	if p, ok := l.prepared[i]; ok {
		data = p.Dev
	}
	m, dev, err := c.restore(d, data)
	if err != nil {
		return err
	}
	if err := record.Note(rec, journal.Phase{Phase: journal.Undoing, Item: i}); err != nil {
		return err
	}
	if err := m.Free(ctx, dev, d.Config, d.Saved); err != nil {
		return err
	}
	// Without this line it would be freed once more, when it may be another claim's.
	return rec.Append(journal.Phase{Phase: journal.Undone, Item: i})
}

func (c *Claims) row(uid types.UID, d record.Device) (device.Allocation, bool) {
	for _, a := range c.cfg.Store.OfClaim(uid) {
		if a.DeviceName == d.Name && a.ShareID == d.ShareID {
			return a, true
		}
	}
	return device.Allocation{}, false
}

// forget removes everything that is known of a claim.
func (c *Claims) forget(uid types.UID) {
	for _, a := range c.cfg.Store.OfClaim(uid) {
		c.cfg.Store.Remove(a.Key())
	}
	c.book.release(uid)
	c.book.setFault(uid, nil)
	for _, key := range []string{releaseKey(uid), setupKey(uid), goneKey(uid)} {
		c.local.drop(key)
	}
	c.remote.drop(statusKey(uid))
	c.remote.drop(goneKey(uid))
}

// releaseAgain goes on with what undo has begun. A claim that was prepared again since is none of
// its business.
func (c *Claims) releaseAgain(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, freeTime)
	defer cancel()
	rec, l, err := c.acquire(ctx, uid)
	if err != nil {
		return err
	}
	defer rec.Close() //nolint:errcheck // what counts is on the disk
	if l.phase != begun && l.phase != releasing || l.phase == begun && l.body.Kept {
		return nil
	}
	began := time.Now()
	err = c.undo(ctx, rec, l)
	c.cfg.Observe(Outcome{Call: "unprepare", Devices: len(l.body.Devices), Took: time.Since(began), Err: err})
	if err != nil {
		c.cfg.Log.DebugContext(ctx, "claim is not freed yet", "claim", nameOf(l.body).String(), "claim_uid", uid, "error", err)
		return err
	}
	c.cfg.Log.InfoContext(ctx, "claim is freed, late", "claim", nameOf(l.body).String(), "claim_uid", uid)
	return nil
}
