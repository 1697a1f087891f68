// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package health serves what the node's probes and its monitoring ask over HTTP: /healthz,
// /readyz with its reasons, /metrics and, when it is wanted, /debug/pprof.
//
// Invariants: /healthz says only that the process answers, so that no peer that is away
// gets the agent restarted; /readyz is what it was given, at the moment of asking; a slow
// client holds no connection for long.
//
// It must not know what being ready takes, nor what is measured.
//
// Implements: architecture 4.4 (metrics and health on loopback).
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"
)

// Options are what is served, and where.
type Options struct {
	Address string
	Metrics http.Handler
	// Ready says whether the agent is, and if not, why.
	Ready func() (bool, []string)
	PProf bool
}

// Server is one listener.
type Server struct {
	opt   Options
	log   *slog.Logger
	ready chan struct{}
	addr  net.Addr
}

// New makes a server that listens to nothing yet.
func New(opt Options, log *slog.Logger) *Server {
	return &Server{opt: opt, log: log, ready: make(chan struct{})}
}

func (s *Server) String() string { return "health server" }

// Ready is closed when it listens; Addr is known then.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.addr }

const (
	clientTime = 10 * time.Second // to send a request's header
	answerTime = 2 * time.Minute  // to take an answer; a CPU profile takes 30 s by itself
	idleTime   = 2 * time.Minute
	stopTime   = time.Second // for answers that are under way
)

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.opt.Address)
	if err != nil {
		return fmt.Errorf("listen for metrics and health: %w", err)
	}
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: clientTime, WriteTimeout: answerTime, IdleTimeout: idleTime,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.addr = listener.Addr()
	s.log.Info("serving metrics and health", "address", s.addr.String())
	close(s.ready)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if server.Shutdown(end) != nil {
			_ = server.Close()
		}
	})
	err = server.Serve(listener)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics and health: %w", err)
	}
	<-stopped
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", s.opt.Metrics)
	if s.opt.PProf {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	ready, reasons := s.opt.Ready()
	if ready {
		answer(w, http.StatusOK, "ok\n")
		return
	}
	answer(w, http.StatusServiceUnavailable, "not ready\n"+strings.Join(reasons, "\n")+"\n")
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	fmt.Fprint(w, text)
}
