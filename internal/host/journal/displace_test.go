// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// What is no file is moved out of the way as it is, and told; the key can be used.
func TestNotAFile(t *testing.T) {
	for kind, put := range map[string]func(path string) error{
		"a symbolic link": func(path string) error { return os.Symlink("target.jsonl", path) },
		"a FIFO":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder":        func(path string) error { return os.MkdirAll(filepath.Join(path, "in it"), 0o700) },
		"a socket": func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
	} {
		for how, get := range map[string]func(*Store) (*Record, error){
			"acquire": func(s *Store) (*Record, error) { return s.Acquire(t.Context(), "k") },
			"try":     func(s *Store) (*Record, error) { return s.TryAcquire("k") },
		} {
			t.Run(kind+"/"+how, func(t *testing.T) {
				s := newStore(t)
				must(t, put(s.Path("k")))
				before, err := os.Lstat(s.Path("k"))
				must(t, err)
				_, err = s.Read("k")
				if corrupt, ok := errors.AsType[*CorruptError](err); !ok || corrupt.Path != s.Path("k") || !strings.Contains(err.Error(), kind) {
					t.Errorf("reading: %v", err)
				}
				r, err := get(s)
				corrupt, ok := errors.AsType[*CorruptError](err)
				if !ok || r == nil || !r.State().Empty || !strings.Contains(err.Error(), kind) {
					t.Fatalf("got %v, %v", r, err)
				}
				kept, err := os.Lstat(corrupt.Path)
				if err != nil || !os.SameFile(before, kept) || filepath.Dir(corrupt.Path) != s.QuarantineDir() {
					t.Errorf("%s: %v", corrupt.Path, err)
				}
				if why, err := os.ReadFile(corrupt.Path + reasonSuffix); err != nil || string(why) != corrupt.Reason+"\n" {
					t.Errorf("its reason is %q, %v", why, err)
				}
				in := testIntent("k")
				must(t, r.Begin(in))
				wantState(t, s, "k", State{Intents: []Intent{in}})
				must(t, r.Close())
				must(t, s.PruneQuarantine(time.Now().Add(2*quarantineAge)))
				if _, err := os.Lstat(corrupt.Path); (err == nil) != kept.IsDir() {
					t.Errorf("pruned, a folder with something in it excepted: %v", err)
				}
			})
		}
	}
}

// Of many who find it at once all get the key, one after the other, and one file is kept.
func TestNotAFileForMany(t *testing.T) {
	s := newStore(t)
	must(t, os.Mkdir(s.Path("k"), 0o700))
	must(t, os.MkdirAll(filepath.Join(s.Path("k")+".tmp", "in it"), 0o700))
	var told atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			r, err := s.Acquire(t.Context(), "k")
			if _, ok := errors.AsType[*CorruptError](err); ok {
				told.Add(1)
				err = nil
			}
			if err != nil || r == nil {
				t.Errorf("got %v, %v", r, err)
				return
			}
			if err := errors.Join(r.Begin(testIntent("k")), r.Forget(), r.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if told.Load() > 1 {
		t.Errorf("it was told %d times", told.Load())
	}
	wantFiles(t, s.dir)
	if kept, err := filepath.Glob(filepath.Join(s.QuarantineDir(), "*"+recordSuffix)); err != nil || len(kept) != 2 {
		t.Errorf("quarantine holds %v, %v", kept, err)
	}
}
