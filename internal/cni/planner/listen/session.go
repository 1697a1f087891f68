// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/socket"
)

const (
	// What a peer that is refused may still say, so that it reads the refusal before it
	// sees the connection go.
	refusedTime  = time.Second
	refusedBytes = 64 << 10
)

// session is one connection.
type session struct {
	s    *Server
	conn *net.UnixConn
	busy bool // a request has arrived and is not answered yet; under s.mu

	asked time.Duration // how long the peer of the last request waits
	leave func()        // ends its waiting for room
}

// Write sends an answer, which wire gives as a whole; then the next request is waited for.
func (ses *session) Write(p []byte) (int, error) {
	ses.s.mu.Lock()
	if !ses.s.givenUp {
		_ = ses.conn.SetWriteDeadline(time.Now().Add(answerTime))
	}
	ses.s.mu.Unlock()
	n, err := ses.conn.Write(p)
	ses.wait()
	return n, err
}

// begin serves a connection in the background; gone is called at its end.
func (s *Server) begin(ctx context.Context, conn *net.UnixConn, gone func()) {
	here, leave := context.WithCancel(ctx)
	ses := &session{s: s, conn: conn, leave: leave}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[ses] = struct{}{}
	s.under.Go(func() {
		defer gone()
		defer conn.Close()
		defer leave()
		ses.serve(ctx, &reader{session: ses, ctx: here})
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sessions, ses)
	})
}

func (ses *session) serve(ctx context.Context, r *reader) {
	peer, err := socket.Peer(ses.conn)
	switch {
	case err != nil:
		ses.s.log.WarnContext(ctx, "cannot tell who asks", "error", err)
		ses.refuse("cannot tell who asks")
		return
	case peer.Uid != 0 && int(peer.Uid) != ses.s.uid:
		ses.s.log.WarnContext(ctx, "refuse a user who may not ask", "uid", peer.Uid, "pid", peer.Pid)
		ses.refuse(fmt.Sprintf("answers root and user %d alone, asked has user %d", ses.s.uid, peer.Uid))
		return
	}
	ses.wait()
	defer r.free()
	err = wire.Serve(r, r, func(req wire.Request) wire.Response { return ses.answer(ctx, req) })
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded) && ses.s.isEnding():
	case errors.Is(err, os.ErrDeadlineExceeded):
		ses.s.log.DebugContext(ctx, "close a connection that says nothing", "pid", peer.Pid)
	default: // a plugin that was killed, mostly
		ses.s.log.DebugContext(ctx, "connection is broken", "pid", peer.Pid, "error", err)
	}
}

// answer answers one request, which has arrived as a whole.
func (ses *session) answer(ctx context.Context, req wire.Request) wire.Response {
	s := ses.s
	s.mu.Lock()
	ses.busy = true
	s.mu.Unlock()
	ses.asked = time.Duration(req.TimeoutMS) * time.Millisecond
	defer func() {
		if p := recover(); p != nil {
			s.log.ErrorContext(ctx, "request panicked", "verb", req.Verb, "request", req.RequestID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			panic(p) // wire makes an answer of it
		}
	}()
	return s.handle(ctx, req)
}

// wait bounds the time until the next request is there as a whole; there is none once the
// server ends.
func (ses *session) wait() {
	ses.s.mu.Lock()
	defer ses.s.mu.Unlock()
	ses.busy = false
	until := time.Now().Add(max(ses.s.idle, min(ses.asked, maxIdle)))
	if ses.s.ending {
		until = past()
	}
	_ = ses.conn.SetReadDeadline(until)
}

// hurry ends a session that waits for a request. The server's lock is held.
func (ses *session) hurry() {
	if !ses.busy {
		_ = ses.conn.SetReadDeadline(past())
		ses.leave()
	}
}

func (s *Server) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// refuse answers an error whatever is asked.
func (ses *session) refuse(why string) {
	_ = ses.conn.SetDeadline(time.Now().Add(refusedTime))
	text := fault.New(fault.Config, ses.s.String(), "", "%s", why)
	if wire.Write(ses.conn, wire.Response{Version: wire.Version, Error: wire.NewError(text)}) != nil || ses.conn.CloseWrite() != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(ses.conn, refusedBytes))
}
