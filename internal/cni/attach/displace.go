// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// displaced is what the default route of an attachment took the place of, in one family. It is
// recorded before the route is set, so that whoever comes after a kill can put it back.
type displaced struct {
	V6     bool                `json:"v6,omitempty"`
	Routes []kernel.SavedRoute `json:"routes"`
	// Told is what the results of others said of it.
	Told []told `json:"told,omitempty"`
	// guessed: the record does not say, see guess.
	guessed bool
}

// told are the default routes that one attachment's result had.
type told struct {
	Network string         `json:"network"`
	IfName  string         `json:"ifName"`
	Routes  []*types.Route `json:"routes"`
}

func (d *displaced) family() kernel.Family {
	if d.V6 {
		return kernel.IPv6
	}
	return kernel.IPv4
}

// through reports whether a route that was displaced left by an interface.
func (d *displaced) through(ifName string) bool {
	return slices.ContainsFunc(d.Routes, func(r kernel.SavedRoute) bool { return r.Through(ifName) })
}

// result is an attachment's result among those that are there.
type result struct {
	item int
	a    *plan.Attachment
	r    *results.Result
}

// setDefaults sets and verifies the default routes that attachment i asks for. What they take the
// place of is recorded first, with the attachment's own result where that is not recorded yet.
func (t *task) setDefaults(ns *kernel.Netns, i int, a *plan.Attachment, own []byte, there []result) (*record.Displaced, error) {
	all := make([]displaced, 0, len(a.Gateways))
	for _, gw := range a.Gateways {
		d := displaced{V6: kernel.FamilyOf(gw) == kernel.IPv6}
		var err error
		if d.Routes, err = ns.SaveDefaultRoutes(d.family()); err != nil {
			return nil, routeFault(a, "default-route "+gw.String(), err)
		}
		for _, x := range there {
			if routes := x.r.Defaults(!d.V6); len(routes) > 0 && x.item != i {
				d.Told = append(d.Told, told{Network: x.a.Network, IfName: x.a.IfName, Routes: routes})
			}
		}
		all = append(all, d)
	}
	was, err := t.recordDisplaced(i, own, all)
	if err != nil {
		return nil, err
	}
	for _, gw := range a.Gateways {
		if err := ns.SetDefaultRoute(a.IfName, gw); err != nil {
			return was, routeFault(a, "default-route "+gw.String(), err)
		}
	}
	return was, nil
}

func (t *task) recordDisplaced(i int, own []byte, all []displaced) (*record.Displaced, error) {
	d := &record.Displaced{Result: own}
	var raw []byte
	var err error
	if len(all) > 0 {
		if d.Defaults, err = json.Marshal(all); err != nil {
			return nil, stateFault(t.rec.Key(), err)
		}
	}
	if raw, err = json.Marshal(d); err != nil {
		return nil, stateFault(t.rec.Key(), err)
	}
	d.Result = nil // the attachment has it
	return d, t.append(journal.Phase{Phase: journal.Displacing, Item: i, Result: raw})
}

func routeFault(a *plan.Attachment, field string, err error) error {
	return &fault.Fault{Code: fault.Routes, Object: "network " + a.Network, Field: field, Text: err.Error(), Err: err}
}

// displacedBy reads what an attachment took the place of.
func displacedBy(a *record.Attachment) ([]displaced, error) {
	var all []displaced
	switch {
	case a.Displaced == nil && a.Result != nil:
		for _, gw := range a.Gateways {
			all = append(all, displaced{V6: kernel.FamilyOf(gw) == kernel.IPv6, guessed: true})
		}
	case a.Displaced != nil && len(a.Displaced.Defaults) > 0:
		if err := json.Unmarshal(a.Displaced.Defaults, &all); err != nil {
			return nil, fmt.Errorf("what its default routes took the place of: %w", err)
		}
	}
	return all, nil
}

// superseded reports whether another attachment has taken the default route of one that asks for it.
func superseded(s *record.Sandbox, i int, family kernel.Family) bool {
	for j := range s.Attachments {
		b := &s.Attachments[j]
		if j == i || b.Displaced == nil || !b.Present(s.Body.Plugged) {
			continue
		}
		all, _ := displacedBy(b) // CHECK tells of routes, not of the record
		if slices.ContainsFunc(all, func(d displaced) bool {
			return d.family() == family && d.through(s.Attachments[i].IfName)
		}) {
			return true
		}
	}
	return false
}

// giveBack puts back what the default routes of attachment i took the place of, before it goes: in
// the kernel, in the results, and as what others took the place of. It comes to the same however
// often it is begun.
func (c *change) giveBack(i int) error {
	a := &c.s.Attachments[i]
	all, err := displacedBy(a)
	if err != nil || len(all) == 0 {
		return err
	}
	ns, err := kernel.OpenNetns(c.req.sandbox.Netns)
	if err != nil {
		return routeFault(&a.Attachment, "default-route", err)
	}
	defer ns.Close() //nolint:errcheck // sockets of a process about to end
	for _, d := range all {
		if err := c.giveBackOne(ns, i, d); err != nil {
			return err
		}
	}
	a.Displaced, err = c.recordDisplaced(i, nil, nil)
	return err
}

