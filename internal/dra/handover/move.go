// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// plan says what moves where, and finds what cannot before anything does.
func (h *Handover) plan(ctx context.Context, s Sandbox, ns kernel.Namespace, rows []device.Allocation) (record.Handover, error) {
	body := record.Handover{PodUID: s.PodUID, SandboxID: s.ID, Namespace: ns}
	taken := map[string]string{}
	for _, name := range s.Reserved {
		taken[name] = "another network of the pod"
	}
	there, err := h.cfg.Kernel.Links(ns)
	if err != nil {
		return body, fmt.Errorf("look into sandbox %s: %w", s.ID, err)
	}
	for _, l := range there {
		taken[l.Name] = "an interface that the pod has already"
		for _, name := range l.AltNames {
			taken[name] = "an alternative name of interface " + l.Name
		}
	}
	var faults []error
	for _, row := range rows {
		m := h.cfg.Managers[row.Manager]
		name := podName(m, row)
		if by, ok := taken[name]; ok {
			faults = append(faults, fmt.Errorf("device %s of pool %s: podIfName %q is taken by %s", row.DeviceName, row.Pool, name, by))
			continue
		}
		taken[name] = "device " + row.DeviceName
		link, err := h.find(ctx, m, row)
		if err != nil {
			faults = append(faults, fmt.Errorf("device %s of pool %s: %w", row.DeviceName, row.Pool, err))
			continue
		}
		l, err := linkOf(m, row, link)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		body.Links = append(body.Links, l)
	}
	return body, errors.Join(faults...)
}

// settle finds out what became of a hand-over whose record was broken: it stands when all that the pod is to
// have is there, and is undone otherwise. Of a record that was lost, a new one says what is there: it may be a
// network's that takes its device from the claim, and is home by then when it is brought there.
func (h *Handover) settle(rec *journal.Record, s Sandbox, ns kernel.Namespace, rows []device.Allocation, lost bool) error {
	if old, err := bodyOf(rec.State()); !lost && (err != nil || old == nil || !old.Salvaged || old.Namespace != ns) {
		return nil //nolint:nilerr // undo tells it
	}
	there, body := 0, record.Handover{PodUID: s.PodUID, SandboxID: s.ID, Namespace: ns, Salvaged: true}
	if _, finished := outstanding(rec.State(), &body); finished {
		return nil
	}
	for _, row := range rows {
		m := h.cfg.Managers[row.Manager]
		link, err := m.Link(ns, row.PreparedDevice, row.Saved)
		if err != nil {
			continue
		}
		l, err := linkOf(m, row, link)
		if err != nil {
			return err
		}
		body.Links = append(body.Links, l)
		if link.Up {
			there++
		}
	}
	if lost && len(body.Links) > 0 {
		if err := begin(rec, body); err != nil {
			return err
		}
	}
	if there < len(rows) {
		return nil
	}
	return rec.Append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall})
}

// linkOf is what a record says of a link.
func linkOf(m device.Manager, row device.Allocation, link kernel.Link) (record.Link, error) {
	dev, err := json.Marshal(row.PreparedDevice)
	if err != nil {
		return record.Link{}, fmt.Errorf("device %s: %w", row.DeviceName, err)
	}
	return record.Link{
		ClaimUID: string(row.ClaimUID), Pool: row.Pool, Device: row.DeviceName, ShareID: row.ShareID,
		Manager: string(row.Manager), Dev: dev, Saved: row.Saved,
		PCI: link.PCI, Index: link.Index, Home: home(m.Home(row.PreparedDevice, row.Saved), link), PodName: podName(m, row),
	}, nil
}

func begin(rec *journal.Record, body record.Handover) error {
	text, err := json.Marshal(body)
	if err == nil {
		err = rec.Begin(journal.Intent{PodUID: body.PodUID, Body: text})
	}
	if err != nil {
		return fmt.Errorf("write down a hand-over: %w", err)
	}
	return nil
}

// home is what a link gets back: what its manager knows, and what it is now where that says nothing.
func home(known kernel.LinkState, link kernel.Link) kernel.LinkState {
	if known.Name == "" {
		return kernel.StateOf(link)
	}
	return known
}

// find gives a device's link in the host's namespace; one that died with an earlier sandbox is set
// up again.
func (h *Handover) find(ctx context.Context, m device.Manager, row device.Allocation) (kernel.Link, error) {
	link, err := m.Link(host(), row.PreparedDevice, row.Saved)
	if !errors.Is(err, kernel.ErrNoLink) {
		return link, err
	}
	if _, err := m.Setup(ctx, row.PreparedDevice, row.Config, row.Saved); err != nil {
		return link, fmt.Errorf("set it up again: %w", err)
	}
	return m.Link(host(), row.PreparedDevice, row.Saved)
}

// act moves the links, or leaves them as they were.
func (h *Handover) act(ctx context.Context, rec *journal.Record, body record.Handover, rows []device.Allocation) (given []Given, err error) {
	if err := begin(rec, body); err != nil {
		return nil, err
	}
	for i, l := range body.Links {
		link, err := h.move(ctx, rec, body, i)
		if err != nil {
			err = fmt.Errorf("device %s of pool %s, interface %s: %w", l.Device, l.Pool, l.PodName, err)
			if undone := h.forget(ctx, rec, nil); undone != nil {
				err = errors.Join(err, fmt.Errorf("undo the hand-over: %w", undone))
			}
			return nil, err
		}
		given = append(given, givenOf(rows[i], link))
	}
	if err := ctx.Err(); err != nil { // who asked has given up: nobody would know of it
		return nil, errors.Join(context.Cause(ctx), h.forget(ctx, rec, nil))
	}
	if err := rec.Append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall}); err != nil {
		return nil, errors.Join(fmt.Errorf("write down a hand-over: %w", err), h.forget(ctx, rec, nil))
	}
	h.cfg.Log.InfoContext(ctx, "devices are in their pod", "pod_uid", body.PodUID, "sandbox", body.SandboxID, "links", len(given))
	return given, nil
}

func (h *Handover) move(ctx context.Context, rec *journal.Record, body record.Handover, i int) (kernel.Link, error) {
	if err := ctx.Err(); err != nil {
		return kernel.Link{}, context.Cause(ctx)
	}
	l := body.Links[i]
	if err := rec.Append(journal.Phase{Phase: journal.Attempting, Item: i}); err != nil {
		return kernel.Link{}, err
	}
	link, err := h.cfg.Kernel.Move(host(), l.Index, body.Namespace, l.PodName)
	if err != nil {
		return link, err
	}
	if err := h.cfg.Kernel.SetUp(body.Namespace, link.Index, true); err != nil {
		return link, err
	}
	return link, rec.Append(journal.Phase{Phase: journal.Done, Item: i})
}
