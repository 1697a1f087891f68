// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/host/wake"
)

// Pauses of what is tried again, and how much of it may run at once.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	atOnce     = 8
)

// retries is work that is tried until it succeeds. One piece has one key, and runs once at a time.
type retries struct {
	mu    sync.Mutex
	tasks map[string]*task
	wake  wake.Signal // there may be something to do
}

type task struct {
	do      func(context.Context) error
	due     time.Time
	pause   time.Duration
	running bool
	again   bool // it was asked for while it ran
}

func newRetries() *retries {
	return &retries{tasks: map[string]*task{}, wake: wake.New()}
}

// add has do called after a pause, and again until it gives no error. What has the key already is
// replaced, and keeps its rhythm.
func (r *retries) add(key string, after time.Duration, do func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tasks[key]; t != nil {
		t.do, t.again = do, t.running
		return
	}
	r.tasks[key] = &task{do: do, due: time.Now().Add(after), pause: firstPause}
	r.wake.Raise()
}

// drop forgets a piece of work.
func (r *retries) drop(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tasks, key)
}

// run works until ctx ends.
func (r *retries) run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	slots := make(chan struct{}, atOnce)
	for ctx.Err() == nil {
		key, t, wait := r.next(time.Now())
		if t == nil {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-r.wake:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		slots <- struct{}{} // workers end with ctx, too
		workers.Go(func() {
			defer func() { <-slots }()
			r.work(ctx, key, t)
		})
	}
}

// next gives the piece that is due longest, or how long there is none.
func (r *retries) next(now time.Time) (string, *task, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var key string
	var first *task
	for k, t := range r.tasks {
		if !t.running && (first == nil || t.due.Before(first.due)) {
			key, first = k, t
		}
	}
	if first == nil {
		return "", nil, lastPause
	}
	if wait := first.due.Sub(now); wait > 0 {
		return "", nil, wait
	}
	first.running = true
	return key, first, 0
}

func (r *retries) work(ctx context.Context, key string, t *task) {
	r.mu.Lock()
	do := t.do
	r.mu.Unlock()
	err := do(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	again := t.again
	t.running, t.again = false, false
	if err == nil && !again {
		if r.tasks[key] == t {
			delete(r.tasks, key)
		}
		return
	}
	t.due, t.pause = time.Now().Add(t.pause), min(2*t.pause, lastPause)
	r.wake.Raise()
}
