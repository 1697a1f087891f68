// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/vm/libvirttest"
	"github.com/weftnet/weft/vmistatus"
)

func TestShape(t *testing.T) {
	huge := libvirttest.U32(nil, 0xffffffff)
	for name, c := range map[string]struct {
		shape shape
		data  []byte
		fits  bool
	}{
		"word":                 {"i", libvirttest.U32(nil, 5), true},
		"short word":           {"i", []byte{1, 2, 3}, false},
		"string":               {"s", libvirttest.Str(nil, "abcde"), true},
		"string without end":   {"s", libvirttest.U32(nil, 5), false},
		"string of any length": {"s", huge, false},
		"list":                 {"[i]", libvirttest.U32(libvirttest.U32(libvirttest.U32(nil, 2), 1), 2), true},
		"list of any length":   {"[[s]]", append(huge, huge...), false},
		"list in a list":       {"[s[s][isi]]", append(libvirttest.Str(libvirttest.U32(nil, 1), "lo"), make([]byte, 8)...), true},
		"more":                 {"i", libvirttest.U32(libvirttest.U32(nil, 1), 2), false},
		"nothing":              {"", nil, true},
	} {
		if err := c.shape.fits(c.data); (err == nil) != c.fits {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What may not be decoded ends the connection, with the reason.
func TestGuard(t *testing.T) {
	for name, c := range map[string]struct {
		sent []byte
		want string // of the reason; "" = the packet is handed on
	}{
		"an error of an event":   {libvirttest.Packet(programRemote, 322, typeReply, 1, statusError, libvirttest.Failure(1, "x")), "nobody asked"},
		"another question's":     {libvirttest.Packet(programRemote, 14, typeReply, 1, 0, libvirttest.Str(nil, "\xff\xff\xff\xff")), "nobody asked"},
		"answer":                 {libvirttest.Packet(programRemote, 212, typeReply, 1, 0, libvirttest.U32(libvirttest.U32(nil, 1), 0)), ""},
		"error":                  {libvirttest.Packet(programRemote, 212, typeReply, 1, statusError, libvirttest.Failure(42, "no domain")), ""},
		"error without text":     {libvirttest.Packet(programRemote, 212, typeReply, 1, statusError, make([]byte, 8)), "cannot be read"},
		"shorter than a header":  {libvirttest.U32(nil, 4), "a packet of 4 bytes"},
		"longer than libvirt's":  {libvirttest.U32(nil, maxMessage+1), "a packet of 33554437 bytes"},
		"XML too long":           {libvirttest.Packet(programRemote, 14, typeReply, 1, 0, make([]byte, maxPacket)), "a packet of 1048604 bytes"},
		"an event too long":      {libvirttest.Packet(programRemote, 318, typeMessage, 0, 0, make([]byte, 64<<10)), "a packet of 65564 bytes"},
		"an error too long":      {libvirttest.Packet(programRemote, 212, typeReply, 1, statusError, libvirttest.Failure(1, strings.Repeat("x", 64<<10))), "a packet of 65"},
		"addresses unasked":      {libvirttest.Packet(programRemote, 353, typeReply, 1, 0, make([]byte, maxAgent)), "nobody asked"},
		"an agent's message":     {libvirttest.Packet(programQEMU, 3, typeMessage, 1, 0, make([]byte, maxAgent)), "not asked for"},
		"addresses without end":  {libvirttest.Packet(programRemote, 353, typeReply, 1, 0, make([]byte, maxAgent))[:maxAgent], "EOF"},
		"too many records":       {libvirttest.Packet(programRemote, 353, typeReply, 1, 0, append(libvirttest.U32(nil, 2049), make([]byte, 12*2049)...)), "list of 2049"},
		"too many addresses":     {libvirttest.Packet(programRemote, 353, typeReply, 1, 0, append(libvirttest.U32(append(libvirttest.U32(nil, 1), make([]byte, 8)...), 2049), make([]byte, 12*2049)...)), "list of 2049"},
		"events without end":     {bytes.Repeat(libvirttest.Packet(programRemote, 318, typeMessage, 0, 0, make([]byte, 40)), 2000), "events a second"},
		"counts beyond the end":  {libvirttest.Packet(programRemote, 353, typeReply, 1, 0, libvirttest.U32(nil, 0x7fffffff)), "counts"},
		"what nobody asked":      {libvirttest.Packet(programRemote, 999, typeReply, 1, 0, nil), "nobody asked"},
		"what libvirt has not":   {libvirttest.Packet(programRemote, 999, typeReply, 1, 0, nil), "nobody asked"},
		"another program":        {libvirttest.Packet(7, 1, typeReply, 1, 0, nil), "nobody asked"},
		"a call":                 {libvirttest.Packet(programRemote, 1, 0, 1, 0, nil), "not asked for"},
		"a stream":               {libvirttest.Packet(programRemote, 14, typeReply, 1, 2, nil), "status 2"},
		"the same answer again":  {libvirttest.Packet(programRemote, 212, typeReply, 0, 0, libvirttest.U32(libvirttest.U32(nil, 1), 0)), "not asked for"},
		"an answer too early":    {libvirttest.Packet(programRemote, 212, typeReply, 2, 0, libvirttest.U32(libvirttest.U32(nil, 1), 0)), "not asked for"},
		"event, then the answer": {append(libvirttest.Packet(programRemote, 318, typeMessage, 0, 0, make([]byte, 40)), libvirttest.Packet(programRemote, 316, typeReply, 1, 0, libvirttest.U32(nil, 1))...), ""},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			events := 0
			g := newGuard(here, func() { events++ })
			session := g.session()
			close(session.attached)
			g.sent, g.asked = 1, call{programRemote, 212}
			if asked := map[string]uint32{"addresses without end": 353, "too many records": 353, "too many addresses": 353, "counts beyond the end": 353, "a stream": 14, "event, then the answer": 316, "what libvirt has not": 999}[name]; asked != 0 {
				g.asked.procedure = asked
			}
			go g.pump()
			go func() {
				_, _ = there.Write(c.sent)
				there.Close()
			}()
			got, _ := io.ReadAll(session)
			why := g.fault()
			if c.want != "" {
				if len(got) > 0 || why == nil || !strings.Contains(why.Error(), c.want) {
					t.Errorf("%d bytes are handed on, the reason is %v; want %q", len(got), why, c.want)
				}
				return
			}
			last := c.sent
			if events == 1 {
				last = c.sent[headerSize+40:]
			}
			if !bytes.Equal(got, last) {
				t.Errorf("%d bytes are handed on, want %d; the reason is %v", len(got), len(last), why)
			}
		})
	}
}

// Whatever the other side sends, a read is an answer or an error, soon.
func FuzzConn(f *testing.F) {
	f.Add(libvirttest.Packet(programRemote, 66, typeReply, 1, 0, libvirttest.U32(nil, 0)))
	f.Add(libvirttest.Packet(programRemote, 66, typeReply, 1, statusError, libvirttest.Failure(1, "x")))
	f.Add(append(libvirttest.Packet(programRemote, 66, typeReply, 1, 0, libvirttest.U32(nil, 0)), libvirttest.Packet(programRemote, 1, typeReply, 2, 0, nil)...))
	f.Add(conversation())
	f.Fuzz(func(t *testing.T, sent []byte) {
		here, there := net.Pipe()
		go answer(there, sent)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := Dial(ctx, here, "qemu:///system", func() {})
		if err == nil {
			if all, err := c.Domains(ctx); err == nil && len(all) > 0 {
				_, _ = c.Read(ctx, all[0], Snapshot{}, time.Unix(1, 0))
			}
			_ = c.Close()
		}
		if ctx.Err() != nil {
			t.Fatal("it takes too long")
		}
	})
}

// answer sends what looks like a packet after each question, and the rest of what is not one at once:
// what comes before its question is refused. At the end it hangs up.
func answer(c net.Conn, sent []byte) {
	defer c.Close()
	for len(sent) > 0 {
		question := make([]byte, headerSize)
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(question))-headerSize); err != nil {
			return
		}
		for isMessage := true; isMessage && len(sent) > 0; { // which is no answer
			n := len(sent)
			isMessage = false
			if n >= headerSize {
				isMessage = binary.BigEndian.Uint32(sent[4*word:]) == typeMessage
				if size := binary.BigEndian.Uint32(sent); size >= headerSize && int64(size) < int64(n) {
					n = int(size)
				}
			}
			if _, err := c.Write(sent[:n]); err != nil {
				return
			}
			sent = sent[n:]
		}
	}
}

