// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/kube/rest"
)

const objects = `
kind: Pod
metadata: {name: web, uid: u1, annotations: {a: "1"}}
spec: {nodeName: n1}
---
kind: Pod
metadata: {name: db, namespace: other, uid: u2}
---
kind: NetworkAttachmentDefinition
metadata: {name: neta}
spec: {config: '{"big":9007199254740993}'}
---
kind: ResourceClaim
metadata: {name: vf}
---
kind: ResourceSlice
metadata: {name: s1}
spec: {driver: d, nodeName: n1}
---
kind: ResourceSlice
metadata: {name: s2}
spec: {driver: d, nodeName: n2}
`

func client(t *testing.T, s *kubetest.Server, edit func(cluster, user map[string]any)) *rest.Client {
	t.Helper()
	cfg, err := rest.Load(s.Kubeconfig(edit))
	if err != nil {
		t.Fatal(err)
	}
	c := rest.New(cfg)
	t.Cleanup(c.Close)
	return c
}

func TestObjects(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(objects)
	c := client(t, s, nil)
	ctx := t.Context()
	pod, err := c.Pod(ctx, "default", "web")
	if err != nil || pod.Meta.UID != "u1" || pod.Meta.Annotations["a"] != "1" || !strings.Contains(string(pod.Raw), `"nodeName":"n1"`) {
		t.Errorf("pod %+v, %v", pod, err)
	}
	nad, err := c.NAD(ctx, "default", "neta")
	if err != nil || !strings.Contains(string(nad.Raw), `9007199254740993`) {
		t.Errorf("NAD %+v, %v", nad, err)
	}
	if claim, err := c.ResourceClaim(ctx, "default", "vf"); err != nil || claim.Meta.Name != "vf" {
		t.Errorf("claim %+v, %v", claim, err)
	}
	if slices, err := c.ResourceSlices(ctx, "d", "n2"); err != nil || len(slices) != 1 || slices[0].Meta.Name != "s2" {
		t.Errorf("slices %+v, %v", slices, err)
	}
	if all, err := c.List(ctx, rest.Pods(), ""); err != nil || len(all) != 2 || all[1].Meta.Name != "db" {
		t.Errorf("pods %+v, %v", all, err)
	}
	if some, err := c.List(ctx, rest.Pods(), "other"); err != nil || len(some) != 1 {
		t.Errorf("pods %+v, %v", some, err)
	}
	_, err = c.Pod(ctx, "default", "gone")
	if !rest.NotFound(err) || err.Error() != "get pod default/gone at "+s.URL()+`: answer 404 Not Found: pods "gone" not found` {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a%2fb"} {
		if _, err := c.Pod(ctx, "default", name); !errors.Is(err, rest.ErrName) {
			t.Errorf("name %q gives %v", name, err)
		}
		if _, err := c.Pod(ctx, name, "web"); !errors.Is(err, rest.ErrName) {
			t.Errorf("namespace %q gives %v", name, err)
		}
	}
}

func TestPatchAndEvent(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(objects)
	c := client(t, s, nil)
	path := rest.Pointer("metadata", "annotations", "x/y~z")
	patch := []rest.Op{{Op: "test", Path: "/metadata/uid", Value: "u1"}, {Op: "test", Path: path}, {Op: "add", Path: path, Value: "v"}}
	if path != "/metadata/annotations/x~1y~0z" {
		t.Errorf("pointer %q", path)
	}
	pod, err := c.PatchPod(t.Context(), "default", "web", "status", patch)
	if err != nil || pod.Meta.Annotations["x/y~z"] != "v" || s.Annotation("default", "web", "x/y~z") != "v" {
		t.Errorf("pod %+v, %v", pod, err)
	}
	if _, err := c.PatchPod(t.Context(), "default", "web", "status", patch); rest.Code(err) != 422 {
		t.Errorf("error %v", err)
	}
	e := rest.Event{
		Namespace: "default", Name: "web.1", PodName: "web", PodUID: "u1", Type: "Warning",
		Reason: "R", Message: "m", Component: "weft", Time: time.Now(),
	}
	if err := c.CreateEvent(t.Context(), e); err != nil {
		t.Error(err)
	}
	if err := c.CreateEvent(t.Context(), e); rest.Code(err) != http.StatusConflict {
		t.Errorf("error %v", err)
	}
	want := kubetest.Event{Type: "Warning", Reason: "R", Message: "m", Pod: "web", UID: "u1", Component: "weft"}
	if got := s.Events("default"); len(got) != 1 || got[0] != want {
		t.Errorf("events %+v", got)
	}
}

