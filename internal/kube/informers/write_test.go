// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/kube/rest"
)

func set(value string) func(string) string { return func(string) string { return value } }

func TestAnnotate(t *testing.T) {
	web := Ref{"default", "web", "u-web"}
	for name, c := range map[string]struct {
		annotations string
		fault       kubetest.Fault // of the patch
		change      func(*kubetest.Server)
		want        string // value, "" = unchanged
		err         error
		code        int
		text        string
		patches     int
		gets        int // -1: any
	}{
		"a bare pod":        {patches: 1, want: "new(was )"},
		"another's key":     {annotations: "{k: v}", patches: 1, want: "new(was )"},
		"an old value":      {annotations: "{" + statusKey + ": old}", patches: 1, want: "new(was old)"},
		"the same value":    {annotations: "{" + statusKey + ": same}", want: "same"},
		"a conflict":        {fault: kubetest.Fault{Status: 409, Times: 3}, patches: 4, gets: 3, want: "new(was )"},
		"conflicts only":    {fault: kubetest.Fault{Status: 409}, code: 409, patches: -1, gets: -1},
		"a refusal":         {fault: kubetest.Fault{Status: 422}, code: 422, patches: 3, gets: 3},
		"a server away":     {fault: kubetest.Fault{Status: 503}, code: 503, patches: 1, text: "patch pods/status of pod default/web at "},
		"busy":              {fault: kubetest.Fault{Status: 429, RetryAfter: 1}, code: 429, patches: 1},
		"no permission":     {fault: kubetest.Fault{Status: 403}, code: 403, patches: 1, text: "the permission patch on pods/status is missing: "},
		"a hang":            {fault: kubetest.Fault{Hang: true}, patches: 1, text: "no answer in time"},
		"another writer":    {fault: kubetest.Fault{Before: nil, Times: 1}, change: func(s *kubetest.Server) { s.Annotate("default", "web", statusKey, "theirs") }, patches: 2, gets: 1, want: "new(was theirs)"},
		"gone":              {change: func(s *kubetest.Server) { s.Delete("pods", "default", "web") }, err: ErrNotFound, code: 404, patches: 1},
		"made anew":         {change: func(s *kubetest.Server) { s.Apply(strings.Replace(pod("web", ""), "u-web", "u-2", 1)) }, err: ErrReplaced, patches: 1, gets: 1},
		"an answer is lost": {fault: kubetest.Fault{DropAfter: true, Times: 1}, patches: 1, text: "EOF", want: "new(was )"},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			more := ""
			if c.annotations != "" {
				more = ", annotations: " + c.annotations
			}
			s.Apply(pod("web", more))
			r := start(t, s, nil).ready()
			c.fault.Verb = "patch"
			if c.change != nil {
				c.fault.Before, c.fault.Times = func() { c.change(s) }, 1
			}
			s.Inject(c.fault)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if c.want != "" || c.patches == 3 {
				ctx = t.Context()
			}
			err := r.Annotate(ctx, web, statusKey, func(old string) string {
				if old == "same" {
					return old
				}
				return "new(was " + old + ")"
			})
			if (err == nil) != (c.err == nil && c.code == 0 && c.text == "") || !errors.Is(err, c.err) && c.err != nil || rest.Code(err) != c.code {
				t.Errorf("error %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %q", err, c.text)
			}
			if got := s.Annotation("default", "web", statusKey); got != c.want && c.want != "" {
				t.Errorf("value %q, want %q", got, c.want)
			}
			patches, gets := s.Count("patch", ""), s.Count("get", "")
			if patches != c.patches && c.patches >= 0 || gets != c.gets && c.gets >= 0 {
				t.Errorf("%d patches, %d reads", patches, gets)
			}
			if err == nil {
				p, _ := r.Pod("default", "web")
				if p.Annotations[statusKey] != c.want {
					t.Errorf("the cache has %q", p.Annotations[statusKey])
				}
			}
		})
	}
}

// TestAnnotateAgain: what was written is known before the watch tells it.
func TestAnnotateAgain(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("web", ""))
	r := start(t, s, nil).ready()
	s.Inject(kubetest.Fault{Verb: "watch", Hang: true})
	s.EndWatches()
	r.until("no watch", func() bool { return s.Watches("pods") == 0 })
	for i := range 3 {
		want := fmt.Sprint(i)
		if err := r.Annotate(t.Context(), Ref{"default", "web", "u-web"}, statusKey, set(want)); err != nil || s.Annotation("default", "web", statusKey) != want {
			t.Fatalf("%v, has %q", err, s.Annotation("default", "web", statusKey))
		}
	}
	if n, m := s.Count("patch", ""), s.Count("get", ""); n != 3 || m != 0 {
		t.Errorf("%d patches, %d reads", n, m)
	}
}

