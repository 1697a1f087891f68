// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/host/socket"
)

// Bounds. People ask here, a few at a time.
const (
	// MaxAnswer bounds one answer, in bytes.
	MaxAnswer = 16 << 20

	maxConns    = 32
	maxRequest  = 64 << 10
	headTimeout = 5 * time.Second
	// answerTimeout is for a client that reads slowly, explainTimeout for live reads of the API.
	answerTimeout  = 30 * time.Second
	explainTimeout = 10 * time.Second
	idleTimeout    = time.Minute
	drainTimeout   = 2 * time.Second
	// lookEvery is how often the server looks whether its socket is still at its path.
	lookEvery = 5 * time.Second
)

// Server answers on the debug socket.
type Server struct {
	path  string
	view  View
	log   *slog.Logger
	ready chan struct{}
	limit int // MaxAnswer, less in tests
	own   uint32
	now   func() time.Time
	look  time.Duration
	dump  func(io.Writer) error // nil: there are no tables

	driver   DriverView // nil: the network driver is off
	machines VMIView    // nil: virtual machines are not reported
	happens  TopView    // nil: it is not kept
}

// New makes a server for the socket path, whose folder must be there when it runs.
func New(path string, view View, log *slog.Logger) *Server {
	return &Server{
		path: path, view: view, log: log, ready: make(chan struct{}), limit: MaxAnswer,
		own: uint32(os.Geteuid()), now: time.Now, look: lookEvery,
	}
}

func (s *Server) String() string { return "debug socket " + s.path }

// Ready is closed once clients can connect.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx ends, and then lets answers that are under way have drainTimeout.
// A socket that an earlier agent left is replaced, and one that somebody took away is made
// anew; the file is removed at the end unless another server has replaced it. It may be
// called once.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headTimeout, ReadTimeout: headTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxRequest,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			uid, err := peer(c)
			return context.WithValue(ctx, peerKey{}, peerID{uid: uid, err: err})
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	slots := make(chan struct{}, maxConns)
	announce := sync.OnceFunc(func() { close(s.ready) })
	for {
		l, err := socket.Listen(s.path, 0o600)
		if err != nil {
			server.Close() //nolint:errcheck // of connections that came before the socket was lost
			return err
		}
		announce()
		if lost, err := s.serve(ctx, server, l, slots); !lost {
			return err
		}
		s.log.WarnContext(ctx, "debug socket was taken away, it is put there again", "path", s.path)
	}
}

// serve answers at one socket, until ctx ends or the socket is lost.
func (s *Server) serve(ctx context.Context, server *http.Server, l *socket.Socket, slots chan struct{}) (lost bool, err error) {
	at := limited{Socket: l, slots: slots, closed: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(at) }()
	ticker := time.NewTicker(s.look)
	defer ticker.Stop()
	for !l.Gone() {
		select {
		case err := <-served:
			l.Close() //nolint:errcheck // the fault is told
			return false, fmt.Errorf("serve %s: %w", s, err)
		case <-ctx.Done():
			return false, s.end(ctx, server, served)
		case <-ticker.C:
		}
	}
	at.Close() //nolint:errcheck // nobody can reach it any more
	<-served   //nolint:errcheck // it is that the listener is closed
	return true, nil
}

func (s *Server) end(ctx context.Context, server *http.Server, served <-chan error) error {
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		server.Close() //nolint:errcheck // what did not end in time is cut off
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", s, err)
	}
	return nil
}

type (
	peerKey struct{}
	peerID  struct {
		uid uint32
		err error
	}
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", func(w http.ResponseWriter, _ *http.Request) {
		n := s.node()
		s.answer(w, NodeAnswer{Head: s.head(n.Name), State: n})
	})
	mux.HandleFunc("GET /v1/top", s.top)
	mux.HandleFunc("GET /v1/pods", s.pods)
	mux.HandleFunc("GET /v1/networks", s.networks)
	mux.HandleFunc("GET /v1/statedb", s.statedb)
	mux.HandleFunc("GET /v1/devices", s.devices)
	mux.HandleFunc("GET /v1/claims", s.claims)
	mux.HandleFunc("GET /v1/vmis", s.vmis)
	mux.HandleFunc("GET /v1/vmis/record", s.record)
	mux.HandleFunc("POST /v1/explain", s.explain)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, http.StatusNotFound, fmt.Sprintf("nothing is served at %s %.64q; this agent speaks version %d", r.Method, r.URL.Path, Version))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := r.Context().Value(peerKey{}).(peerID)
		if id.err != nil || id.uid != 0 && id.uid != s.own {
			s.log.WarnContext(r.Context(), "debug socket refuses a user", "uid", id.uid, "err", id.err)
			w.Header().Set("Connection", "close")
			s.refuse(w, http.StatusForbidden, fmt.Sprintf("user %d is neither root nor the agent's own", id.uid))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) node() Node {
	n := s.view.Node()
	n.Conditions = list(n.Conditions)
	return n
}