// TestFaults has each way in which a server can misbehave, and what comes of it.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault    kubetest.Fault
		timeout  time.Duration // 0 = long
		err      string        // after "get pod default/web at URL: "; "" = success
		requests int           // exactly; 0 = more than one
	}{
		"forbidden":                {kubetest.Fault{Status: 403}, 0, "answer 403 Forbidden: told to answer so", 1},
		"unauthorized":             {kubetest.Fault{Status: 401}, 0, "answer 401 Unauthorized: told to answer so", 1},
		"conflict":                 {kubetest.Fault{Status: 409}, 0, "answer 409 Conflict: told to answer so", 1},
		"a page that is not there": {kubetest.Fault{Status: 404, Plain: true}, 0, "answer 404 Not Found: 404 page", 1},
		"too many":                 {kubetest.Fault{Status: 429, Times: 2}, 0, "", 3},
		"too many, come back":      {kubetest.Fault{Status: 429, RetryAfter: 1, Times: 1}, 0, "", 2},
		"too many for long":        {kubetest.Fault{Status: 429, RetryAfter: 60}, time.Second, "no other answer in time than 429 Too Many Requests: told to answer so", 1},
		"away for a moment":        {kubetest.Fault{Status: 503, Times: 3}, 0, "", 4},
		"away for good":            {kubetest.Fault{Status: 503}, 400 * time.Millisecond, "no other answer in time than 503 Service Unavailable: told to answer so", 0},
		"broken":                   {kubetest.Fault{Status: 500, Times: 1}, 0, "", 2},
		"hang":                     {kubetest.Fault{Hang: true}, 200 * time.Millisecond, "no answer in time", 1},
		"slow":                     {kubetest.Fault{Delay: 300 * time.Millisecond}, 0, "", 1},
		"hangs up once":            {kubetest.Fault{Drop: true, Times: 1}, 0, "", 0},
		"redirect":                 {kubetest.Fault{Redirect: "https://elsewhere.example/x"}, 0, `redirect is not followed: 307 to "https://elsewhere.example/x"`, 1},
		"half a body once":         {kubetest.Fault{Truncate: true, Times: 1}, 0, "", 2},
		"garbage":                  {kubetest.Fault{Body: "<html>"}, 0, "answer is not of the Kubernetes API: invalid character '<' looking for beginning of value", 1},
		"another object":           {kubetest.Fault{Body: `{"kind":"Pod","metadata":{"name":"db","namespace":"default"}}`}, 0, `answer is not of the Kubernetes API: it is "Pod" "default/db"`, 1},
		"no metadata":              {kubetest.Fault{Body: `{"kind":"Pod"}`}, 0, "answer is not of the Kubernetes API: object has no metadata", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(objects)
			s.Inject(c.fault)
			ctx, cancel := context.WithTimeout(t.Context(), max(c.timeout, 0))
			if c.timeout == 0 {
				ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			}
			defer cancel()
			start := time.Now()
			pod, err := client(t, s, nil).Pod(ctx, "default", "web")
			if want := "get pod default/web at " + s.URL() + ": " + c.err; c.err != "" && (err == nil || err.Error() != want) {
				t.Errorf("error %v\n want %s", err, want)
			}
			if c.err == "" && (err != nil || pod.Meta.UID != "u1") {
				t.Errorf("pod %+v, %v", pod, err)
			}
			if n := s.Count("get", "pods"); n != c.requests && (c.requests != 0 || n < 2) {
				t.Errorf("%d requests, want %d", n, c.requests)
			}
			if c.fault.RetryAfter == 1 && time.Since(start) < time.Second {
				t.Errorf("asked again after %v", time.Since(start))
			}
		})
	}
}

