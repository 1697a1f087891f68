// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/kernel"
)

// experiment is the Ethernet type for local experiments; nobody else at hand sends it.
const experiment = 0x88b5

// port is a link and a socket that sends and receives frames of the experiment.
type port struct {
	t    *testing.T
	name string
	ns   kernel.Namespace
	link kernel.Link
	fd   int
}

// frame is a frame as it was received.
type frame struct {
	text      string
	tagged    bool
	vlan, qos int
}

// openPort brings a link up and opens its socket.
func openPort(t *testing.T, b bench, name string, ns kernel.Namespace, l kernel.Link, promiscuous bool) *port {
	t.Helper()
	must(t, b.SetUp(ns, l.Index, true))
	eventually(t, "carrier of "+name, func() bool {
		l, _ = b.LinkByIndex(ns, l.Index)
		return l.Running
	})
	p := &port{t: t, name: name, ns: ns, link: l}
	network := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	var err error
	p.fd, err = kernel.SocketIn(ns, func() (int, error) {
		return unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(network))
	})
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(p.fd)) })
	must(t, unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: l.Index}))
	must(t, unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
	must(t, unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}))
	if promiscuous {
		must(t, unix.SetsockoptPacketMreq(p.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(l.Index), Type: unix.PACKET_MR_PROMISC}))
	}
	return p
}

// send sends a text to everybody, in a VLAN of the sender's own if that is not 0.
func (p *port) send(text string, vlan uint16) {
	p.t.Helper()
	data := append(bytes.Repeat([]byte{0xff}, 6), p.link.MAC...)
	if vlan != 0 {
		data = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(data, unix.ETH_P_8021Q), vlan)
	}
	data = binary.BigEndian.AppendUint16(data, experiment)
	data = append(data, text...)
	data = append(data, make([]byte, 64)...)
	if _, err := unix.Write(p.fd, data); err != nil {
		p.t.Fatalf("%s sends %q: %v", p.name, text, err)
	}
}

// until receives frames of the experiment until one has the text: that is the last, and
// what was sent before it and is to come has come. It is sent again until it arrives.
func (p *port) until(text string, send func()) []frame {
	p.t.Helper()
	var all []frame
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		send()
		for {
			f, ok, err := p.receive()
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if errors.Is(err, unix.EINTR) {
				continue
			}
			must(p.t, err)
			if !ok {
				continue
			}
			if all = append(all, f); f.text == text {
				return all
			}
		}
	}
	p.t.Fatalf("%s does not receive %q, only %v", p.name, text, all)
	return nil
}

// receive receives one frame. The kernel takes the tag out of a frame and tells it beside.
func (p *port) receive() (f frame, ok bool, err error) {
	data, beside := make([]byte, 2048), make([]byte, 256)
	n, more, _, from, err := unix.Recvmsg(p.fd, data, beside, 0)
	if err != nil {
		return f, false, err
	}
	const header, typeAt = 14, 12
	if l, sent := from.(*unix.SockaddrLinklayer); n < header || sent && l.Pkttype == unix.PACKET_OUTGOING ||
		binary.BigEndian.Uint16(data[typeAt:]) != experiment {
		return f, false, nil
	}
	text, _, _ := bytes.Cut(data[header:n], []byte{0})
	f.text = string(text)
	messages, err := unix.ParseSocketControlMessage(beside[:more])
	if err != nil {
		return f, false, err
	}
	for _, m := range messages {
		const statusValid, tciAt, size = 1 << 4, 16, 20
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < size {
			continue
		}
		if binary.NativeEndian.Uint32(m.Data)&statusValid != 0 {
			tci := binary.NativeEndian.Uint16(m.Data[tciAt:])
			f.tagged, f.vlan, f.qos = true, int(tci&0xfff), int(tci>>13)
		}
	}
	return f, true, nil
}

func texts(frames []frame) []string {
	var all []string
	for _, f := range frames {
		if len(all) == 0 || all[len(all)-1] != f.text {
			all = append(all, f.text)
		}
	}
	return all
}

// farPort is the second card, which is wired to the first one and has no VFs: with VFs it would
// drop all VLANs that it was not told of, and here it is to see everything.
func farPort(t *testing.T, b bench) *port {
	t.Helper()
	must(t, b.SetNumVFs(b.pf(1), 0))
	return openPort(t, b, "the other PF", host, linkOf(t, b, host, b.pf(1)), true)
}

// vlanPorts moves VFs of the first PF into namespaces of their own, each in its VLAN.
func vlanPorts(t *testing.T, b bench, vlans ...int) []*port {
	t.Helper()
	const qos = 5
	ports := make([]*port, len(vlans))
	for i, addr := range vfAddrs(t, b, b.pf(0))[:len(vlans)] {
		if vlans[i] != 0 {
			must(t, b.SetVF(b.pf(0), i, kernel.VFChange{VLAN: &vlans[i], QoS: new(qos)}))
		}
		ns := b.namespace(t)
		l := linkOf(t, b, host, addr)
		// A VF tells its address to the PF through a mailbox, which is given up when the PF is slow.
		must(t, b.SetVF(b.pf(0), i, kernel.VFChange{MAC: l.MAC}))
		l, err := b.Move(host, l.Index, ns, fakePod)
		must(t, err)
		ports[i] = openPort(t, b, fmt.Sprintf("VF %d in VLAN %d", i, vlans[i]), ns, l, false)
	}
	return ports
}

