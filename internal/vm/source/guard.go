// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Parts of libvirt's protocol: a packet is its length, a header of six words, and a payload.
const (
	programRemote = 0x20008086
	programQEMU   = 0x20008087

	typeReply   = 1
	typeMessage = 2

	statusOK    = 0
	statusError = 1

	connectOpen = 1
	authList    = 66
	addresses   = 353

	agentCommand = 3 // of QEMU's program

	headerSize = 7 * word
	serialAt   = 5 * word
)

// Limits of what a packet may have, and of how many events there may be. A launcher may be its
// guest's, and what an agent answers is the guest's.
const (
	maxMessage = 32<<20 + word // what libvirt itself allows: no packet is longer
	maxPacket  = 1 << 20       // far more than the XML of a machine with hundreds of devices
	maxAgent   = 256 << 10     // an answer that is the agent's: thousands of addresses
	maxSmall   = 64 << 10      // an event, or an error
	maxEvents  = 1000          // a second; a machine that is migrated or plugged into has dozens
	buffered   = 1 << 8        // bytes that are read ahead: some events
)

// agents says whether what a call answers is the guest agent's, who may be anybody.
func (c call) agents() bool {
	return c == call{programRemote, addresses} || c == call{programQEMU, agentCommand}
}

// limit is how long a packet of a header may be.
func limit(is call, kind, status uint32) uint32 {
	switch {
	case kind == typeMessage || status == statusError:
		return maxSmall
	case is.agents():
		return maxAgent
	}
	return maxPacket
}

// shapes are those of the answers to what is asked here; others are refused.
func shapes(program, procedure uint32) (shape, bool) {
	const (
		getXML      = 14
		authPolkit  = 70
		getState    = 212
		listDomains = 273
		register    = 316
	)
	switch {
	case program == programQEMU && procedure == agentCommand:
		return "[s]", true // an optional string is a list of one
	case program != programRemote:
		return "", false
	}
	switch procedure {
	case connectOpen:
		return "", true
	case getXML:
		return "s", true
	case authList:
		return "[i]", true
	case getState:
		return "ii", true
	case listDomains:
		return "[sUi]i", true
	case register, authPolkit:
		return "i", true
	case addresses:
		return "[s[s][isi]]", true
	}
	return "", false
}

// guard is a connection to libvirt that hands on the answers that may be decoded, and ends with
// the first packet that may not. Messages (events) are not handed on: the caller is told that
// there was one.
type guard struct {
	conn    net.Conn
	in      *bufio.Reader
	event   func()
	second  time.Time   // when the one began in which events are counted
	events  int         // since then
	answers chan []byte // checked packets, one a question
	last    int32       // serial number of the last answer

	writing sync.Mutex
	sent    int32 // serial number of the last question that was written as a whole
	asked   call  // what it asks

	mu   sync.Mutex
	why  error
	once sync.Once
	done chan struct{} // closed when nothing more can be read
}

// call is what a question asks, and an answer answers.
type call struct{ program, procedure uint32 }

func callOf(packet []byte) call {
	return call{binary.BigEndian.Uint32(packet[word:]), binary.BigEndian.Uint32(packet[3*word:])}
}

func newGuard(conn net.Conn, event func()) *guard {
	return &guard{conn: conn, in: bufio.NewReaderSize(conn, buffered), event: event, answers: make(chan []byte, 1), done: make(chan struct{})}
}

// pump reads until the connection ends.
func (g *guard) pump() {
	for {
		packet, err := g.packet()
		if err != nil {
			g.end(err)
			return
		}
		if packet == nil {
			continue
		}
		select {
		case g.answers <- packet:
		case <-g.done:
			return
		}
	}
}

// writeLimit is for a peer that does not read: what is written is small.
const writeLimit = 10 * time.Second

// write writes a question within a time limit. Its answer is not handed on before that has ended
// well: the library waits for ever where an answer meets a question that could not be written.
func (g *guard) write(question []byte) error {
	g.writing.Lock()
	defer g.writing.Unlock()
	if err := g.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err := g.conn.Write(question)
	if err == nil {
		g.sent = int32(binary.BigEndian.Uint32(question[serialAt:])) //nolint:gosec // any bits
		g.asked = callOf(question)
	}
	return err
}

// question is the last one that was written: one is asked at a time.
func (g *guard) question() (int32, call) {
	g.writing.Lock()
	defer g.writing.Unlock()
	return g.sent, g.asked
}

func (g *guard) end(why error) {
	g.once.Do(func() {
		g.mu.Lock()
		g.why = why
		g.mu.Unlock()
		_ = g.conn.Close() // there is nothing that could be lost
		close(g.done)
	})
}

