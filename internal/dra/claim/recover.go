// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// Recover makes of records and statuses what was prepared before this start: rows, and devices that
// are set up. What cannot be mended now is tried again by Run, also all that needs an API server
// that is away; the error is about the records as a whole, and then it may be called again.
func (c *Claims) Recover(ctx context.Context) error {
	keys, err := c.records.Keys()
	if err != nil {
		return fmt.Errorf("recover claims: %w", err)
	}
	// The devices of an older boot whose claims may have given them to one another: the last one
	// to ask has it, and older records count for nothing.
	older := map[use]journal.Key{}
	for _, key := range c.byTime(keys) {
		if err := c.recoverRecord(ctx, key, older); err != nil {
			c.cfg.Log.ErrorContext(ctx, "claim cannot be recovered, the others are", "claim_uid", key, "error", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("recover claims: %w", ctx.Err())
		}
	}
	if c.cfg.Driver != "" {
		c.first(c.cfg.Driver) // and not once more when it registers
		within, cancel := context.WithTimeout(ctx, listTime)
		defer cancel()
		if err := c.look(within, c.cfg.Driver); err != nil {
			c.cfg.Log.WarnContext(ctx, "claims of the node's pods are not known, they are looked for again", "error", err)
			c.addLook(c.cfg.Driver, firstPause)
		}
	}
	c.cfg.Store.Restored()
	return nil
}

// byTime sorts records, the newest first; those that cannot be read come last.
func (c *Claims) byTime(keys []journal.Key) []journal.Key {
	times := map[journal.Key]int64{}
	for _, key := range keys {
		if s, err := c.records.Read(key); err == nil && len(s.Intents) > 0 {
			times[key] = s.Intents[len(s.Intents)-1].Time.UnixNano()
		}
	}
	slices.SortStableFunc(keys, func(a, b journal.Key) int { return cmp.Compare(times[b], times[a]) })
	return keys
}

func (c *Claims) recoverRecord(ctx context.Context, key journal.Key, held map[use]journal.Key) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	uid := types.UID(key)
	rec, l, err := c.acquire(ctx, uid)
	if err != nil {
		c.readLater(key, err)
		return err
	}
	defer rec.Close() //nolint:errcheck // what counts is on the disk
	if l.phase == none {
		c.book.release(uid)
		return nil // a placeholder, or a record of which nothing is known
	}
	if err := c.superseded(rec, &l, held); err != nil {
		c.readLater(key, err)
		return err
	}
	switch {
	case l.phase == releasing:
		c.freeing(l.body) // before there are rows
		c.putRows(remaining(l))
		return c.undo(ctx, rec, l)
	case l.phase == begun && l.boot && !l.body.Kept:
		return c.undo(ctx, rec, l)
	case l.phase == ready && l.boot:
		c.putRows(l)
		return c.mend(ctx, l) // and once more before a pod gets them
	}
	if _, err := c.setUpAgain(ctx, rec, l); err != nil {
		c.notReady(l, err)
	}
	return nil
}

// readLater keeps the pod of a record that cannot be had from starting without its devices, and has
// the record looked at again: another process has it still, say, or the disk does not answer.
func (c *Claims) readLater(key journal.Key, err error) {
	uid := types.UID(key)
	pod, unknown := journal.PodUID(filepath.Join(c.cfg.StateDir, record.Devices), key)
	if unknown != nil || pod == "" {
		c.cfg.Log.Error("pod of a claim whose record cannot be had is not known, and not kept waiting", "claim_uid", uid, "error", unknown)
	} else {
		c.book.setUnread(uid, types.UID(pod), fmt.Errorf("what was prepared for the pod is not known yet: %w", err))
	}
	c.local.add("read "+string(uid), firstPause, func(ctx context.Context) error {
		return c.recoverRecord(ctx, key, c.book.held(uid, c.cfg.Store.Allocations()))
	})
}

// superseded leaves out what a newer record has: a phase that was not on the disk when the power
// went said that the device had been freed. It is written now: what is left is perhaps tried again, by the record.
func (c *Claims) superseded(rec *journal.Record, l *life, held map[use]journal.Key) error {
	key := rec.Key()
	for i, d := range l.body.Devices {
		what := use{device: d.Name, share: d.ShareID}
		if l.phase == releasing && l.boot && !l.touched[i] {
			continue
		}
		if newer, ok := held[what]; ok && newer != key {
			c.cfg.Log.Warn("device is another claim's by now", "claim", nameOf(l.body).String(), "device", d.Name, "holder_uid", newer)
			if err := record.Note(rec, journal.Phase{Phase: journal.Undone, Item: i}); err != nil {
				return err
			}
			delete(l.touched, i)
			l.phase = releasing
			continue
		}
		held[what] = key
	}
	return nil
}

// remaining is a life without the devices that were freed.
func remaining(l life) life {
	left := l
	left.body.Devices, left.prepared = nil, nil
	for i, d := range l.body.Devices {
		if l.touched[i] {
			if p, ok := l.prepared[i]; ok {
				d.Dev = p.Dev
			}
			left.body.Devices = append(left.body.Devices, d)
		}
	}
	return left
}

// setUpAgain does once more what the kubelet believes done. After a reboot the devices are what
// they were before anything: that is looked at and recorded first.
func (c *Claims) setUpAgain(ctx context.Context, rec *journal.Record, l life) (life, error) {
	p := planned{body: l.body}
	p.body.Kept = true
	for i, d := range p.body.Devices {
		_, dev, err := c.restore(d, d.Dev)
		if err != nil {
			return l, err
		}
		p.devices = append(p.devices, dev)
		if l.boot {
			continue
		}
		p.body.Devices[i].Saved = nil
	}
	if !l.boot {
		if err := c.inspect(&p); err != nil {
			return l, err
		}
		if err := begin(rec, p.body, c.cfg.Boot); err != nil {
			return l, err
		}
	}
	if err := c.setUpAll(ctx, rec, p.body, p.devices); err != nil {
		return l, err
	}
	l, err := lifeOf(rec.State(), c.cfg.Boot)
	if err != nil {
		return l, err
	}
	c.putRows(l)
	c.book.setFault(types.UID(l.body.UID), nil)
	c.cfg.Log.InfoContext(ctx, "claim is set up again", "claim", nameOf(l.body).String(), "claim_uid", l.body.UID, "reboot", p.body.Kept)
	return l, nil
}

// notReady keeps the devices of a claim that the kubelet believes prepared, and that could not be
// set up yet: nobody else gets them, Ready tells, and Run tries again.
func (c *Claims) notReady(l life, err error) {
	uid := types.UID(l.body.UID)
	err = fmt.Errorf("claim %s is not set up since the node has started: %w", nameOf(l.body), err)
	c.book.setFault(uid, err)
	c.putRows(l)
	c.cfg.Log.Warn("claim is not set up yet", "claim", nameOf(l.body).String(), "claim_uid", uid, "error", err)
	c.event(nameOf(l.body), uid, corev1.EventTypeWarning, "NotSetUp", err.Error())
	c.local.add(setupKey(uid), firstPause, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, setupTime)
		defer cancel()
		rec, l, err := c.acquire(ctx, uid)
		if err != nil {
			return err
		}
		defer rec.Close() //nolint:errcheck // what counts is on the disk
		if l.phase == none || l.phase == releasing || l.phase == ready && l.boot {
			return nil
		}
		_, err = c.setUpAgain(ctx, rec, l)
		if err != nil {
			c.book.setFault(uid, errors.Join(errors.New("claim "+nameOf(l.body).String()+" is not set up since the node has started"), err))
		}
		return err
	})
}