// giveBackOne does so in one family.
func (c *change) giveBackOne(ns *kernel.Netns, i int, d displaced) error {
	a := &c.s.Attachments[i]
	taken, err := c.inherit(i, d)
	if err != nil {
		return err
	}
	if taken = taken || c.held(ns, i, d.family()); taken {
		d.Routes = nil
	}
	if d.guessed && !taken && !c.holds(ns, i, d.family()) {
		return nil
	}
	if err := ns.RestoreDefaultRoutes(d.family(), d.Routes, a.IfName); err != nil {
		return routeFault(&a.Attachment, "default-route", err)
	}
	if taken {
		return nil
	}
	if len(d.Routes) > 0 || d.guessed {
		if err := c.fallBack(ns, &d); err != nil {
			return err
		}
	}
	return c.tell(i, d)
}

// inherit makes another attachment that took the default route from i one that took it from those
// before i.
func (c *change) inherit(i int, d displaced) (taken bool, err error) {
	a := &c.s.Attachments[i]
	for j := range c.s.Attachments {
		b := &c.s.Attachments[j]
		if j == i || !b.Pending() || b.Displaced == nil {
			continue
		}
		all, err := displacedBy(b)
		if err != nil {
			return false, err
		}
		n := slices.IndexFunc(all, func(x displaced) bool { return x.V6 == d.V6 && x.through(a.IfName) })
		if n < 0 {
			continue
		}
		x := &all[n]
		x.Routes = slices.DeleteFunc(x.Routes, func(r kernel.SavedRoute) bool { return r.Through(a.IfName) })
		x.Routes = append(x.Routes, d.Routes...)
		x.Told = slices.DeleteFunc(x.Told, func(t told) bool { return t.IfName == a.IfName })
		x.Told = append(x.Told, d.Told...)
		if b.Displaced, err = c.recordDisplaced(j, nil, all); err != nil {
			return false, err
		}
		taken = true
	}
	return taken, nil
}

// held reports whether another attachment has the default route that it asks for.
func (c *change) held(ns *kernel.Netns, i int, family kernel.Family) bool {
	for j := range c.s.Attachments {
		if j != i && c.s.Attachments[j].Present(true) && c.holds(ns, j, family) {
			return true
		}
	}
	return false
}

// holds reports whether attachment i has the default route of a family that it asks for.
func (c *change) holds(ns *kernel.Netns, i int, family kernel.Family) bool {
	a := &c.s.Attachments[i]
	for _, gw := range a.Gateways {
		if kernel.FamilyOf(gw) == family && ns.VerifyDefaultRoute(a.IfName, gw) == nil {
			return true
		}
	}
	return false
}

// fallBack gives a family that would be left without a default route the pod network's gateway.
// This is for records that do not say what there was, and for links that are gone.
func (c *change) fallBack(ns *kernel.Netns, d *displaced) error {
	routes, err := ns.DefaultRoutes(d.family())
	if err != nil || len(routes) > 0 {
		return err
	}
	for i := range c.s.Attachments {
		a := &c.s.Attachments[i]
		if !a.Default || !a.Present(true) {
			continue
		}
		r, err := results.Parse(a.Result, a.Conf.CNIVersion)
		if err != nil {
			return resultFault(&a.Attachment, err)
		}
		gw, ok := r.Gateway(!d.V6)
		if !ok {
			return nil
		}
		if err := ns.SetDefaultRoute(a.IfName, gw); err != nil {
			return routeFault(&a.Attachment, "default-route "+gw.String(), err)
		}
		d.Told = []told{{Network: a.Network, IfName: a.IfName, Routes: []*types.Route{results.DefaultVia(gw)}}}
		return nil
	}
	return nil
}

// tell has the results say again what they said.
func (c *change) tell(i int, d displaced) error {
	for j := range c.s.Attachments {
		b := &c.s.Attachments[j]
		n := slices.IndexFunc(d.Told, func(t told) bool { return t.IfName == b.IfName && t.Network == b.Network })
		if j == i || n < 0 || !b.Present(true) {
			continue
		}
		r, err := results.Parse(b.Result, b.Conf.CNIVersion)
		if err != nil {
			return resultFault(&b.Attachment, err)
		}
		r.SetDefaults(!d.V6, d.Told[n].Routes)
		if err := c.tellOne(j, r); err != nil {
			return err
		}
	}
	return nil
}

// tellOne records the result of attachment j when it is another than before.
func (c *change) tellOne(j int, r *results.Result) error {
	b := &c.s.Attachments[j]
	raw, err := r.Bytes()
	if err != nil {
		return resultFault(&b.Attachment, err)
	}
	if b.Done && bytes.Equal(raw, b.Result) {
		return nil
	}
	if err := c.done(j, b.Attachment, r); err != nil {
		return err
	}
	b.Result, b.Done = raw, true
	return nil
}