// fault is why the connection ended, nil while it has not.
func (g *guard) fault() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

// packet reads one that is to be handed on; nil: it was a message. No memory is taken for what is
// longer than such a packet may be.
func (g *guard) packet() ([]byte, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(g.in, head[:word]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < headerSize || n > maxMessage {
		return nil, fmt.Errorf("libvirt's socket sends a packet of %d bytes", n)
	}
	if _, err := io.ReadFull(g.in, head[word:]); err != nil {
		return nil, err
	}
	field := func(i int) uint32 { return binary.BigEndian.Uint32(head[i*word:]) }
	is, kind := callOf(head[:]), field(4)
	if most := limit(is, kind, field(6)); n > most {
		if is.agents() {
			return g.pass(head[:], n, most)
		}
		return nil, fmt.Errorf("libvirt's socket sends a packet of %d bytes (program %#x, procedure %d), more than %d", n, is.program, is.procedure, most)
	}
	if kind == typeMessage {
		if _, err := g.in.Discard(int(n - headerSize)); err != nil {
			return nil, err
		}
		return nil, g.message()
	}
	packet := make([]byte, n)
	copy(packet, head[:])
	if _, err := io.ReadFull(g.in, packet[headerSize:]); err != nil {
		return nil, err
	}
	return g.check(packet)
}

// pass passes over an agent's answer that is too long, and hands on an error in its place: a guest is
// not to end the connection, by which other things of its machine are told.
func (g *guard) pass(head []byte, n, most uint32) ([]byte, error) {
	text := fmt.Sprintf("the guest agent's answer of %d bytes is larger than %d", n, most)
	packet, err := g.check(failure(head, text))
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, g.in, int64(n-headerSize)); err != nil {
		return nil, err
	}
	return packet, nil
}

// failure is an error of libvirt's remote calls in place of the answer that has a header.
func failure(head []byte, text string) []byte {
	const (
		code, domain, level = 39, 7, 2 // VIR_ERR_RPC, VIR_FROM_RPC, VIR_ERR_ERROR
		isThere             = 1
	)
	packet := bytes.Clone(head[:headerSize])
	binary.BigEndian.PutUint32(packet[6*word:], statusError)
	for _, v := range []uint32{code, domain, isThere, uint32(len(text))} { //nolint:gosec // it is short
		packet = binary.BigEndian.AppendUint32(packet, v)
	}
	packet = append(packet, text...)
	for len(packet)%word != 0 {
		packet = append(packet, 0)
	}
	packet = binary.BigEndian.AppendUint32(packet, level)
	binary.BigEndian.PutUint32(packet, uint32(len(packet))) //nolint:gosec // it is short
	return packet
}

// message tells of an event. Who sends them without end would have the agent do nothing else.
func (g *guard) message() error {
	if now := time.Now(); now.Sub(g.second) >= time.Second {
		g.second, g.events = now, 0
	}
	if g.events++; g.events > maxEvents {
		return fmt.Errorf("libvirt's socket sends more than %d events a second", maxEvents)
	}
	g.event()
	return nil
}

// check refuses what is no answer to the last question. The library decodes an answer by what it
// asked, and whatever comes under the number of an event, also an error, as that event.
func (g *guard) check(packet []byte) ([]byte, error) {
	field := func(i int) uint32 { return binary.BigEndian.Uint32(packet[i*word:]) }
	is, kind, serial, status := callOf(packet), field(4), int32(field(5)), field(6) //nolint:gosec // any bits
	payload := packet[headerSize:]
	sent, asked := g.question()
	s, known := shapes(is.program, is.procedure)
	switch {
	case kind != typeReply || serial <= g.last || serial != sent:
		return nil, fmt.Errorf("libvirt's socket sends what was not asked for (program %#x, procedure %d, type %d)", is.program, is.procedure, kind)
	case is != asked || !known:
		return nil, fmt.Errorf("libvirt's socket answers procedure %d of program %#x, which nobody asked", is.procedure, is.program)
	case status == statusError:
		// Code, domain, that there is a message, the message, level; the rest is not decoded.
		if _, err := shape("iiisi").cut(payload); err != nil {
			return nil, fmt.Errorf("libvirt's socket sends an error that cannot be read: %w", err)
		}
	case status != statusOK:
		return nil, fmt.Errorf("libvirt's socket answers with status %d", status)
	default:
		if err := s.fits(payload); err != nil {
			return nil, fmt.Errorf("libvirt's socket answers procedure %d with what cannot be read: %w", is.procedure, err)
		}
	}
	g.last = serial
	return packet, nil
}
