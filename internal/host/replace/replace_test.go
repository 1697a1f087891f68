// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package replace_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/host/replace"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// Whatever stood there, the file is the new one, with its mode, and nothing else is left.
func TestFile(t *testing.T) {
	before := map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"a file":  func(p string) error { return os.WriteFile(p, []byte("old"), 0o644) },
		"a link": func(p string) error {
			return errors.Join(os.WriteFile(p+".target", []byte("old"), 0o644), os.Symlink(p+".target", p))
		},
		"a broken link": func(p string) error { return os.Symlink("nowhere", p) },
		"a FIFO":        func(p string) error { return syscall.Mkfifo(p, 0o644) },
	}
	for name, make := range before {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "name")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if err := replace.File(path, 0o755, strings.NewReader("new")); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			info, _ := os.Lstat(path)
			if err != nil || string(b) != "new" || info.Mode() != 0o755 {
				t.Errorf("%q, %v, %v", b, info.Mode(), err)
			}
			if old, err := os.ReadFile(path + ".target"); err == nil && string(old) != "old" {
				t.Errorf("the link was followed: %q", old)
			}
		})
	}
}

// After an error everything is as it was.
func TestFileFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "name"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := replace.File(filepath.Join(dir, "name"), 0o600, strings.NewReader("x")); err == nil {
		t.Error("a directory was replaced")
	}
	if err := replace.File(filepath.Join(dir, "nowhere", "name"), 0o600, strings.NewReader("x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if err := replace.File(filepath.Join(dir, "other"), 0o600, failing{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("a source that fails: %v", err)
	}
	if diff := cmp.Diff([]string{"name"}, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error)       { return 0, syscall.EIO }
func (failing) Seek(int64, int) (int64, error) { return 0, nil }

func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".name.1.tmp", ".name.4294967295.tmp", ".name.x.tmp", ".name..tmp", ".name.1", "name.1.tmp", ".names.1.tmp", "name"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, err := replace.Leftovers(filepath.Join(dir, "name"))
	if n != 2 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if diff := cmp.Diff([]string{".name..tmp", ".name.1", ".name.x.tmp", ".names.1.tmp", "name", "name.1.tmp"}, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
	if n, err := replace.Leftovers(filepath.Join(dir, "nowhere", "name")); n != 0 || err != nil {
		t.Errorf("no directory: removed %d, %v", n, err)
	}
}

// Writers of one name, and one that clears up all the time, never let a reader see
// anything but one writer's bytes, and none fails for another reason than that its file was cleared.
func TestSideBySide(t *testing.T) {
	path := filepath.Join(t.TempDir(), "name")
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 10_000) }
	if err := replace.File(path, 0o600, bytes.NewReader(content(0))); err != nil {
		t.Fatal(err)
	}
	var writers, others sync.WaitGroup
	done := make(chan struct{})
	for i := range 3 {
		writers.Go(func() {
			for range 50 {
				if err := replace.File(path, 0o600, bytes.NewReader(content(i))); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("write: %v", err)
				}
			}
		})
	}
	others.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			b, err := os.ReadFile(path)
			if err != nil || len(b) != 10_000 || !bytes.Equal(b, bytes.Repeat(b[:1], 10_000)) {
				t.Errorf("a reader sees %d bytes, %v", len(b), err)
				return
			}
		}
	})
	others.Go(func() {
		for range 20 {
			if _, err := replace.Leftovers(path); err != nil {
				t.Errorf("clear up: %v", err)
			}
		}
	})
	writers.Wait()
	close(done)
	others.Wait()
	if _, err := replace.Leftovers(path); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"name"}, names(t, filepath.Dir(path))); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}
