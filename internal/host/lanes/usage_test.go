// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestLook(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	look := func() Usage {
		t.Helper()
		u, err := Look(state, 4)
		must(t, err)
		return u
	}
	if u := look(); u != (Usage{Limit: 4, Kept: 1}) {
		t.Errorf("of a node without lanes: %+v", u)
	}
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("looking made something: %v", err)
	}
	l, err := Open(state, 4)
	must(t, err)
	var slots []*os.File
	for range 3 { // all that are not kept
		slot, err := l.Take(t.Context(), false)
		must(t, err)
		slots = append(slots, slot)
	}
	if u := look(); u != (Usage{Limit: 4, Kept: 1, InUse: 3}) {
		t.Errorf("three in use: %+v", u)
	}

	// Two wait: one at the gate, one behind it.
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	for range 2 {
		waiters.Go(func() {
			if slot, err := l.Take(ctx, false); !errors.Is(err, ErrBusy) {
				t.Errorf("%v %v", slot, err)
			}
		})
	}
	var u Usage
	for ends := time.Now().Add(30 * time.Second); u.Waiting != 2 && time.Now().Before(ends); { // Take sleeps in between
		u = look()
	}
	if u != (Usage{Limit: 4, Kept: 1, InUse: 3, Waiting: 2}) {
		t.Errorf("two wait: %+v", u)
	}
	// Nobody is kept out by those who look.
	urgent, err := l.Take(t.Context(), true)
	must(t, err)
	if u := look(); u.InUse != 4 {
		t.Errorf("an urgent one more: %+v", u)
	}
	cancel()
	waiters.Wait()
	for _, slot := range append(slots, urgent) {
		Release(slot)
	}
	if u := look(); u.InUse != 0 {
		t.Errorf("all are free: %+v", u)
	}
}