func packetRules() []rule {
	return []rule{
		{name: "frames of a VF in VLAN 100 leave the PF tagged, with its QoS, and others' untagged", on: vfs, wire: true, vfs: 4, run: func(on trial) {
			t, b := on.t, on.bench
			ports := vlanPorts(t, b, 100, 0)
			far := farPort(t, b)
			for i, want := range []frame{{text: "tagged", tagged: true, vlan: 100, qos: 5}, {text: "untagged"}} {
				got := far.until(want.text, func() { ports[i].send(want.text, 0) })
				if last := got[len(got)-1]; last != want {
					t.Errorf("received %+v, not %+v", last, want)
				}
			}
		}},
		{name: "two VFs in one VLAN reach each other, and nothing crosses VLANs", on: vfs, wire: true, vfs: 4, run: func(on trial) {
			t, b := on.t, on.bench
			ports := vlanPorts(t, b, 100, 100, 200, 200)
			got := ports[1].until("in 100", func() {
				ports[2].send("from 200", 0)
				ports[0].send("in 100", 0)
			})
			if last := got[len(got)-1]; last.tagged || slices.Contains(texts(got), "from 200") {
				t.Errorf("VLAN 100 received %v", got)
			}
			got = ports[3].until("in 200", func() {
				ports[0].send("from 100", 0)
				ports[2].send("in 200", 0)
			})
			if last := got[len(got)-1]; last.tagged || slices.ContainsFunc(texts(got), func(s string) bool { return s == "from 100" || s == "in 100" }) {
				t.Errorf("VLAN 200 received %v", got)
			}
			talk(t, ports[0], ports[1])
		}},
		{name: "tagged frames from the wire reach the VFs of their VLAN alone, untagged", on: vfs, wire: true, vfs: 4, run: func(on trial) {
			t, b := on.t, on.bench
			ports := vlanPorts(t, b, 100, 200, 0)
			far := farPort(t, b)
			for i, vlan := range []uint16{100, 200, 0} {
				text := fmt.Sprintf("to %d", vlan)
				got := ports[i].until(text, func() {
					for _, other := range []uint16{100, 200, 0} {
						if other != vlan {
							far.send(fmt.Sprintf("to %d", other), other)
						}
					}
					far.send(text, vlan)
				})
				if last := got[len(got)-1]; last.tagged || !slices.Equal(texts(got), []string{text}) {
					t.Errorf("%s received %v", ports[i].name, got)
				}
			}
		}},
		{name: "a change of the VLAN acts at once", on: vfs, wire: true, vfs: 4, run: func(on trial) {
			t, b := on.t, on.bench
			ports := vlanPorts(t, b, 100)
			far := farPort(t, b)
			for _, vlan := range []int{200, 0, 100} {
				must(t, b.SetVF(b.pf(0), 0, kernel.VFChange{VLAN: &vlan}))
				text := fmt.Sprintf("in %d", vlan)
				got := far.until(text, func() { ports[0].send(text, 0) })
				if last := got[len(got)-1]; last.vlan != vlan || last.tagged != (vlan != 0) {
					t.Errorf("received %+v", last)
				}
			}
		}},
	}
}

// talk sends a datagram from one pod to another and back: addresses are resolved as well.
func talk(t *testing.T, a, b *port) {
	t.Helper()
	var conns []*net.UDPConn
	addrs := []string{"10.9.0.1", "10.9.0.2"}
	for i, p := range []*port{a, b} {
		n, err := kernel.OpenNetns(p.ns.Path)
		must(t, err)
		must(t, n.AddAddr(fakePod, netip.MustParsePrefix(addrs[i]+"/24")))
		conn, err := n.ListenUDP(context.Background(), fakePod, netip.AddrPortFrom(netip.MustParseAddr(addrs[i]), 4711))
		must(t, errors.Join(err, n.Close()))
		defer conn.Close()
		conns = append(conns, conn)
	}
	for i, p := range []*port{a, b} {
		conn := conns[i]
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addrs[1-i]), 4711))
		buffer := make([]byte, 16)
		eventually(t, "a datagram to "+addrs[1-i], func() bool {
			_, err := conn.WriteTo([]byte("hello"), to)
			must(t, err)
			must(t, conns[1-i].SetReadDeadline(time.Now().Add(time.Second)))
			n, err := conns[1-i].Read(buffer)
			if err != nil {
				t.Logf("%s: %v; %s", p.name, err, arp(t, p))
			}
			return err == nil && string(buffer[:n]) == "hello"
		})
	}
}

// arp is what a namespace knows of its neighbours.
func arp(t *testing.T, p *port) string {
	t.Helper()
	var text string
	must(t, kernel.With(p.ns, func(n *kernel.Netns, h *netlink.Handle) error {
		all, err := h.NeighList(p.link.Index, unix.AF_INET)
		for _, n := range all {
			text += fmt.Sprintf("%s is at %s (state %#x) ", n.IP, n.HardwareAddr, n.State)
		}
		return err
	}))
	return text
}
