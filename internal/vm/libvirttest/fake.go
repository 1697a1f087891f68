// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package libvirttest is the other end of a connection to libvirt, for tests: it has machines that
// are all alike, whose state, XML and guest agent are set, and which can be told to misbehave.
//
// It owns the little of libvirt's protocol that internal/vm/source asks for, written anew and not
// shared with it, so that one checks the other.
//
// It is for tests alone, and holds no rule of Weft.
//
// Implements: the peer of internal/vm/source (architecture 3: an adapter's owner ships its fake).
package libvirttest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// Fake is a libvirt. Its fields are changed by Set once it serves.
type Fake struct {
	State  uint32
	XML    string
	Guest  func() ([]byte, uint32) // payload and status of an answer to the agent's call
	Itself string                  // what the agent answers when it is asked itself; empty: libvirt refuses that
	Silent bool                    // it answers nothing any more
	Stuck  string                  // a machine of which nothing is answered
	Mute   bool                    // an agent's question is never answered, all others are

	mu     sync.Mutex
	asked  int // how often an agent was
	dialed int // how often it was connected to
	names  []string
	conns  []net.Conn
}

// New makes one whose machines run, have one interface and an agent that reports an address.
func New(name string, more ...string) *Fake {
	f := &Fake{State: 1, XML: XML(name, "connected"), names: append([]string{name}, more...)}
	f.Addresses("10.0.0.5")
	return f
}

// XML is the machine's definition, with a state of its agent's channel.
func XML(name, channel string) string {
	return `<domain><name>` + name + `</name><devices><interface type='ethernet'><mac address='02:00:00:00:00:01'/><alias name='ua-default'/></interface>` +
		`<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' state='` + channel + `'/></channel></devices></domain>`
}

const (
	programRemote = 0x20008086
	programQEMU   = 0x20008087
	typeReply     = 1
	typeMessage   = 2
	statusError   = 1
	headerSize    = 28
	connectOpen   = 1
	internalError = 1
	noSupport     = 3
	agentCommand  = 3 // of QEMU's program

	agentAddresses = 353
)

// Set changes it while it serves.
func (f *Fake) Set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// Asked is how often the agent was.
func (f *Fake) Asked() (n int) {
	f.Set(func() { n = f.asked })
	return n
}

// Dialed is how often it was connected to.
func (f *Fake) Dialed() (n int) {
	f.Set(func() { n = f.dialed })
	return n
}

// Addresses has the agent report addresses of the interface.
func (f *Fake) Addresses(ips ...string) {
	f.Guest = func() ([]byte, uint32) {
		var p []byte
		p = U32(p, 1)
		p = Str(p, "eth0")
		p = U32(p, 1)
		p = Str(p, "02:00:00:00:00:01")
		p = U32(p, uint32(len(ips)))
		for _, ip := range ips {
			p = U32(p, 0)
			p = Str(p, ip)
			p = U32(p, 24)
		}
		return p, 0
	}
}

// U32 appends a number to a payload.
func U32(p []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(p, v) }

// Str appends a text to a payload.
func Str(p []byte, s string) []byte {
	p = U32(p, uint32(len(s)))
	p = append(p, s...)
	for len(p)%4 != 0 {
		p = append(p, 0)
	}
	return p
}

// Failure is the payload of an error.
func Failure(code uint32, text string) []byte {
	return U32(U32(U32(Str(U32(U32(U32(nil, code), 10), 1), text), 2), 0), 0)
}

// Packet is a packet of the protocol.
func Packet(program, procedure, kind, serial, status uint32, payload []byte) []byte {
	p := U32(nil, uint32(headerSize+len(payload)))
	for _, v := range []uint32{program, 1, procedure, kind, serial, status} {
		p = U32(p, v)
	}
	return append(p, payload...)
}

// Dial gives a connection to it.
func (f *Fake) Dial() net.Conn {
	here, there := net.Pipe()
	f.Set(func() {
		f.conns = append(f.conns, there)
		f.dialed++
	})
	go f.Serve(there)
	return here
}

// Drop ends all connections.
func (f *Fake) Drop() {
	f.Set(func() {
		for _, c := range f.conns {
			c.Close()
		}
		f.conns = nil
	})
}

// Happens sends an event.
func (f *Fake) Happens() {
	f.mu.Lock()
	conns := f.conns
	f.mu.Unlock()
	for _, c := range conns {
		_, _ = c.Write(Packet(programRemote, 318, typeMessage, 0, 0, make([]byte, 40)))
	}
}

// Serve answers on a connection until that ends.
func (f *Fake) Serve(c net.Conn) {
	defer c.Close()
	opened := false
	for {
		head := make([]byte, headerSize)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		field := func(i int) uint32 { return binary.BigEndian.Uint32(head[i*4:]) }
		question := make([]byte, max(0, int64(field(0))-headerSize))
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		payload, status, ok := f.answer(field(1), field(3), question)
		if field(1) == programRemote && field(3) == connectOpen {
			if opened { // as libvirt itself
				payload, status = Failure(internalError, "connection is already open"), statusError
			}
			opened = true
		}
		if !ok {
			continue
		}
		if _, err := c.Write(Packet(field(1), field(3), typeReply, field(5), status, payload)); err != nil {
			return
		}
	}
}

func (f *Fake) answer(program, procedure uint32, question []byte) (payload []byte, status uint32, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// What is asked of a machine begins with its name.
	if f.Silent || f.Stuck != "" && bytes.HasPrefix(question, Str(nil, f.Stuck)) {
		return nil, 0, false
	}
	agents := program == programQEMU && procedure == agentCommand || program == programRemote && procedure == agentAddresses
	if agents {
		f.asked++
	}
	switch {
	case agents && f.Mute:
		return nil, 0, false
	case program == programQEMU && procedure == agentCommand:
		if f.Itself == "" {
			return Failure(noSupport, "no custom commands here"), statusError, true
		}
		return Str(U32(nil, 1), f.Itself), 0, true
	}
	return f.remote(procedure)
}

// remote answers what is asked of libvirt itself, and of its machines.
func (f *Fake) remote(procedure uint32) (payload []byte, status uint32, ok bool) {
	switch procedure {
	case 66:
		return U32(nil, 0), 0, true
	case 212:
		return U32(U32(nil, f.State), 0), 0, true
	case 14:
		return Str(nil, f.XML), 0, true
	case 273:
		p := U32(nil, uint32(len(f.names)))
		for i, name := range f.names {
			p = U32(append(Str(p, name), make([]byte, 16)...), uint32(7+i))
		}
		return U32(p, uint32(len(f.names))), 0, true
	case 316:
		return U32(nil, 1), 0, true
	case agentAddresses:
		p, s := f.Guest()
		return p, s, true
	}
	return nil, 0, true
}
