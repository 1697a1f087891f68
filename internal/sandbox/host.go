// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/host/kernel"
)

// host is the pretended host: the sandbox's own network namespace, and the world beyond it.
type host struct {
	netns *kernel.Netns
	world *kernel.Netns // the other ends of the host's links
	links []string      // what was there before any pod
}

const (
	netnsDir  = "/run/netns"
	worldPath = "/run/weft-world"
)

// newHost gives the host lo and the links of masters, with carrier. eth0 has an address and
// the default route, as a node has. A link that cannot be made is a fault of its own.
func newHost(masters []string) (h *host, faults []error, err error) {
	h = &host{}
	if h.netns, err = kernel.OpenNetns("/proc/thread-self/ns/net"); err != nil {
		return nil, nil, err
	}
	if h.world, err = kernel.CreateNetns(worldPath); err != nil {
		return nil, nil, err
	}
	if err := h.netns.SetUp("lo", true); err != nil {
		return nil, nil, err
	}
	for _, name := range masters {
		if err := h.addLink(name); err != nil {
			faults = append(faults, err)
		}
	}
	if err := h.addressNode(); err != nil {
		return nil, nil, err
	}
	h.links, err = linkNames(h.netns)
	return h, faults, err
}

// addLink makes one link of the host; its other end is in the world, so that it has carrier.
func (h *host) addLink(name string) error {
	if err := h.netns.AddVeth(name, h.world, name); err != nil {
		return fmt.Errorf("make host link %q: %w", name, err)
	}
	return errors.Join(h.netns.SetUp(name, true), h.world.SetUp(name, true))
}

// addressNode gives eth0 the node's address: plugins without a master take the link of the
// default route. The addresses are those reserved for documentation.
func (h *host) addressNode() error {
	return errors.Join(
		h.netns.AddAddr("eth0", netip.MustParsePrefix("192.0.2.2/24")),
		h.world.AddAddr("eth0", netip.MustParsePrefix("192.0.2.1/24")),
		h.netns.SetDefaultRoute("eth0", netip.MustParseAddr("192.0.2.1")),
	)
}

// cut takes a link of the host down: one that was made for it, or a bridge of a plugin.
func (h *host) cut(name string, bridges []string) error {
	names, err := linkNames(h.netns)
	if err != nil {
		return err
	}
	if !slices.Contains(names, name) {
		known := slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(h.links, n) && !slices.Contains(bridges, n) })
		return fmt.Errorf("cut link %q: the pretended host has no such link, but %s", name, strings.Join(known, ", "))
	}
	return h.netns.SetUp(name, false)
}

// missingKinds lists the kinds of link that the running kernel does not have. They are
// tried in a namespace of their own.
func missingKinds(kinds []string) (missing []string, err error) {
	const path = "/run/weft-try"
	n, err := kernel.CreateNetns(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close(), kernel.RemoveNetns(path)) }()
	for _, kind := range kinds {
		can, err := n.CanMake(kind)
		if err != nil {
			return nil, err
		}
		if !can {
			missing = append(missing, kind)
		}
	}
	return missing, nil
}

func linkNames(n *kernel.Netns) ([]string, error) {
	links, err := n.Links()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(links))
	for _, l := range links {
		names = append(names, l.Name)
	}
	return names, nil
}

// createPodNetns makes a pod's namespace, as a runtime does before it calls any plugin.
func createPodNetns(path string) error {
	n, err := kernel.CreateNetns(path)
	if err != nil {
		return err
	}
	return n.Close()
}
