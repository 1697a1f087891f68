// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"sync"
)

// keyed are locks by name. The zero value is ready.
type keyed struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is let go
}

// lock waits for a name until ctx ends.
func (k *keyed) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		taken, busy := k.held[name]
		if !busy {
			mine := make(chan struct{})
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			k.held[name] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				defer k.mu.Unlock()
				delete(k.held, name)
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-taken:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
