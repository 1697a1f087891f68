// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logstest is what tests keep logs in, and what programs write beside them.
//
// It owns the lock that a log needs which is read while others write it. It knows nothing of
// what is written.
//
// Implements: architecture 4.4 (log), for tests.
package logstest

import (
	"bytes"
	"sync"
)

// Buffer is text that may be read while it is written. The zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is everything that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
