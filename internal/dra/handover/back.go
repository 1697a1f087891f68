// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// Detach brings home what a sandbox has. That it has nothing is fine.
func (h *Handover) Detach(ctx context.Context, sandboxID string) error {
	return h.DetachIf(ctx, sandboxID, func() bool { return true })
}

// DetachIf is Detach unless over says, while nothing is handed to that pod, that the sandbox did not
// end: its ADD was repeated meanwhile.
func (h *Handover) DetachIf(ctx context.Context, sandboxID string, over func() bool) (err error) {
	start := time.Now()
	_, body, err := h.read(journal.Key(sandboxID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, broken := errors.AsType[*journal.CorruptError](err); broken {
		return h.end(ctx, journal.Key(sandboxID), nil) // it is told, and of no use without its sandbox
	}
	if err != nil || body == nil {
		return err
	}
	defer func() { h.cfg.Observe("detach", len(body.Links), time.Since(start), err) }()
	unlock, err := h.pods.lock(ctx, body.PodUID)
	if err != nil {
		return err
	}
	defer unlock()
	if !over() {
		return nil
	}
	return h.end(ctx, journal.Key(sandboxID), nil)
}

// Return brings every link of a claim home, whichever sandbox has it. Nothing of the claim is handed to
// its pod after it, if Ready has refused to since before it was called.
func (h *Handover) Return(ctx context.Context, claimUID, podUID string) error {
	// A hand-over that runs may have asked Ready before that, and has no record yet.
	unlock, err := h.pods.lock(ctx, podUID)
	if err != nil {
		return err
	}
	unlock()
	return h.each(func(key journal.Key, _ journal.State, body record.Handover) (err error) {
		of := func(l record.Link) bool { return l.ClaimUID == claimUID }
		if !slices.ContainsFunc(body.Links, of) {
			return nil
		}
		start := time.Now()
		defer func() { h.cfg.Observe("return", len(body.Links), time.Since(start), err) }()
		unlock, err := h.pods.lock(ctx, body.PodUID)
		if err != nil {
			return err
		}
		defer unlock()
		return h.end(ctx, key, of)
	})
}

// end brings the links of a record home that are chosen (nil: all), and forgets the record when
// none is away any more. The pod's lock is held.
func (h *Handover) end(ctx context.Context, key journal.Key, chosen func(record.Link) bool) (err error) {
	rec, _, err := h.mended(ctx, func() (*journal.Record, error) { return h.records.TryAcquire(key) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hand-over to sandbox %s: %w", key, err)
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	return h.forget(ctx, rec, chosen)
}

// forget undoes what is chosen (nil: all), and forgets the record when nothing is left of it.
func (h *Handover) forget(ctx context.Context, rec *journal.Record, chosen func(record.Link) bool) error {
	left, err := h.undo(ctx, rec, chosen)
	if left > 0 {
		return err
	}
	return errors.Join(err, rec.Forget())
}

// undo brings links home in reverse, as far as they go: one that cannot stops no other one. It says
// how many are away still.
func (h *Handover) undo(ctx context.Context, rec *journal.Record, chosen func(record.Link) bool) (left int, err error) {
	// What was begun is finished, also when who asked for it no longer waits.
	ctx = context.WithoutCancel(ctx)
	body, err := bodyOf(rec.State())
	if err != nil || body == nil {
		return len(rec.State().Intents), err
	}
	away, _ := outstanding(rec.State(), body)
	var faults []error
	left = len(away)
	for _, i := range slices.Backward(away) {
		l := body.Links[i]
		if chosen != nil && !chosen(l) {
			continue
		}
		err := record.Note(rec, journal.Phase{Phase: journal.Undoing, Item: i})
		if err == nil {
			err = h.bring(ctx, l, body.Namespace)
		}
		if err == nil {
			err = rec.Append(journal.Phase{Phase: journal.Undone, Item: i})
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("bring device %s of pool %s home: %w", l.Device, l.Pool, err))
			continue
		}
		left--
	}
	return left, errors.Join(faults...)
}

// bring brings one link home, wherever it is, as it was. A link that is no more is home.
func (h *Handover) bring(ctx context.Context, l record.Link, ns kernel.Namespace) error {
	m := h.cfg.Managers[device.ManagerType(l.Manager)]
	if m == nil {
		return fmt.Errorf("there is no device manager %q", l.Manager)
	}
	dev, err := m.RestoreDevice(l.Dev)
	if err != nil {
		return err
	}
	link, err := m.Link(ns, dev, l.Saved)
	switch {
	case err == nil:
		if link, err = h.pull(ns, link, l); err != nil {
			return err
		}
	case errors.Is(err, kernel.ErrNoLink), errors.Is(err, fs.ErrNotExist):
		// The namespace is gone, or the link left it: it is home, on its way, or no more.
		if link, err = h.await(ctx, m, dev, l); errors.Is(err, kernel.ErrNoLink) {
			return nil
		}
		if err != nil {
			return err
		}
	default:
		return err
	}
	return device.Restore(h.cfg.Kernel, link, l.Home, h.cfg.Log)
}

// pull moves a link out of a sandbox: under its own name, or one that nobody has when that is taken.
// It brings no alternative name that the pod gave it: one that a link of the host has would keep it
// from coming.
func (h *Handover) pull(ns kernel.Namespace, link kernel.Link, l record.Link) (kernel.Link, error) {
	foreign := func(name string) bool { return !slices.Contains(l.Home.AltNames, name) }
	var strip error
	if slices.ContainsFunc(link.AltNames, foreign) {
		strip = h.strip(ns, link, slices.DeleteFunc(slices.Clone(link.AltNames), foreign))
	}
	moved, err := h.cfg.Kernel.Move(ns, link.Index, host(), l.Home.Name)
	if clash, ok := errors.AsType[*kernel.ClashError](err); ok {
		if clash.Name != l.Home.Name { // one of its own: it gets back what it can when it is home
			strip = errors.Join(strip, h.strip(ns, link, nil))
		}
		moved, err = h.cfg.Kernel.Move(ns, link.Index, host(), fmt.Sprintf("weft%d", link.Index))
	}
	if err != nil {
		return moved, errors.Join(err, strip)
	}
	return moved, nil
}

// strip leaves a link, where it is, none but these alternative names.
func (h *Handover) strip(ns kernel.Namespace, link kernel.Link, names []string) error {
	_, err := h.cfg.Kernel.Restore(ns, link.Index, kernel.LinkState{AltNames: names, Up: link.Up})
	if err != nil {
		return fmt.Errorf("take alternative names from %s: %w", link.Name, err)
	}
	return nil
}

// Links come home from a namespace that ends in the kernel's own time.
const (
	comeTimeout = time.Second
	comePause   = 10 * time.Millisecond
)

// await looks for a link in the host's namespace. kernel.ErrNoLink: there is no such device any
// more, or it has no link.
func (h *Handover) await(ctx context.Context, m device.Manager, dev device.Device, l record.Link) (kernel.Link, error) {
	for late := time.Now().Add(comeTimeout); ; {
		link, err := m.Link(host(), dev, l.Saved)
		if !errors.Is(err, kernel.ErrNoLink) || l.PCI == "" {
			return link, err
		}
		f, err := h.cfg.Kernel.Function(l.PCI)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && device.Linkless(f.Driver):
			return link, kernel.ErrNoLink
		case time.Now().After(late):
			return link, fmt.Errorf("link of %s is neither in its pod nor on the host: something still holds its network namespace", l.PCI)
		}
		select {
		case <-time.After(comePause):
		case <-ctx.Done():
			return link, context.Cause(ctx)
		}
	}
}

// Recover puts right what a crash or a reboot left: a hand-over that was not finished is undone, and
// what sandboxes had that are gone is brought home. It is called before anything else is asked.
func (h *Handover) Recover(ctx context.Context) error {
	return h.each(func(key journal.Key, s journal.State, body record.Handover) error {
		_, finished := outstanding(s, &body)
		// A broken record has no phases: a sandbox that lives keeps what it may have.
		if (finished || s.Phases == nil) && h.lives(body.Namespace) {
			return nil
		}
		unlock, err := h.pods.lock(ctx, body.PodUID)
		if err != nil {
			return err
		}
		defer unlock()
		return h.end(ctx, key, nil)
	})
}

func (h *Handover) lives(ns kernel.Namespace) bool {
	id, err := h.cfg.Kernel.NamespaceID(ns.Path)
	return err == nil && id == ns.ID
}

// sweepEvery is how soon links of a sandbox come home that ended without anybody's saying so.
const sweepEvery = 30 * time.Second

// Run brings home, again and again, what sandboxes had that are gone. It ends with ctx.
func (h *Handover) Run(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		err := h.each(func(key journal.Key, _ journal.State, body record.Handover) error {
			if h.lives(body.Namespace) {
				return nil
			}
			return h.Detach(ctx, string(key))
		})
		if err != nil {
			h.cfg.Log.WarnContext(ctx, "devices of sandboxes that are gone are not home yet", "error", err)
		}
	}
}
