// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// session is a connection as the library is given it, for as long as there are questions: the
// library holds several times as much memory for one as all else of a machine takes. Between two
// looks it has none. For libvirt there is one connection all the time, on which it tells of events:
// a later session opens nothing anew, and its serial numbers go on where the last one's ended.
type session struct {
	net.Conn // for what the library does not call
	guard    *guard
	before   int32         // the last serial number of earlier sessions
	local    chan []byte   // answers to what libvirt is not asked again
	over     chan struct{} // closed when the library is to let go of it
	attached chan struct{} // closed when the library has returned from connecting
	opened   bool          // the answer that ends its connecting was handed on
	pending  []byte        // of the packet that is being read
}

func (g *guard) session() *session {
	g.writing.Lock()
	defer g.writing.Unlock()
	return &session{
		Conn: g.conn, guard: g, before: g.sent, local: make(chan []byte, 1),
		over: make(chan struct{}), attached: make(chan struct{}),
	}
}

// Read gives bytes of checked packets. At its end the reason is the guard's to tell.
func (s *session) Read(b []byte) (int, error) {
	if len(s.pending) == 0 {
		if s.pending = s.next(); s.pending == nil {
			if s.opened {
				<-s.attached // the library is not to see the end in the midst of noting that it is connected
			}
			return 0, io.EOF
		}
		field := func(i int) uint32 { return binary.BigEndian.Uint32(s.pending[i*word:]) }
		s.opened = s.opened || field(1) == programRemote && field(3) == connectOpen && field(6) == statusOK
	}
	n := copy(b, s.pending)
	s.pending = s.pending[n:]
	return n, nil
}

func (s *session) next() []byte {
	select {
	case packet := <-s.guard.answers:
		return s.shift(packet, -s.before)
	case packet := <-s.local:
		return packet
	case <-s.over:
		return nil
	case <-s.guard.done:
	}
	select { // what came before the end
	case packet := <-s.guard.answers:
		return s.shift(packet, -s.before)
	default:
		return nil
	}
}

// shift changes a packet's serial number.
func (s *session) shift(packet []byte, by int32) []byte {
	at := packet[serialAt:]
	binary.BigEndian.PutUint32(at, binary.BigEndian.Uint32(at)+uint32(by)) //nolint:gosec // any bits
	return packet
}

// Write sends a question, which the library writes in one piece.
func (s *session) Write(b []byte) (int, error) {
	if len(b) < headerSize {
		return 0, errors.New("a question to libvirt is no packet")
	}
	if answer := s.known(b); answer != nil {
		s.local <- answer
		return len(b), nil
	}
	if err := s.guard.write(s.shift(bytes.Clone(b), s.before)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// known answers what a library begins with, and an earlier session has had answered by libvirt; nil
// for anything else.
func (s *session) known(question []byte) []byte {
	field := func(i int) uint32 { return binary.BigEndian.Uint32(question[i*word:]) }
	if s.before == 0 || field(1) != programRemote {
		return nil
	}
	answer := bytes.Clone(question[:headerSize])
	switch field(3) {
	case connectOpen:
	case authList:
		answer = binary.BigEndian.AppendUint32(answer, 0) // no kind of authentication
	default:
		return nil
	}
	binary.BigEndian.PutUint32(answer, uint32(len(answer))) //nolint:gosec // it is small
	binary.BigEndian.PutUint32(answer[4*word:], typeReply)
	binary.BigEndian.PutUint32(answer[6*word:], statusOK)
	return answer
}

// Close has the library let go of it; the connection stays.
func (s *session) Close() error {
	select {
	case <-s.over:
	default:
		close(s.over)
	}
	return nil
}
