// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubetest is a small API server for tests: a real one on loopback, that holds
// what it is given as YAML and can be told to misbehave in every way that a client has
// to stand.
//
// It serves get, list, watch, create, update, JSON patch and delete of any namespaced resource, and of the
// network driver's without one, whose status can be applied; with
// UIDs, resource versions, field selectors, the status subresource (which changes metadata
// and status, and nothing else), bearer tokens, TLS with a CA of its own and client
// certificates. Watches begin at a version, or with all that is there (sendInitialEvents);
// Compact makes versions too old. It speaks JSON alone, and counts requests.
//
// Invariants: an object is changed whole or not at all; a switch (Fault) concerns the
// requests that it names and no others. It is for tests alone, and holds no rule of Weft.
//
// Implements: the peer of internal/kube/rest (architecture 3: an adapter's owner ships its fake).
package kubetest

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// Server is a running API server.
type Server struct {
	tb    testing.TB
	http  *httptest.Server
	certs *certs // nil without TLS

	mu       sync.Mutex
	objects  map[key]map[string]any
	version  int
	tokens   []string // accepted; nil = no token is asked for
	requests []Request
	faults   []*activeFault
	hangs    chan struct{} // closed when the server ends
	changed  chan struct{} // closed at the next request

	history   []change        // by version
	forgotten int             // the version up to which history is gone
	moved     chan struct{}   // closed when watches have something to look at
	epoch     int             // another one ends all watches
	watches   map[string]int  // open ones, by resource
	withheld  map[string]bool // resources that are not served
}

// key is where an object is.
type key struct{ resource, namespace, name string }

// Option changes how a Server starts.
type Option func(*Server)

// WithTLS serves HTTPS with a certificate of a CA of its own.
func WithTLS() Option {
	return func(s *Server) { s.certs = newCerts(s.tb, false) }
}

// WithClientCertificates is WithTLS, and only clients with a certificate of the CA are
// served.
func WithClientCertificates() Option {
	return func(s *Server) { s.certs = newCerts(s.tb, true) }
}

// WithToken serves only requests with this bearer token, as SetTokens changes it.
func WithToken(token string) Option {
	return func(s *Server) { s.tokens = []string{token} }
}

// New starts a server that ends with the test.
func New(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	s := &Server{
		tb: tb, objects: map[key]map[string]any{}, hangs: make(chan struct{}), changed: make(chan struct{}),
		moved: make(chan struct{}), watches: map[string]int{}, withheld: map[string]bool{},
	}
	for _, o := range options {
		o(s)
	}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.start()
	tb.Cleanup(func() {
		close(s.hangs)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

func (s *Server) start() {
	s.http.Config.ErrorLog = quiet()
	if s.certs == nil {
		s.http.Start()
	} else {
		s.http.TLS = s.certs.server.Clone() // httptest completes it
		s.http.StartTLS()
	}
}

// URL is where the server listens.
func (s *Server) URL() string { return s.http.URL }

// Stop takes the server away: connections are refused from now on.
func (s *Server) Stop() {
	_ = s.http.Listener.Close()
	s.EndWatches()
	s.http.CloseClientConnections()
}

// Start brings a server back that was stopped, at the same address and with all that it held.
func (s *Server) Start() {
	s.tb.Helper()
	address := s.http.Listener.Addr().String()
	l, err := (&net.ListenConfig{}).Listen(s.tb.Context(), "tcp", address)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.http.Close()                                                                                   // what is left of the one before
	s.http = &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(s.serve)}} //nolint:gosec // a test's
	s.start()
}

// SetTokens sets the bearer tokens that are accepted; none = no token is asked for.
func (s *Server) SetTokens(tokens ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = tokens
}

// Kubeconfig writes a kubeconfig for this server, with everything that it asks for, and
// returns its path. edit (may be nil) changes the current cluster and user first.
func (s *Server) Kubeconfig(edit func(cluster, user map[string]any)) string {
	s.tb.Helper()
	cluster, user := map[string]any{"server": s.URL()}, map[string]any{}
	if s.certs != nil {
		cluster["certificate-authority-data"] = s.certs.caData()
		if s.certs.server.ClientAuth == tls.RequireAndVerifyClientCert {
			user["client-certificate-data"], user["client-key-data"] = s.certs.clientData()
		}
	}
	s.mu.Lock()
	if len(s.tokens) > 0 {
		user["token"] = s.tokens[0]
	}
	s.mu.Unlock()
	if edit != nil {
		edit(cluster, user)
	}
	b, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "weft",
		"contexts": []any{map[string]any{"name": "weft", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"clusters": []any{map[string]any{"name": "c", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "u", "user": user}},
	})
	if err != nil {
		s.tb.Fatal(err)
	}
	path := filepath.Join(s.tb.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		s.tb.Fatal(err)
	}
	return path
}

// Request is one request that arrived.
type Request struct {
	Verb        string // get, list, watch, create, update, patch, delete, other
	Resource    string // pods, network-attachment-definitions, events, …
	Namespace   string
	Name        string
	Subresource string // status
	Code        int    // of the answer; 0 while there is none, or when a Fault gave it
	Body        string
	Time        time.Time
}

// Requests are all requests so far, in order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Count is how many requests of a verb and a resource arrived; "" = any.
func (s *Server) Count(verb, resource string) int {
	n := 0
	for _, r := range s.Requests() {
		if (verb == "" || r.Verb == verb) && (resource == "" || r.Resource == resource) {
			n++
		}
	}
	return n
}

// Arrived is closed when the next request arrives.
func (s *Server) Arrived() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// ResetRequests forgets the requests so far.
func (s *Server) ResetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}
