// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Fault is one way to misbehave. The zero value answers as usual.
type Fault struct {
	// Which requests; "" = any.
	Verb, Resource, Name string
	// Times is how often, 0 = until cleared. Skip lets that many through first.
	Times, Skip int

	Delay      time.Duration // before anything else
	Status     int           // answer with this code and a Status object
	RetryAfter int           // seconds, with Status
	Plain      bool          // with Status: a text instead of a Status object
	Redirect   string        // answer 307 to this URL
	Body       string        // answer 200 with this text
	Truncate   bool          // answer 200 with a body that ends before its length
	Hang       bool          // answer nothing until the client is gone
	Silent     bool          // begin to answer 200, and nothing more until the client is gone
	Drop       bool          // close the connection without an answer
	DropAfter  bool          // do what is asked, then close the connection without an answer
	// Before is run first, such as another writer's change.
	Before func()
}

type activeFault struct {
	Fault
	seen int
}

// Inject adds a fault; earlier ones have precedence.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &activeFault{Fault: f})
}

// Heal takes all faults away.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// fault is the fault of one request, the zero Fault when there is none.
func (s *Server) fault(r Request) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Verb != "" && f.Verb != r.Verb || f.Resource != "" && f.Resource != r.Resource || f.Name != "" && f.Name != r.Name {
			continue
		}
		if f.seen++; f.seen <= f.Skip || f.Times > 0 && f.seen > f.Skip+f.Times {
			continue
		}
		return f.Fault
	}
	return Fault{}
}

// misbehave answers as the fault says; false = the request is still to be answered.
func (s *Server) misbehave(f Fault, w http.ResponseWriter, r *http.Request) bool {
	if f.Before != nil {
		f.Before()
	}
	if f.Delay > 0 {
		s.hang(r, time.After(f.Delay))
	}
	switch {
	case f.Hang:
		s.hang(r, nil)
	case f.Silent:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		s.hang(r, nil)
	case f.Drop:
		panic(http.ErrAbortHandler)
	case f.Redirect != "":
		http.Redirect(w, r, f.Redirect, http.StatusTemporaryRedirect)
	case f.Status != 0:
		f.writeStatus(w)
	case f.Truncate:
		w.Header().Set("Content-Length", "100000")
		_, _ = io.WriteString(w, `{"kind":"Pod","metadata":{`)
	case f.Body != "":
		if strings.HasPrefix(f.Body, "{") { // clients go by it, and not by what they see
			w.Header().Set("Content-Type", "application/json")
		}
		_, _ = io.WriteString(w, f.Body)
	default:
		return false
	}
	return true
}

func (f Fault) writeStatus(w http.ResponseWriter) {
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	if f.Plain {
		http.Error(w, fmt.Sprintf("%d page", f.Status), f.Status)
		return
	}
	_, o := statusObject(f.Status, "told to answer so")
	write(w, f.Status, o)
}

// hang waits for the client to go, for the end, or for until.
func (s *Server) hang(r *http.Request, until <-chan time.Time) {
	select {
	case <-until:
	case <-r.Context().Done():
	case <-s.hangs:
	}
}

// quiet drops what net/http says about connections that tests break on purpose.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
