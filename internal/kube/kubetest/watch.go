// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// change is one change of one object; before is nil for a new one, after for one that is gone.
type change struct {
	version       int
	key           key
	before, after map[string]any
}

// record adds a change to the history. The lock is held.
func (s *Server) record(c change) {
	s.history = append(s.history, c)
	s.wake()
}

// wake has all watches look again. The lock is held.
func (s *Server) wake() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// Compact forgets all changes so far, and ends the watches: who asks for a watch from
// an older version is told 410 Gone, as by a server that has forgotten.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.history, s.forgotten = nil, s.version
	s.epoch++
	s.wake()
}

// EndWatches ends all watches, as a server does that goes away; nothing is forgotten.
func (s *Server) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.wake()
}

// Watches is how many watches of a resource are open; "" = any.
func (s *Server) Watches(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for r, open := range s.watches {
		if resource == "" || r == resource {
			n += open
		}
	}
	return n
}

// Withhold says whether a resource is not served at all: 404 without a Status object, as
// of a CustomResourceDefinition that is not installed.
func (s *Server) Withhold(resource string, withheld bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withheld[resource] = withheld
}

// watcher is one watch under way.
type watcher struct {
	s     *Server
	req   Request
	query url.Values
	send  func(event string, o map[string]any) bool
	from  int // the last version that was sent
	epoch int
}

// watch serves a watch until the client is gone, the server ends, or EndWatches.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, req Request) {
	q := r.URL.Query()
	flusher := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	watcher := &watcher{s: s, req: req, query: q, send: func(event string, o map[string]any) bool {
		return enc.Encode(map[string]any{"type": event, "object": o}) == nil && flusher.Flush() == nil
	}}
	s.mu.Lock()
	from, err := strconv.Atoi(q.Get("resourceVersion"))
	watcher.epoch = s.epoch
	initial := q.Get("sendInitialEvents") == "true"
	gone := !initial && err == nil && from > 0 && from < s.forgotten
	present := s.selectedObjects(req, q)
	watcher.from = from
	if initial || err != nil || from == 0 {
		watcher.from = s.version
	}
	s.watches[req.Resource]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.watches[req.Resource]--
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if gone {
		_, o := statusObject(http.StatusGone, "too old resource version")
		watcher.send("ERROR", o.(map[string]any))
		return
	}
	if initial && !watcher.begin(present) || flusher.Flush() != nil {
		return
	}
	watcher.follow(r)
}

// begin sends what there is, and the bookmark that says so.
func (w *watcher) begin(present []map[string]any) bool {
	for _, o := range present {
		if !w.send("ADDED", o) {
			return false
		}
	}
	return w.send("BOOKMARK", map[string]any{
		"apiVersion": apiVersion(w.req.Resource), "kind": kind(w.req.Resource),
		"metadata": map[string]any{
			"resourceVersion": strconv.Itoa(w.from), "annotations": map[string]any{"k8s.io/initial-events-end": "true"},
		},
	})
}

// follow sends changes.
func (w *watcher) follow(r *http.Request) {
	for {
		w.s.mu.Lock()
		ended, moved := w.s.epoch != w.epoch, w.s.moved
		i, _ := slices.BinarySearchFunc(w.s.history, w.from+1, func(c change, v int) int { return c.version - v })
		changes := slices.Clone(w.s.history[i:])
		w.s.mu.Unlock()
		for _, c := range changes {
			w.from = c.version
			if event, o := w.event(c); event != "" && !w.send(event, o) {
				return
			}
		}
		if ended {
			return
		}
		select {
		case <-moved:
		case <-r.Context().Done():
			return
		case <-w.s.hangs:
			return
		}
	}
}

// event is what a change means to the watcher, "" for nothing: an object that begins
// to match the selector is new to it, one that ends to is gone.
func (w *watcher) event(c change) (string, map[string]any) {
	if c.key.resource != w.req.Resource || w.req.Namespace != "" && w.req.Namespace != c.key.namespace {
		return "", nil
	}
	selector := w.query.Get("fieldSelector")
	before, after := c.before != nil && selected(c.before, selector), c.after != nil && selected(c.after, selector)
	switch {
	case after && before:
		return "MODIFIED", c.after
	case after:
		return "ADDED", c.after
	case before:
		gone := clone(c.before)
		gone["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(c.version)
		return "DELETED", gone
	}
	return "", nil
}

func kind(resource string) string {
	for _, k := range []string{"NetworkAttachmentDefinition", "Pod", "Event", "ResourceClaim", "ResourceSlice", "Node", "CiliumNetworkDriverNodeConfig", "CiliumNetworkDriverClusterConfig", "VirtualMachineInstance"} {
		if resource == plural(k) {
			return k
		}
	}
	return strings.ToUpper(resource[:1]) + strings.TrimSuffix(resource[1:], "s")
}

func apiVersion(resource string) string {
	switch {
	case strings.HasPrefix(resource, "network-attachment-"):
		return "k8s.cni.cncf.io/v1"
	case strings.HasPrefix(resource, "resource"):
		return "resource.k8s.io/v1"
	case strings.HasPrefix(resource, "ciliumnetworkdriver"):
		return "cilium.io/v2alpha1"
	case strings.HasPrefix(resource, "virtualmachine"):
		return "kubevirt.io/v1"
	}
	return "v1"
}