// conversation is what libvirt answers from the first question to the guest's addresses.
func conversation() (all []byte) {
	serial := uint32(0)
	say := func(procedure uint32, payload []byte) {
		serial++
		all = append(all, libvirttest.Packet(programRemote, procedure, typeReply, serial, statusOK, payload)...)
	}
	say(authList, libvirttest.U32(nil, 0))
	say(connectOpen, nil)
	for id := range uint32(5) {
		say(316, libvirttest.U32(nil, id)) // events
	}
	domain := append(libvirttest.Str(libvirttest.U32(nil, 1), "ns_vm"), make([]byte, 16)...)
	say(273, libvirttest.U32(libvirttest.U32(domain, 7), 1))
	say(212, libvirttest.U32(libvirttest.U32(nil, 1), 0))
	say(14, libvirttest.Str(nil, libvirttest.XML("ns_vm", "connected")))
	say(353, libvirttest.U32(libvirttest.U32(libvirttest.Str(libvirttest.U32(nil, 1), "eth0"), 0), 0))
	return all
}

// The conversation is one that works, or the fuzzing of it would reach nothing.
func TestConversation(t *testing.T) {
	here, there := net.Pipe()
	go answer(there, conversation())
	c, err := Dial(t.Context(), here, "qemu:///system", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := c.Find(t.Context(), "ns_vm")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Read(t.Context(), d, Snapshot{}, time.Unix(1, 0))
	if want := []vmistatus.GuestInterface{{Name: "eth0"}}; err != nil || !cmp.Equal(want, s.Domain.Guest) {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestRead(t *testing.T) {
	f := libvirttest.New("ns_vm")
	c, err := Dial(t.Context(), f.Dial(), "qemu:///system", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := c.Find(t.Context(), "ns_vm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Find(t.Context(), "other"); err == nil {
		t.Error("a machine that is not there is found")
	}
	s, err := c.Read(t.Context(), d, Snapshot{}, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := []vmistatus.GuestInterface{{Name: "eth0", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.0.5"}}}
	if d := cmp.Diff(want, s.Domain.Guest); d != "" || s.Domain.Agent != vmistatus.AgentConnected || s.State != Running || !s.GuestAt.Equal(time.Unix(1, 0)) {
		t.Errorf("%+v %s", s, d)
	}
	// What cannot be read is said, and what was known is kept.
	f.Set(func() { f.XML = "<domain>" })
	broken, err := c.Read(t.Context(), d, s, time.Unix(2, 0))
	if err != nil || broken.Domain.Err == nil || len(broken.Domain.Guest) != 1 {
		t.Errorf("%+v, %v: want the XML's fault beside the guest's data", broken, err)
	}
	f.Set(func() {
		f.XML = libvirttest.XML("ns_vm", "connected")
		f.Guest = func() ([]byte, uint32) { return libvirttest.Failure(86, "agent not responding"), statusError }
	})
	mute, err := c.Read(t.Context(), d, s, time.Unix(3, 0))
	if err != nil || mute.Domain.GuestErr == nil || mute.Domain.Agent != vmistatus.AgentSilent || len(mute.Domain.Guest) != 1 || !mute.GuestAt.Equal(time.Unix(1, 0)) {
		t.Errorf("%+v, %v: want the agent's fault beside its last answer", mute, err)
	}
	f.Set(func() { f.State = 3 })
	before := f.Asked()
	paused, err := c.Read(t.Context(), d, s, time.Unix(4, 0))
	if err != nil || paused.State != Paused || paused.Domain.Agent != vmistatus.AgentSilent || f.Asked() != before {
		t.Errorf("%+v, %v: want the last answer, marked, and no question to who cannot answer", paused, err)
	}
}

// Case 50 of section 6: where libvirt itself is why there is no answer, the agent is asked itself; who
// does not answer is not asked a second time.
func TestAgentAskedItself(t *testing.T) {
	const (
		internal, noSupport, unresponsive = 1, 3, 86
		old                               = `{"return": [{"name": "eth0", "hardware-address": "02:00:00:00:00:01", "ip-addresses": [{"ip-address": "10.0.0.6"}]}]}`
	)
	for name, c := range map[string]struct {
		code   uint32
		itself string
		asked  int
		want   string // of the guest's addresses, or of the error
	}{
		"libvirt lacks the call":                  {noSupport, old, 2, "10.0.0.6"},
		"libvirt refuses a part of the answer":    {internal, old, 2, "10.0.0.6"},
		"libvirt refuses commands too":            {noSupport, "", 2, "the call fails"},
		"the agent's own answer is broken":        {noSupport, `{"return": [`, 2, "guest interfaces: "},
		"the agent does not answer, as it is off": {unresponsive, old, 1, "the call fails"},
	} {
		t.Run(name, func(t *testing.T) {
			f := libvirttest.New("ns_vm")
			f.Itself = c.itself
			f.Guest = func() ([]byte, uint32) { return libvirttest.Failure(c.code, "the call fails"), statusError }
			conn, err := Dial(t.Context(), f.Dial(), "qemu:///system", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			d, err := conn.Find(t.Context(), "ns_vm")
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			guest, err := conn.Guest(t.Context(), d)
			if err != nil {
				got = err.Error()
			} else if len(guest) == 1 {
				got = strings.Join(guest[0].IPs, " ")
			}
			if !strings.Contains(got, c.want) || f.Asked() != c.asked {
				t.Errorf("%q with %d questions, want %q with %d", got, f.Asked(), c.want, c.asked)
			}
		})
	}
}

// A guest that answers more than is read is told of as what it is, and costs the connection nothing:
// neither the events on it nor the next answer.
func TestAnswerTooLarge(t *testing.T) {
	huge := strings.Repeat("x", maxAgent)
	for name, c := range map[string]struct {
		guest  func() ([]byte, uint32)
		itself string
		asked  int
	}{
		"addresses":                    {func() ([]byte, uint32) { return libvirttest.Str(libvirttest.U32(nil, 1), huge), statusOK }, "", 1},
		"as large as libvirt sends it": {func() ([]byte, uint32) { return make([]byte, maxMessage-headerSize), statusOK }, "", 1},
		"an error":                     {func() ([]byte, uint32) { return libvirttest.Failure(1, huge), statusError }, "", 1},
		"the agent itself":             {func() ([]byte, uint32) { return libvirttest.Failure(3, "no such call"), statusError }, huge, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := libvirttest.New("ns_vm")
			f.Guest, f.Itself = c.guest, c.itself
			events := make(chan struct{}, 1)
			conn, err := Dial(t.Context(), f.Dial(), "qemu:///system", func() { events <- struct{}{} })
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			d, err := conn.Find(t.Context(), "ns_vm")
			if err != nil {
				t.Fatal(err)
			}
			s, err := conn.Read(t.Context(), d, Snapshot{}, time.Unix(1, 0))
			want := "is larger than"
			if c.asked > 1 {
				want = "no such call" // the first fault says more
			}
			if err != nil || s.Domain.GuestErr == nil || !strings.Contains(s.Domain.GuestErr.Error(), want) || f.Asked() != c.asked {
				t.Fatalf("%+v, %v with %d questions, want %q with %d", s.Domain, err, f.Asked(), want, c.asked)
			}
			conn.Rest()
			f.Happens()
			<-events
			f.Set(func() { f.Addresses("10.0.0.7") })
			if s, err = conn.Read(t.Context(), d, s, time.Unix(2, 0)); err != nil || len(s.Domain.Guest) != 1 || s.Domain.GuestErr != nil {
				t.Errorf("%+v, %v: want the next answer, on the same connection", s.Domain, err)
			}
		})
	}
}

// After a rest it is asked on the same connection, which told of events meanwhile.
func TestRest(t *testing.T) {
	f := libvirttest.New("ns_vm")
	events := make(chan struct{}, 1)
	c, err := Dial(t.Context(), f.Dial(), "qemu:///system", func() { events <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		d, err := c.Find(t.Context(), "ns_vm")
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Read(t.Context(), d, Snapshot{}, time.Unix(1, 0)); err != nil || s.Domain.Agent != vmistatus.AgentConnected {
			t.Errorf("%+v, %v", s, err)
		}
		c.Rest()
		c.Rest()
		f.Happens()
		<-events
	}
	f.Drop()
	<-c.Done()
	if _, err := c.Find(t.Context(), "ns_vm"); err == nil {
		t.Error("a connection that has ended answers")
	}
}
