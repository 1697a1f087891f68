// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// contact knows what was asked, and when the server was heard of.
type contact struct {
	heard atomic.Int64 // UnixNano, 0 = never

	mu       sync.Mutex
	requests map[string]uint64
}

func (c *contact) hear() { c.heard.Store(time.Now().UnixNano()) }

func (c *contact) last() time.Time {
	if at := c.heard.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

func (c *contact) counts() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.requests)
}

func (c *contact) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[what]++
}

// counter is a RoundTripper that tells contact.
type counter struct {
	next    http.RoundTripper
	contact *contact
}

// RoundTrip implements http.RoundTripper.
func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.contact.count(describe(r))
	res, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < http.StatusInternalServerError { // those may come from what stands before the server
		c.contact.hear()
		res.Body = &heardBody{res.Body, c.contact}
	}
	return res, nil
}

// WrappedRoundTripper lets client-go find what it wraps, to close idle connections.
func (c *counter) WrappedRoundTripper() http.RoundTripper { return c.next }

// heardBody is an answer's body: what arrives is a sign of life.
type heardBody struct {
	io.ReadCloser
	contact *contact
}

func (b *heardBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.contact.hear()
	}
	return n, err
}

// describe is "verb resource" of a request: "watch pods", "patch pods/status".
func describe(r *http.Request) string {
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for i, s := range segments { // a server may be below a path of its own
		if s == "api" && len(segments) > i+2 {
			segments = segments[i+2:]
			break
		}
		if s == "apis" && len(segments) > i+3 {
			segments = segments[i+3:]
			break
		}
	}
	if segments[0] == "namespaces" && len(segments) > 2 {
		segments = segments[2:]
	}
	resource := segments[0]
	if len(segments) > 2 {
		resource += "/" + segments[2]
	}
	verb := "other"
	switch r.Method {
	case http.MethodGet:
		switch {
		case r.URL.Query().Get("watch") != "":
			verb = "watch"
		case len(segments) > 1:
			verb = "get"
		default:
			verb = "list"
		}
	case http.MethodPost:
		verb = "create"
	case http.MethodPatch:
		verb = "patch"
	}
	return verb + " " + resource
}
