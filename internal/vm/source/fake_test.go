// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// fake is a libvirt with one machine, as the other end of a connection. What it does wrong is set.
type fake struct {
	mu     sync.Mutex
	state  uint32
	xml    string
	guest  func() ([]byte, uint32) // payload and status of an answer to the agent's call
	silent bool                    // it answers nothing any more
	asked  int                     // how often the agent was
	conns  []net.Conn
}

func newFake() *fake {
	f := &fake{state: 1, xml: domainXML("connected")}
	f.addresses("10.0.0.5")
	return f
}

func domainXML(channel string) string {
	return `<domain><name>ns_vm</name><devices><interface type='ethernet'><mac address='02:00:00:00:00:01'/><alias name='ua-default'/></interface>` +
		`<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' state='` + channel + `'/></channel></devices></domain>`
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) addresses(ips ...string) {
	f.guest = func() ([]byte, uint32) {
		var p []byte
		p = u32(p, 1)
		p = str(p, "eth0")
		p = u32(p, 1)
		p = str(p, "02:00:00:00:00:01")
		p = u32(p, uint32(len(ips)))
		for _, ip := range ips {
			p = u32(p, 0)
			p = str(p, ip)
			p = u32(p, 24)
		}
		return p, 0
	}
}

func u32(p []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(p, v) }

func str(p []byte, s string) []byte {
	p = u32(p, uint32(len(s)))
	p = append(p, s...)
	for len(p)%4 != 0 {
		p = append(p, 0)
	}
	return p
}

// failure is the payload of an error.
func failure(code uint32, text string) []byte {
	return u32(u32(u32(str(u32(u32(u32(nil, code), 10), 1), text), 2), 0), 0)
}

func packet(program, procedure, kind, serial, status uint32, payload []byte) []byte {
	p := u32(nil, uint32(headerSize+len(payload)))
	for _, v := range []uint32{program, 1, procedure, kind, serial, status} {
		p = u32(p, v)
	}
	return append(p, payload...)
}

// dial gives a connection to it.
func (f *fake) dial() net.Conn {
	here, there := net.Pipe()
	f.set(func() { f.conns = append(f.conns, there) })
	go f.serve(there)
	return here
}

// drop ends all connections.
func (f *fake) drop() {
	f.set(func() {
		for _, c := range f.conns {
			c.Close()
		}
		f.conns = nil
	})
}

// happens sends an event.
func (f *fake) happens() {
	f.mu.Lock()
	conns := f.conns
	f.mu.Unlock()
	for _, c := range conns {
		_, _ = c.Write(packet(programRemote, 318, typeMessage, 0, 0, make([]byte, 40)))
	}
}

func (f *fake) serve(c net.Conn) {
	defer c.Close()
	for {
		head := make([]byte, headerSize)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		field := func(i int) uint32 { return binary.BigEndian.Uint32(head[i*4:]) }
		if _, err := io.CopyN(io.Discard, c, int64(field(0))-headerSize); err != nil {
			return
		}
		payload, status, ok := f.answer(field(3))
		if !ok {
			continue
		}
		if _, err := c.Write(packet(field(1), field(3), typeReply, field(5), status, payload)); err != nil {
			return
		}
	}
}

func (f *fake) answer(procedure uint32) (payload []byte, status uint32, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.silent {
		return nil, 0, false
	}
	switch procedure {
	case 66:
		return u32(nil, 0), 0, true
	case 212:
		return u32(u32(nil, f.state), 0), 0, true
	case 14:
		return str(nil, f.xml), 0, true
	case 273:
		p := str(u32(nil, 1), "ns_vm")
		return u32(u32(append(p, make([]byte, 16)...), 7), 1), 0, true
	case 316:
		return u32(nil, 1), 0, true
	case 353:
		f.asked++
		p, s := f.guest()
		return p, s, true
	}
	return nil, 0, true
}
