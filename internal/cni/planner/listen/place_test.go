// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/wire"
)

// TestWhatIsThere: what may be at the path when a server starts.
func TestWhatIsThere(t *testing.T) {
	path := socketPath(t)
	stale := func(path string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	stale(path)
	stale(path + suffix)
	r := start(t, path, echo, nil)
	r.asks("a")

	second, err := New(path, 0o600, echo, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another server does") {
		t.Errorf("two servers: %v", err)
	}
	r.asks("b") // unharmed
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	start(t, path, echo, nil).asks("c")

	file := socketPath(t)
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := New(file, 0o600, echo, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "mine" {
		t.Errorf("the file has %q", b)
	}
}

// TestKilledServer: what a killed server leaves, lock and socket, stops no other.
// TestTakenAway: who cleans up the socket's folder does not leave a server that nobody can
// reach: the socket comes back, or the server ends.
func TestTakenAway(t *testing.T) {
	path := socketPath(t)
	r := start(t, path, echo, func(s *Server) { s.look = 5 * time.Millisecond })
	before, err := wire.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	// Answered once, so that it has been accepted: what waits in the backlog goes with the socket.
	if _, err := before.Plan(t.Context(), request("first"), nil); err != nil {
		t.Fatal(err)
	}
	for _, take := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return errors.Join(os.Remove(path), os.Remove(path+".lock")) },
		func() error { return os.Rename(path, path+".old") },
	} {
		if err := take(); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); ; time.Sleep(time.Millisecond) { //nolint:forbidigo // polls a real socket, within a bound
			if c, err := net.Dial("unix", path); err == nil {
				c.Close()
				break
			}
			if time.Since(began) > long {
				t.Fatal("the socket does not come back")
			}
		}
		r.asks("again")
	}
	if p, err := before.Plan(t.Context(), request("old"), nil); err != nil || p.PodName != "old" {
		t.Errorf("an earlier connection: %v, %v", p, err)
	}
}

// TestFolderTakenAway: without its folder a server ends, and who started it says why.
func TestFolderTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "agent.sock")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := New(path, 0o600, echo, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.look = 5 * time.Millisecond
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	<-s.Ready()
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run ends with %v", err)
	}
}

func TestKilledServer(t *testing.T) {
	path := socketPath(t)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	syscall.Close(fd)
	if err := os.WriteFile(path+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, path, echo, nil).asks("a")
}

func TestPaths(t *testing.T) {
	for _, path := range []string{"", "agent.sock", "/" + strings.Repeat("x", 104)} {
		if _, err := New(path, 0o600, echo, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%q is taken", path)
		}
	}
	s, err := New(filepath.Join(t.TempDir(), "none", "agent.sock"), 0o600, echo, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}