func (s *Server) head(node string) Head { return Head{Version: Version, Node: node, Now: s.now()} }

func (s *Server) pods(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.FormValue("namespace"), r.FormValue("name")
	a := PodsAnswer{Head: s.head(s.view.Node().Name), Pods: []Pod{}}
	room := s.limit - margin
	for _, p := range s.view.Pods() {
		if namespace != "" && p.Namespace != namespace || name != "" && p.Name != name {
			continue
		}
		p = whole(p)
		if room -= size(p); room < 0 { // smaller ones that follow are left out, too
			a.LeftOut++
			continue
		}
		a.Pods = append(a.Pods, p)
	}
	s.answer(w, a)
}

// margin is the room of what stands around a list.
const margin = 4 << 10

// size is what v takes in a list.
func size(v any) int {
	b, err := json.Marshal(v)
	if err != nil { // only a RawMessage could be; answer says so
		return 0
	}
	return len(b) + 1
}

// whole is p without nil lists. p itself is the View's and stays as it is.
func whole(p Pod) Pod {
	sandboxes := make([]Sandbox, len(p.Sandboxes))
	for i, sandbox := range p.Sandboxes {
		attachments := make([]Attachment, len(sandbox.Attachments))
		for j, a := range sandbox.Attachments {
			a.Plugins, a.Addresses = list(a.Plugins), list(a.Addresses)
			attachments[j] = a
		}
		sandbox.Attachments = attachments
		sandboxes[i] = sandbox
	}
	p.Sandboxes = sandboxes
	return p
}

// list is l, and empty instead of nil.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func (s *Server) networks(w http.ResponseWriter, r *http.Request) {
	namespace := r.FormValue("namespace")
	a := NetworksAnswer{Head: s.head(s.view.Node().Name), Networks: []Network{}}
	room := s.limit - margin
	for _, n := range s.view.Networks() {
		if namespace != "" && n.Namespace != namespace {
			continue
		}
		n.Types, n.IPAM = list(n.Types), list(n.IPAM)
		if room -= size(n); room < 0 {
			a.LeftOut++
			continue
		}
		a.Networks = append(a.Networks, n)
	}
	s.answer(w, a)
}

// explainRequest is the body of /v1/explain.
type explainRequest struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func parseExplain(r io.Reader) (explainRequest, error) {
	var req explainRequest
	b, err := io.ReadAll(r)
	if err == nil {
		err = json.Unmarshal(b, &req)
	}
	switch {
	case err != nil:
		return req, fmt.Errorf("read request: %w", err)
	case req.Namespace == "" || req.Name == "":
		return req, errors.New("read request: it needs namespace and name")
	}
	return req, nil
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	req, err := parseExplain(r.Body)
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), explainTimeout)
	defer cancel()
	out, err := s.view.Explain(ctx, req.Namespace, req.Name)
	if errors.Is(err, ErrNoPod) {
		s.fail(w, http.StatusNotFound, failure{Error: ErrNoPod.Error(), NoPod: true})
		return
	}
	s.answer(w, PlanAnswer{Head: s.head(s.view.Node().Name), Plan: newPlan(out, err)})
}

// failure is the body of every answer that is no success. NoPod tells ErrNoPod from a
// path that is not served.
type failure struct {
	Version int    `json:"version"`
	Error   string `json:"error"`
	NoPod   bool   `json:"noPod,omitempty"`
}

func (s *Server) refuse(w http.ResponseWriter, code int, text string) {
	s.fail(w, code, failure{Error: text})
}

func (s *Server) fail(w http.ResponseWriter, code int, f failure) {
	f.Version = Version
	b, err := json.Marshal(f)
	if err != nil { // it is two texts and a number
		code, b = http.StatusInternalServerError, nil
	}
	s.send(w, code, b)
}

func (s *Server) answer(w http.ResponseWriter, v any) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	switch {
	case err != nil:
		s.refuse(w, http.StatusInternalServerError, fmt.Sprintf("encode answer: %v", err))
	case b.Len() > s.limit:
		s.refuse(w, http.StatusInternalServerError, fmt.Sprintf("answer has %d bytes, the limit is %d", b.Len(), s.limit))
	default:
		s.send(w, http.StatusOK, b.Bytes())
	}
}

func (s *Server) send(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if _, err := w.Write(body); err != nil {
		s.log.Debug("debug client is gone", "err", err)
	}
}