func TestRefusedConnection(t *testing.T) {
	s := kubetest.New(t)
	c := client(t, s, nil)
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := c.Pod(ctx, "default", "web")
	if err == nil || !strings.HasPrefix(err.Error(), "get pod default/web at "+s.URL()+": no answer in time: dial tcp") ||
		!strings.HasSuffix(err.Error(), "connect: connection refused") {
		t.Errorf("error %v", err)
	}
}

func TestTokens(t *testing.T) {
	s := kubetest.New(t, kubetest.WithToken("t1"))
	s.Apply(objects)
	tokenFile := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(tokenFile, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write("t1\n")
	inFile := client(t, s, func(_, user map[string]any) { delete(user, "token"); user["tokenFile"] = tokenFile })
	inConf := client(t, s, nil)
	for name, c := range map[string]*rest.Client{"file": inFile, "conf": inConf} {
		if _, err := c.Pod(t.Context(), "default", "web"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The token is replaced between two requests, and while one is under way.
	s.SetTokens("t2")
	write("t2")
	if _, err := inFile.Pod(t.Context(), "default", "web"); err != nil {
		t.Error(err)
	}
	s.Inject(kubetest.Fault{Times: 1, Before: func() { s.SetTokens("t3"); write("t3") }, Status: 401})
	s.ResetRequests()
	if _, err := inFile.Pod(t.Context(), "default", "web"); err != nil || s.Count("", "") != 2 {
		t.Errorf("%d requests, %v", s.Count("", ""), err)
	}
	s.ResetRequests()
	if _, err := inConf.Pod(t.Context(), "default", "web"); rest.Code(err) != 401 || s.Count("", "") != 1 {
		t.Errorf("%d requests, %v", s.Count("", ""), err)
	}
	s.SetTokens("t4")
	s.ResetRequests()
	if _, err := inFile.Pod(t.Context(), "default", "web"); rest.Code(err) != 401 || s.Count("", "") != 2 {
		t.Errorf("%d requests, %v", s.Count("", ""), err)
	}
	for text, want := range map[string]string{"": "is empty", "a b": "holds no token", "a\x00": "holds no token"} {
		write(text)
		if _, err := inFile.Pod(t.Context(), "default", "web"); !errors.Is(err, rest.ErrCredentials) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("token %q gives %v", text, err)
		}
	}
	both := client(t, s, func(_, user map[string]any) { user["tokenFile"] = "/none/of"; user["token"] = "t4" })
	if _, err := both.Pod(t.Context(), "default", "web"); err != nil {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	s := kubetest.New(t, kubetest.WithClientCertificates())
	s.Apply(objects)
	other := kubetest.New(t, kubetest.WithTLS())
	plain := kubetest.New(t)
	if _, err := client(t, s, nil).Pod(t.Context(), "default", "web"); err != nil {
		t.Error(err)
	}
	named := client(t, s, func(cluster, _ map[string]any) { cluster["tls-server-name"] = "kubernetes.default.svc" })
	if _, err := named.Pod(t.Context(), "default", "web"); err != nil {
		t.Error(err)
	}
	unchecked := client(t, s, func(cluster, _ map[string]any) {
		delete(cluster, "certificate-authority-data")
		cluster["insecure-skip-tls-verify"] = true
	})
	if _, err := unchecked.Pod(t.Context(), "default", "web"); err != nil {
		t.Error(err)
	}
	for name, edit := range map[string]func(cluster, user map[string]any){
		"another name":          func(cluster, _ map[string]any) { cluster["tls-server-name"] = "evil.example" },
		"another CA":            func(cluster, _ map[string]any) { cluster["server"] = other.URL() },
		"no CA":                 func(cluster, _ map[string]any) { delete(cluster, "certificate-authority-data") },
		"no client certificate": func(_, user map[string]any) { clear(user) },
		"a server without TLS":  func(cluster, _ map[string]any) { cluster["server"] = "https" + strings.TrimPrefix(plain.URL(), "http") },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		start := time.Now()
		_, err := client(t, s, edit).Pod(ctx, "default", "web")
		if !rest.Untrusted(err) || time.Since(start) > 30*time.Second {
			t.Errorf("%s gives %v after %v", name, err, time.Since(start))
		}
		cancel()
	}
}
