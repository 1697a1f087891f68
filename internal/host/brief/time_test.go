// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package brief_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/internal/host/brief"
)

func TestWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if at, _ := brief.WithTimeout(outer, time.Hour).Deadline(); time.Until(at) != time.Minute {
			t.Errorf("%v are left of the outer minute", time.Until(at))
		}
		inner := brief.WithTimeout(outer, time.Second)
		if err := brief.Sleep(inner, time.Millisecond); err != nil {
			t.Error(err)
		}
		if err := brief.Sleep(inner, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sleep beyond the end: %v", err)
		}
		if at, _ := inner.Deadline(); !at.Equal(time.Now()) {
			t.Errorf("woke at %v, not at the end", time.Since(at))
		}
		cause := errors.New("cause")
		called, call := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { call(cause) })
		if err := brief.Sleep(brief.WithTimeout(called, time.Hour), time.Hour); !errors.Is(err, cause) {
			t.Errorf("cancelled sleep: %v", err)
		}
	})
	// Without anything to cancel it there is no timer either.
	if err := brief.Sleep(brief.WithTimeout(context.Background(), time.Millisecond), time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("sleep beyond the end: %v", err)
	}
}

func TestOpenFile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := brief.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not hang
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.SetDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("the file has a poller: %v", err)
	}
	if _, err := brief.ReadFile(fifo + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read of no file: %v", err)
	}
	if b, err := brief.ReadFile("/proc/self/comm"); err != nil || len(b) < 2 {
		t.Errorf("read %q, %v", b, err)
	}
}
