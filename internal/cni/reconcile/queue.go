// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"math/rand/v2"
	"sync"
	"time"
)

// How long a pod rests after a failure: it doubles from first to last,
// and is shorter by chance, by up to half.
const (
	firstRest = 250 * time.Millisecond
	lastRest  = time.Minute
)

// queue holds the pods that are to be looked at. Each is there once, is in work once, and
// is looked at again when it was added meanwhile. Urgent ones come first.
type queue struct {
	mu     sync.Mutex
	wake   *sync.Cond
	items  map[string]*item
	urgent []string
	normal []string
	closed bool
}

// item is one pod of the queue.
type item struct {
	is     phase
	urgent bool
	again  bool      // added while it was in work
	owed   bool      // there is something to do, unlike a look that is to come
	since  time.Time // since when that is so
	tries  int       // failures in a row
	timer  *time.Timer
}

type phase int

const (
	resting phase = iota + 1
	ready
	working
)

// verdict is what came of looking at a pod. The zero value: there is nothing to do.
type verdict struct {
	failed  bool
	after   time.Duration // the rest that was asked for, at least
	recheck time.Duration // look again then, though nothing is owed; 0 = not
}

func newQueue() *queue {
	q := &queue{items: map[string]*item{}}
	q.wake = sync.NewCond(&q.mu)
	return q
}

// add has a pod looked at. One that rests after a failure rests on, unless it is urgent.
func (q *queue) add(uid string, urgent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[uid]
	switch {
	case q.closed:
		return
	case it == nil:
		it = &item{is: resting}
		q.items[uid] = it
	case it.is == working:
		it.again, it.urgent = true, it.urgent || urgent
		return
	case it.is == resting && it.tries > 0 && !urgent, it.is == ready && (it.urgent || !urgent):
		return
	}
	q.ready(uid, it, urgent)
}

// ready lines an item up. The caller has the lock.
func (q *queue) ready(uid string, it *item, urgent bool) {
	if it.timer != nil {
		it.timer.Stop()
		it.timer = nil
	}
	if !it.owed {
		it.owed, it.since = true, time.Now()
	}
	it.is, it.urgent, it.again = ready, urgent, false
	if urgent {
		q.urgent = append(q.urgent, uid)
	} else {
		q.normal = append(q.normal, uid)
	}
	q.wake.Signal()
}

// next waits for a pod that is to be looked at; false = the queue was closed.
func (q *queue) next() (uid string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed {
		line := &q.urgent
		if len(*line) == 0 {
			line = &q.normal
		}
		if len(*line) == 0 {
			q.wake.Wait()
			continue
		}
		uid, *line = (*line)[0], (*line)[1:]
		// One that became urgent stands in both lines.
		if it := q.items[uid]; it != nil && it.is == ready {
			it.is, it.urgent = working, false
			return uid, true
		}
	}
	return "", false
}

// done says what came of the pod that next gave.
func (q *queue) done(uid string, v verdict) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[uid]
	if q.closed || it == nil {
		return
	}
	if v.failed {
		it.tries++
	} else {
		it.tries, it.owed = 0, false
	}
	switch {
	case it.again && (!v.failed || it.urgent):
		q.ready(uid, it, it.urgent)
	case v.failed:
		q.rest(uid, it, max(v.after, pause(it.tries)))
	case v.recheck > 0:
		q.rest(uid, it, v.recheck)
	default:
		delete(q.items, uid)
	}
}

func (q *queue) rest(uid string, it *item, d time.Duration) {
	it.is, it.urgent, it.again = resting, false, false
	var t *time.Timer
	t = time.AfterFunc(min(d, lastRest), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if now := q.items[uid]; !q.closed && now == it && it.timer == t {
			q.ready(uid, it, false)
		}
	})
	it.timer = t
}

// pause is the rest after so many failures.
func pause(tries int) time.Duration {
	d := min(firstRest<<min(tries-1, 16), lastRest)
	return d/2 + rand.N(d/2)
}

// lag counts the pods for which there is something to do, and says since when.
func (q *queue) lag() (pending int, oldest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.items {
		if it.owed {
			pending++
			oldest = max(oldest, time.Since(it.since))
		}
	}
	return pending, oldest
}

// close ends the queue: nobody waits in next any more, and nothing is added.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, it := range q.items {
		if it.timer != nil {
			it.timer.Stop()
		}
	}
	clear(q.items)
	q.wake.Broadcast()
}
