// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// inspect fills in what a pod got: the kernel's view of its interfaces, and what Weft's
// record says about where they come from.
func (p *Pod) inspect(store *journal.Store) error {
	n, err := kernel.OpenNetns(p.Netns)
	if err != nil {
		return err
	}
	defer n.Close()
	links, err := n.Links()
	if err != nil {
		return err
	}
	if p.DefaultRoutes, err = defaultRoutes(n); err != nil {
		return err
	}
	state, err := store.Read(journal.Key(p.ContainerID + "-eth0"))
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	view, err := record.Decode(state, journal.BootID())
	if err != nil {
		return err
	}
	origins, err := p.status(view)
	if err != nil {
		return err
	}
	times := pluginTimes(state.Phases)
	for _, l := range links {
		if l.Name == "lo" {
			continue
		}
		i := show(l)
		if at, ok := origins[l.Name]; ok {
			i.Network = view.Attachments[at].Network
			i.Default = view.Attachments[at].Default
			i.PluginMilliseconds = toMilliseconds(times[at])
		}
		p.Interfaces = append(p.Interfaces, i)
	}
	return nil
}

func defaultRoutes(n *kernel.Netns) ([]DefaultRoute, error) {
	all := []DefaultRoute{}
	for _, family := range []kernel.Family{kernel.IPv4, kernel.IPv6} {
		routes, err := n.DefaultRoutes(family)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			for _, h := range r.Hops {
				all = append(all, DefaultRoute{Family: family.String(), Interface: h.Link, Gateway: h.Gateway})
			}
		}
	}
	return all, nil
}

// status computes the pod's network-status, and which attachment each interface is of.
func (p *Pod) status(view *record.Sandbox) (origins map[string]int, err error) {
	origins = map[string]int{}
	var answers []*results.Result
	for i, a := range view.Attachments {
		r, err := results.Parse(a.Result, a.Conf.CNIVersion)
		if err != nil {
			return nil, fmt.Errorf("read result of network %s: %w", a.Network, err)
		}
		answers = append(answers, r)
		origins[a.IfName] = i
		for _, e := range netstatus.Entries(a.Attachment, r, nil) {
			if e.Interface != "" {
				origins[e.Interface] = i
			}
		}
	}
	p.NetworkStatus = netstatus.Build(view.Body.Plan, answers, make([]json.RawMessage, len(answers)))
	return origins, nil
}

// show is a link without its link-local addresses, which the kernel makes by itself.
func show(l kernel.Link) Interface {
	i := Interface{Name: l.Name, MAC: l.MAC.String(), MTU: l.MTU, Addresses: []netip.Prefix{}, index: l.Index}
	for _, a := range l.Addrs {
		if a.Addr().IsLinkLocalUnicast() {
			i.linkLocal = a.Addr()
		} else {
			i.Addresses = append(i.Addresses, a)
		}
	}
	return i
}

// pluginTimes is how long each attachment of a record took: from the line before its first
// plugin was started to the line that says that it is done.
func pluginTimes(phases []journal.Phase) map[int]time.Duration {
	begun, took := map[int]time.Time{}, map[int]time.Duration{}
	for _, p := range phases {
		_, running := begun[p.Item]
		_, done := took[p.Item]
		switch {
		case p.Phase == journal.Attempting:
			begun[p.Item] = p.Time
		case p.Phase == journal.Done && running && !done:
			took[p.Item] = p.Time.Sub(begun[p.Item])
		}
	}
	return took
}

func openRecords() (*journal.Store, error) {
	return journal.Open(filepath.Join(stateDir, "attachments"), record.Kind)
}