// TestAnnotateUncached: a pod that the cache lacks, or has under another UID, is read.
func TestAnnotateUncached(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(strings.Replace(pod("far", ""), "n1", "n2", 1))
	r := start(t, s, nil).ready()
	if err := r.Annotate(t.Context(), Ref{"default", "far", "u-far"}, statusKey, set("x")); err != nil || s.Count("get", "pods") != 1 {
		t.Errorf("%v, %d reads", err, s.Count("get", "pods"))
	}
	if len(r.Pods()) != 0 {
		t.Errorf("the cache has %q", r.names())
	}
	if err := r.Annotate(t.Context(), Ref{"default", "far", "u-0"}, statusKey, set("y")); !errors.Is(err, ErrReplaced) {
		t.Errorf("error %v", err)
	}
	if err := r.Annotate(t.Context(), Ref{"default", "far", "u-far"}, "else", set("y")); err == nil || s.Count("patch", "") != 1 {
		t.Errorf("an annotation that is not kept: %v", err)
	}
}

func TestEvents(t *testing.T) {
	s := kubetest.New(t)
	r := start(t, s, nil).ready()
	web, db := Ref{"default", "web", "u-web"}, Ref{"default", "db", "u-db"}
	for range 20 { // the kubelet tries again and again
		r.Event(web, "Warning", "NoNetworkFound", "m")
	}
	r.Event(web, "Warning", "NoNetworkFound", "another")
	r.Event(db, "Normal", "NoNetworkFound", "m")
	r.Event(db, "Warning", "Long", strings.Repeat("é", 1000))
	event := func(typ, reason, message, pod string) kubetest.Event {
		return kubetest.Event{Type: typ, Reason: reason, Message: message, Pod: pod, UID: "u-" + pod, Component: "weft"}
	}
	want := []kubetest.Event{
		event("Warning", "NoNetworkFound", "m", "web"), event("Warning", "NoNetworkFound", "another", "web"),
		event("Normal", "NoNetworkFound", "m", "db"), event("Warning", "Long", strings.Repeat("é", 512), "db"),
	}
	r.until("events", func() bool { return len(s.Events("default")) >= len(want) })
	r.stop()
	if d := cmp.Diff(want, s.Events("default")); d != "" {
		t.Error(d)
	}
	// Another agent, after a restart, tells nothing twice.
	again := start(t, s, nil).ready()
	again.Event(web, "Warning", "NoNetworkFound", "m")
	again.stop()
	if n, m := s.Count("create", "events"), len(s.Events("default")); n != 5 || m != 4 {
		t.Errorf("%d tries, %d events", n, m)
	}
}

// TestEventsDelayNobody: neither a caller nor the end of Run waits for a server that takes none.
func TestEventsDelayNobody(t *testing.T) {
	s := kubetest.New(t)
	s.Inject(kubetest.Fault{Resource: "events", Hang: true})
	r := start(t, s, nil).ready()
	begun := time.Now()
	for i := range 10 * maxWaiting {
		r.Event(Ref{"default", fmt.Sprint("p", i), "u"}, "Warning", "R", "m")
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("telling took %v", took)
	}
	begun = time.Now()
	r.stop()
	if took := time.Since(begun); took > flushWait+2*time.Second {
		t.Errorf("the end took %v", took)
	}
}

// TestEventsOfTheEnd: what waits when Run ends is still told; what failed may be told again.
func TestEventsOfTheEnd(t *testing.T) {
	s := kubetest.New(t)
	s.Inject(kubetest.Fault{Resource: "events", Status: 503, Times: 1})
	r := start(t, s, nil).ready()
	r.Event(Ref{"default", "web", "u"}, "Warning", "R", "m")
	r.until("a failure", func() bool { r.events.mu.Lock(); defer r.events.mu.Unlock(); return len(r.events.told) == 0 })
	for i := range 20 {
		r.Event(Ref{"default", fmt.Sprint("p", i), "u"}, "Warning", "R", "m")
	}
	r.Event(Ref{"default", "web", "u"}, "Warning", "R", "m")
	r.stop()
	if n := len(s.Events("default")); n != 21 {
		t.Errorf("%d events", n)
	}
}

func TestClaims(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(`kind: ResourceClaim
metadata: {name: c-a}
---
kind: ResourceSlice
metadata: {name: s1}
spec: {driver: d, nodeName: n1}
---
kind: ResourceSlice
metadata: {name: s2}
spec: {driver: d, nodeName: n2}
`)
	r := start(t, s, nil)
	b, err := r.ResourceClaim(t.Context(), "default", "c-a")
	if err != nil || !strings.Contains(string(b), `"c-a"`) {
		t.Errorf("claim %s %v", b, err)
	}
	if _, err := r.ResourceClaim(t.Context(), "default", "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v", err)
	}
	slices, err := r.ResourceSlices(t.Context(), "d", "n1")
	if err != nil || len(slices) != 1 || !strings.Contains(string(slices[0]), `"s1"`) {
		t.Errorf("slices %s %v", slices, err)
	}
}
