// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestQueue: who is next, and when.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		defer q.close()
		start := time.Now()
		next := func(want string, after time.Duration) {
			t.Helper()
			if uid, ok := q.next(); !ok || uid != want || time.Since(start) != after {
				t.Errorf("next is %q, %v after %v, want %q after %v", uid, ok, time.Since(start), want, after)
			}
		}
		lag := func(want int, age time.Duration) {
			t.Helper()
			if n, oldest := q.lag(); n != want || oldest != age {
				t.Errorf("%d wait since %v, want %d since %v", n, oldest, want, age)
			}
		}
		q.add("a", false)
		q.add("b", false)
		q.add("a", false)
		q.add("c", true)
		q.add("b", true) // stands in both lines from now on
		next("c", 0)
		next("b", 0)
		q.done("b", verdict{})
		next("a", 0)
		q.done("a", verdict{})
		lag(1, 0)

		// In work it is added again: it is looked at again, once.
		q.add("c", false)
		q.add("c", false)
		q.add("d", false)
		q.done("c", verdict{})
		next("d", 0)
		next("c", 0)
		q.done("c", verdict{recheck: time.Second})
		q.done("d", verdict{failed: true, after: 3 * time.Second})
		lag(1, 0) // a look that is to come is not owed
		q.add("d", false)
		next("c", time.Second)
		q.done("c", verdict{})
		next("d", 3*time.Second)
		lag(1, 3*time.Second)

		// What is urgent does not rest, not even when it became urgent in work.
		q.add("d", true)
		q.done("d", verdict{failed: true})
		next("d", 3*time.Second)
		q.add("d", false)
		q.done("d", verdict{failed: true, after: time.Hour})
		q.add("d", true)
		next("d", 3*time.Second)
		q.done("d", verdict{failed: true, after: time.Hour})
		next("d", 3*time.Second+lastRest)
		q.done("d", verdict{})
		lag(0, 0)
		if len(q.items)+len(q.normal)+len(q.urgent) != 0 {
			t.Errorf("left %v, %v, %v", q.items, q.normal, q.urgent)
		}
	})
}

func TestPause(t *testing.T) {
	for tries, want := range map[int]time.Duration{1: firstRest, 2: 2 * firstRest, 5: 16 * firstRest, 9: lastRest, 1000: lastRest} {
		for range 100 {
			if d := pause(tries); d < want/2 || d > want {
				t.Errorf("after %d failures %v", tries, d)
			}
		}
	}
}
