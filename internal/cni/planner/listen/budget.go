// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weftnet/weft/internal/cni/wire"
)

// reader reads a session's requests, each body only when there is room for all of it: many
// small ones at once, of the largest one after the other. Room is given in the order in
// which it was asked for, and taken back when the request was answered or the session ends.
type reader struct {
	*session
	ctx context.Context //nolint:containedctx // io.Reader has none; it ends with the session

	head [wire.HeaderSize]byte
	seen int   // bytes of the header
	held int64 // bytes of room
}

// Read reads of a request.
func (r *reader) Read(p []byte) (int, error) {
	if r.seen == len(r.head) {
		return r.conn.Read(p)
	}
	n, err := r.conn.Read(p[:min(len(p), len(r.head)-r.seen)])
	copy(r.head[r.seen:], p[:n])
	if r.seen += n; r.seen == len(r.head) && err == nil {
		err = r.room(wire.BodySize(r.head))
	}
	return n, err
}

// room waits for room for a body of that size, which then has to come. One that is too large
// is refused by its header, and needs none.
func (r *reader) room(size int64) error {
	if size > wire.MaxMessage {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.s.idle)
	defer cancel()
	if err := r.s.room.Acquire(ctx, size); err != nil {
		return errors.Join(fmt.Errorf("no room for a request of %d bytes: %w", size, err), os.ErrDeadlineExceeded)
	}
	r.held = size
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if !r.s.ending {
		_ = r.conn.SetReadDeadline(time.Now().Add(min(r.s.arrive, r.s.idle)))
	}
	return nil
}

// Write writes an answer; the next that is read is a header again.
func (r *reader) Write(p []byte) (int, error) {
	n, err := r.session.Write(p)
	r.free()
	return n, err
}

func (r *reader) free() {
	r.s.room.Release(r.held)
	r.held, r.seen = 0, 0
}
