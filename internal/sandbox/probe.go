// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
)

const (
	// probeTime bounds one probe. The first packet over a bridge may wait for the address of
	// its target to be found, and a new IPv6 address for the kernel to allow its use.
	probeTime = 5 * time.Second
	// resendAfter is when the packet is sent again: a link may drop while it comes up.
	resendAfter = 200 * time.Millisecond
)

// planProbes pairs the interfaces of pods that share a network: each with the next, the last
// with the first, so that every one of them sends and receives; in every family in which both
// have an address, and by link-local addresses when there is no such family.
func planProbes(pods []Pod) []Probe {
	type member struct {
		pod Pod
		i   Interface
	}
	var order []string
	members := map[string][]member{}
	for _, p := range pods {
		seen := map[string]bool{}
		for _, i := range p.Interfaces {
			// A pod that is in a network twice does not probe itself.
			if i.Default || i.Network == "" || seen[i.Network] {
				continue
			}
			seen[i.Network] = true
			if members[i.Network] == nil {
				order = append(order, i.Network)
			}
			members[i.Network] = append(members[i.Network], member{p, i})
		}
	}
	probes := []Probe{}
	for _, network := range order {
		group := members[network]
		if len(group) < 2 {
			continue
		}
		for at, from := range group {
			to := group[(at+1)%len(group)]
			for _, pair := range pairs(from.i, to.i) {
				probes = append(probes, Probe{
					Network: network,
					From:    Endpoint{Pod: from.pod.id(), Interface: from.i.Name, Address: pair[0], index: from.i.index},
					To:      Endpoint{Pod: to.pod.id(), Interface: to.i.Name, Address: pair[1], index: to.i.index},
				})
			}
		}
	}
	return probes
}

func pairs(a, b Interface) [][2]netip.Addr {
	var all [][2]netip.Addr
	for _, family := range []kernel.Family{kernel.IPv4, kernel.IPv6} {
		of := func(p netip.Prefix) bool { return kernel.FamilyOf(p.Addr()) == family }
		x, y := slices.IndexFunc(a.Addresses, of), slices.IndexFunc(b.Addresses, of)
		if x >= 0 && y >= 0 {
			all = append(all, [2]netip.Addr{a.Addresses[x].Addr(), b.Addresses[y].Addr()})
		}
	}
	if len(all) == 0 && a.linkLocal.IsValid() && b.linkLocal.IsValid() {
		all = append(all, [2]netip.Addr{a.linkLocal, b.linkLocal})
	}
	return all
}

// probesAtOnce bounds how many probes run at once, for their times to mean something.
const probesAtOnce = 8

// runProbes runs all probes; those that fail take their time, so several run at once.
func runProbes(ctx context.Context, probes []Probe, paths map[string]string) {
	slots := make(chan struct{}, probesAtOnce)
	var all sync.WaitGroup
	for at := range probes {
		slots <- struct{}{}
		all.Go(func() {
			probes[at].run(ctx, paths)
			<-slots
		})
	}
	all.Wait()
}

// run sends the probe's packet. paths maps pods to their namespaces.
func (p *Probe) run(ctx context.Context, paths map[string]string) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	took, err := p.exchange(ctx, paths)
	if err != nil {
		p.Error = err.Error()
		return
	}
	p.Milliseconds = toMilliseconds(took)
}

func (p *Probe) exchange(ctx context.Context, paths map[string]string) (time.Duration, error) {
	receiver, err := listen(ctx, paths[p.To.Pod], p.To)
	if err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	defer receiver.Close()
	sender, err := listen(ctx, paths[p.From.Pod], p.From)
	if err != nil {
		return 0, fmt.Errorf("send: %w", err)
	}
	defer sender.Close()
	to, err := netip.ParseAddrPort(receiver.LocalAddr().String())
	if err != nil {
		return 0, fmt.Errorf("read own address: %w", err)
	}
	to = netip.AddrPortFrom(zoned(p.To.Address, p.From.index), to.Port())
	return sendNonce(ctx, sender, receiver, to, p.From.Address)
}

// sendNonce sends a fresh random number until it arrives from the right address, and tells
// how long the packet that arrived first was under way at most.
func sendNonce(ctx context.Context, sender, receiver *net.UDPConn, to netip.AddrPort, from netip.Addr) (time.Duration, error) {
	nonce := make([]byte, 32)
	if _, err := rand.Read(nonce); err != nil {
		return 0, fmt.Errorf("make nonce: %w", err)
	}
	var last error
	for ctx.Err() == nil {
		begin := time.Now()
		if _, last = sender.WriteToUDPAddrPort(nonce, to); last != nil {
			last = fmt.Errorf("send: %w", last)
		}
		ok, err := awaitNonce(receiver, nonce, from, begin.Add(resendAfter))
		if err != nil {
			return 0, err
		}
		if ok {
			return time.Since(begin), nil
		}
	}
	if last == nil {
		last = fmt.Errorf("nothing arrived in %s", probeTime)
	}
	return 0, last
}

// awaitNonce reads until the nonce comes. Anything else that comes is not it.
func awaitNonce(receiver *net.UDPConn, nonce []byte, from netip.Addr, until time.Time) (bool, error) {
	if err := receiver.SetReadDeadline(until); err != nil {
		return false, fmt.Errorf("receive: %w", err)
	}
	buf := make([]byte, 2*len(nonce))
	for {
		n, source, err := receiver.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("receive: %w", err)
		case slices.Equal(buf[:n], nonce) && source.Addr().Unmap().WithZone("") == from:
			return true, nil
		}
	}
}

// listen opens a socket on one end, waiting while the kernel still checks that nobody else
// has a new IPv6 address.
func listen(ctx context.Context, path string, end Endpoint) (*net.UDPConn, error) {
	n, err := kernel.OpenNetns(path)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	addr := netip.AddrPortFrom(zoned(end.Address, end.index), 0)
	tick := time.NewTicker(resendAfter)
	defer tick.Stop()
	for {
		conn, err := n.ListenUDP(ctx, end.Interface, addr)
		if !errors.Is(err, unix.EADDRNOTAVAIL) {
			return conn, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// zoned adds to a link-local address the link that it is on; other addresses need none. It is
// given as a number, since names are looked up in the namespace of who asks.
func zoned(addr netip.Addr, index int) netip.Addr {
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		return addr.WithZone(strconv.Itoa(index))
	}
	return addr
}
