// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/weftnet/weft/internal/cni/wire"
)

// The tests' share of room, and a conf of which two have room in it, in base64.
const (
	testRoom  = 1 << 20
	largeConf = testRoom / 3
)

func largeRequest(id string) wire.PlanRequest {
	req := request(id)
	req.Conf = bytes.Repeat([]byte(" "), largeConf)
	return req
}

func littleRoom(s *Server) { s.room, s.arrive = semaphore.NewWeighted(testRoom), long }

// allRoom waits until nobody holds any.
func (r *rig) allRoom() {
	r.t.Helper()
	for end := time.Now().Add(long); !r.room.TryAcquire(testRoom); {
		if time.Now().After(end) {
			r.t.Fatal("some room was not given back")
		}
	}
	r.room.Release(testRoom)
}

// TestLargeRequests: however many large requests come at once, no more of their bytes are held
// than may be, and all are answered, small ones beside them.
func TestLargeRequests(t *testing.T) {
	var mu sync.Mutex
	under, most := 0, 0
	r := start(t, socketPath(t), func(ctx context.Context, req wire.Request) wire.Response {
		mu.Lock()
		under += len(req.Plan.Conf)
		most = max(most, under)
		mu.Unlock()
		defer func() {
			mu.Lock()
			under -= len(req.Plan.Conf)
			mu.Unlock()
		}()
		return echo(ctx, req)
	}, littleRoom)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*long)
			defer cancel()
			c, err := wire.Dial(ctx, r.path)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			id := fmt.Sprint(i)
			if p, err := c.Plan(ctx, largeRequest(id), nil); err != nil || p.PodName != id {
				t.Errorf("answer %v, %v", p, err)
			}
		})
	}
	for i := range 8 {
		r.asks(fmt.Sprint("small", i))
	}
	all.Wait()
	if most > testRoom || most < largeConf {
		t.Errorf("%d bytes were held at once, of at most %d", most, testRoom)
	}
	r.allRoom()
}

// TestPromisedRequest: who announces a large request and does not send it holds up the others
// for a while, and the server's end not at all.
func TestPromisedRequest(t *testing.T) {
	promise := func(r *rig) {
		c := r.conn()
		if _, err := c.Write(binary.BigEndian.AppendUint32(nil, testRoom)); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(long); r.room.TryAcquire(1); {
			r.room.Release(1)
			if time.Now().After(end) {
				t.Fatal("it takes no room")
			}
		}
	}
	r := start(t, socketPath(t), echo, func(s *Server) { littleRoom(s); s.arrive = 50 * time.Millisecond })
	promise(r)
	r.asks("after it")
	r.allRoom()
	r = start(t, socketPath(t), echo, littleRoom)
	promise(r)
	waiting := make(chan error, 1)
	go func() { _, err := ask(t.Context(), r.path, "waits"); waiting <- err }()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; err == nil {
		t.Error("who waited for room was answered")
	}
}
