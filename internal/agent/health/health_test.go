// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server that ends with the test, and gives what asks it.
func serve(t *testing.T, opt Options) func(path string) (int, string) {
	t.Helper()
	opt.Address = "127.0.0.1:0"
	s := New(opt, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		client.CloseIdleConnections()
	})
	<-s.Ready()
	return func(path string) (int, string) {
		t.Helper()
		res, err := client.Get("http://" + s.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
}

func TestAnswers(t *testing.T) {
	var ready atomic.Bool
	opt := Options{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "m 1\n") }),
		Ready: func() (bool, []string) {
			if ready.Load() {
				return true, nil
			}
			return false, []string{"caches: no list yet", "planner: does not listen"}
		},
	}
	get := serve(t, opt)
	for _, c := range []struct {
		path string
		code int
		text string
	}{
		{"/healthz", 200, "ok\n"},
		{"/readyz", 503, "not ready\ncaches: no list yet\nplanner: does not listen\n"},
		{"/metrics", 200, "m 1\n"},
		{"/debug/pprof/", 404, "404 page not found\n"},
		{"/", 404, "404 page not found\n"},
	} {
		if code, text := get(c.path); code != c.code || text != c.text {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, text, c.code, c.text)
		}
	}
	ready.Store(true)
	if code, text := get("/readyz"); code != 200 || text != "ok\n" {
		t.Errorf("/readyz: %d %q", code, text)
	}
	opt.PProf = true
	if code, _ := serve(t, opt)("/debug/pprof/cmdline"); code != 200 {
		t.Errorf("/debug/pprof/cmdline: %d", code)
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := New(Options{Address: l.Addr().String()}, slog.New(slog.DiscardHandler))
	if err := s.Run(t.Context()); err == nil {
		t.Error("two servers listen to one address")
	}
}
