// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/host/logs/logstest"
	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/kube/rest"
)

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(followEnv); kubeconfig != "" {
		followUntilEOF(kubeconfig)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const (
	statusKey   = "k8s.v1.cni.cncf.io/network-status"
	networksKey = "k8s.v1.cni.cncf.io/networks"
)

// long is a bound for what happens at once.
const long = 30 * time.Second

// rig is a Cluster that runs against a server.
type rig struct {
	*Cluster
	t    *testing.T
	s    *kubetest.Server
	logs *logstest.Buffer
	stop func() // and wait

	mu   sync.Mutex
	told []Ref
}

func start(t *testing.T, s *kubetest.Server, edit func(cluster, user map[string]any)) *rig {
	t.Helper()
	return startWith(t, s, edit, func(*Cluster) {})
}

func startWith(t *testing.T, s *kubetest.Server, edit func(cluster, user map[string]any), before func(*Cluster)) *rig {
	t.Helper()
	r := &rig{t: t, s: s, logs: &logstest.Buffer{}}
	c, err := New(Config{NodeName: "n1", Kubeconfig: s.Kubeconfig(edit)}, slog.New(slog.NewTextHandler(r.logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r.Cluster = c
	before(c)
	c.NotifyPods(func(ref Ref) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, ref)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(long):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(r.stop)
	return r
}

// ready waits for both caches.
func (r *rig) ready() *rig {
	r.t.Helper()
	select {
	case <-r.Synced():
	case <-time.After(long):
		r.t.Fatalf("not synced: %v\n%s", r.Behind(), r.logs)
	}
	return r
}

// until polls what is asked for.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(long); !ok(); {
		if time.Now().After(end) {
			r.t.Fatalf("never: %s; %v\n%s", what, r.Behind(), r.logs)
		}
		select {
		case <-r.s.Arrived():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *rig) names() []string {
	var all []string
	for _, p := range r.Pods() {
		all = append(all, p.Namespace+"/"+p.Name)
	}
	return all
}

func (r *rig) notified() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, ref := range r.told {
		all = append(all, ref.Name+" "+ref.UID)
	}
	r.told = nil
	slices.Sort(all)
	return all
}

// pod is a pod of node n1; more is YAML of its metadata.
func pod(name, more string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", uid: u-" + name + more + "}\nspec: {nodeName: n1}\n"
}

const nads = `apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: neta, uid: u-neta, annotations: {k8s.v1.cni.cncf.io/resourceName: ex.com/vf, other: x}}
spec: {config: '{"type":"pb"}'}
---
kind: NetworkAttachmentDefinition
metadata: {name: broken, uid: u-broken}
spec: {config: {type: pb}}
---
kind: NetworkAttachmentDefinition
metadata: {name: bare, namespace: other, uid: u-bare}
`

const full = `kind: Pod
metadata:
  name: web
  uid: u-web
  labels: {a: b}
  deletionTimestamp: "2030-01-01T00:00:00Z"
  annotations: {k8s.v1.cni.cncf.io/networks: neta, kubernetes.io/config.hash: h, other: x}
spec:
  nodeName: n1
  hostNetwork: true
  containers: [{name: c, image: i}]
  resourceClaims: [{name: a, resourceClaimName: c-a}]
status:
  phase: Succeeded
  resourceClaimStatuses: [{name: a, resourceClaimName: c-a}]
---
kind: Pod
metadata: {name: elsewhere}
spec: {nodeName: n2}
`

func TestWhatIsKept(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(full + "---\n" + nads)
	r := start(t, s, nil).ready()
	noVersion := cmp.Options{cmpopts.IgnoreFields(Pod{}, "ResourceVersion", "Claims"), cmpopts.IgnoreFields(NAD{}, "ResourceVersion"), cmpopts.IgnoreUnexported(Pod{})}
	wantPods := []*Pod{{
		Namespace: "default", Name: "web", UID: "u-web", HostNetwork: true, Terminal: true, Deleting: true,
		Annotations: map[string]string{networksKey: "neta", "kubernetes.io/config.hash": "h"},
	}}
	if d := cmp.Diff(wantPods, r.Pods(), noVersion); d != "" {
		t.Error(d)
	}
	for _, part := range []string{`"nodeName":"n1"`, `"resourceClaimName":"c-a"`, `"resourceClaimStatuses"`} {
		if claims := string(r.Pods()[0].Claims); !strings.Contains(claims, part) || strings.Contains(claims, "image") {
			t.Errorf("claims %s", claims)
		}
	}
	wantNADs := []*NAD{
		{Namespace: "default", Name: "broken", UID: "u-broken", Broken: "is no text"},
		{Namespace: "default", Name: "neta", UID: "u-neta", Config: `{"type":"pb"}`, Annotations: map[string]string{resourceName: "ex.com/vf"}},
		{Namespace: "other", Name: "bare", UID: "u-bare"},
	}
	if d := cmp.Diff(wantNADs, r.NADs(), noVersion); d != "" {
		t.Error(d)
	}
	if p, ok := r.Pod("default", "web"); !ok || p != r.Pods()[0] {
		t.Errorf("pod %+v", p)
	}
	if _, ok := r.Pod("default", "elsewhere"); ok {
		t.Error("a pod of another node is kept")
	}
	// Live, everything is as in the cache, and pods of other nodes are read as well.
	for _, want := range r.Pods() {
		got, err := r.LivePod(t.Context(), want.Namespace, want.Name)
		if d := cmp.Diff(want, got, cmp.AllowUnexported(Pod{})); d != "" || err != nil {
			t.Error(d, err)
		}
	}
	for _, want := range r.NADs() {
		got, ok, err := r.LiveNAD(t.Context(), want.Namespace, want.Name)
		if d := cmp.Diff(want, got); d != "" || err != nil || !ok {
			t.Error(d, err)
		}
	}
	if _, err := r.LivePod(t.Context(), "default", "elsewhere"); err != nil || len(r.Pods()) != 1 {
		t.Errorf("%v, pods %q", err, r.names())
	}
	if d := cmp.Diff(map[string]uint64{"watch pods": 1, "watch network-attachment-definitions": 1, "get pods": 2, "get network-attachment-definitions": 3}, r.Requests()); d != "" {
		t.Error(d)
	}
	if r.Behind() != nil || time.Since(r.LastContact()) > long {
		t.Errorf("behind %v, last contact %v", r.Behind(), r.LastContact())
	}
}

// TestLargeNADs: of a NAD that is large the caches have its size, and a live read has all,
// whether it comes with the list, by a watch, or shrinks and grows.
func TestLargeNADs(t *testing.T) {
	nad := func(name string, config, resource int) string {
		return fmt.Sprintf("apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: %s, uid: u-%s, annotations: {%s: %s}}\nspec: {config: '%s'}\n",
			name, name, resourceName, strings.Repeat("r", resource), strings.Repeat("x", config))
	}
	s := kubetest.New(t)
	s.Apply(nad("fits", MaxKept-1, 1) + "---\n" + nad("listed", MaxKept, 1) + "---\n" + nad("resource", 10, MaxKept))
	check := func(r *rig, name string, config, resource int, large bool) {
		t.Helper()
		r.until(name, func() bool {
			n, ok := r.NAD("default", name)
			if !ok || large {
				return ok && n.Large == config+resource && n.Config == "" && (n.Annotations == nil) == (resource > maxResource)
			}
			return n.Large == 0 && len(n.Config) == config && len(n.Annotations[resourceName]) == resource
		})
		n, ok, err := r.LiveNAD(t.Context(), "default", name)
		if err != nil || !ok || len(n.Config) != config || len(n.Annotations[resourceName]) != resource {
			t.Errorf("%s: live %v, %v", name, ok, err)
		}
	}
	for name, before := range map[string]func(){"streamed": func() {}, "listed": func() {
		s.Inject(kubetest.Fault{Verb: "watch", Status: 422, Times: 2})
	}} {
		t.Run(name, func(t *testing.T) {
			before()
			r := start(t, s, nil).ready()
			check(r, "fits", MaxKept-1, 1, false)
			check(r, "listed", MaxKept, 1, true)
			check(r, "resource", 10, MaxKept, true)
			s.Apply(nad(name+"-added", 2*MaxKept, 1))
			check(r, name+"-added", 2*MaxKept, 1, true)
			s.Apply(nad(name+"-added", 1, 1))
			check(r, name+"-added", 1, 1, false)
			s.Apply(nad(name+"-added", 3*MaxKept, 1))
			check(r, name+"-added", 3*MaxKept, 1, true)
		})
	}
}

func TestChangesAreFollowed(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("a", "") + "---\n" + pod("b", ", annotations: {k: v}"))
	r := start(t, s, nil).ready()
	if d := cmp.Diff([]string{"a u-a", "b u-b"}, r.notified()); d != "" {
		t.Error(d)
	}
	s.Apply(pod("c", ""))
	s.Annotate("default", "a", networksKey, "x")
	s.Annotate("default", "b", "nobody's", "x") // nothing that is kept
	s.Delete("pods", "default", "b")
	s.Apply(nads)
	r.until("changes", func() bool {
		_, ok := r.NAD("other", "bare")
		return ok && slices.Equal(r.names(), []string{"default/a", "default/c"})
	})
	if p, _ := r.Pod("default", "a"); p.Annotations[networksKey] != "x" {
		t.Errorf("pod %+v", p)
	}
	if d := cmp.Diff([]string{"a u-a", "b u-b", "c u-c"}, r.notified()); d != "" {
		t.Error(d)
	}
	s.Apply(strings.Replace(pod("a", ""), "u-a", "u-2", 1))
	r.until("another UID", func() bool { p, _ := r.Pod("default", "a"); return p.UID == "u-2" })
	if d := cmp.Diff([]string{"a u-2", "a u-a"}, r.notified()); d != "" {
		t.Error(d)
	}
}

// TestBackAgain has every way in which a watch ends, and changes that are missed meanwhile.
func TestBackAgain(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*kubetest.Server)
		back func(*kubetest.Server)
	}{
		"the watch ends":   {end: (*kubetest.Server).EndWatches},
		"410 Gone":         {end: (*kubetest.Server).Compact},
		"a server stopped": {(*kubetest.Server).Stop, (*kubetest.Server).Start},
		"stopped, and what was is too old": {
			func(s *kubetest.Server) { s.Compact(); s.Stop() }, (*kubetest.Server).Start,
		},
		"no answers":    {func(s *kubetest.Server) { s.Inject(kubetest.Fault{Status: 503}); s.EndWatches() }, (*kubetest.Server).Heal},
		"a busy server": {func(s *kubetest.Server) { s.Inject(kubetest.Fault{Status: 429, RetryAfter: 1}); s.Compact() }, (*kubetest.Server).Heal},
		"no permission": {func(s *kubetest.Server) { s.Inject(kubetest.Fault{Status: 403}); s.Compact() }, (*kubetest.Server).Heal},
		"no streams":    {func(s *kubetest.Server) { s.Inject(kubetest.Fault{Verb: "watch", Status: 422, Times: 4}); s.Compact() }, nil},
		"nonsense":      {func(s *kubetest.Server) { s.Inject(kubetest.Fault{Body: "<html>", Times: 3}); s.Compact() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(pod("a", "") + "---\n" + pod("b", "") + "---\n" + nads)
			r := start(t, s, nil).ready()
			c.end(s)
			s.Apply(pod("c", ""))
			s.Delete("pods", "default", "a")
			if c.back != nil {
				r.until("a try", func() bool { return r.Requests()["watch pods"] > 1 })
				if len(r.Pods()) == 0 || len(r.NADs()) != 3 {
					t.Error("the caches are lost")
				}
				c.back(s)
			}
			r.until("all is as it is", func() bool { return slices.Equal(r.names(), []string{"default/b", "default/c"}) && r.Behind() == nil })
			s.Delete("pods", "default", "b") // and goes on
			s.Delete("network-attachment-definitions", "default", "neta")
			r.until("the next change", func() bool { return slices.Equal(r.names(), []string{"default/c"}) && len(r.NADs()) == 2 })
		})
	}
}

// TestOddNADs: whatever stands in one NAD, all others are read, by a list and by a watch.
func TestOddNADs(t *testing.T) {
	odd := func(name, spec string) string {
		return "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: " + name + ", uid: u-" + name + "}\nspec: " + spec + "\n"
	}
	specs := map[string]struct{ spec, broken string }{
		"text":   {"text", "cannot be read, as spec is no object"},
		"list":   {"[1]", "cannot be read, as spec is no object"},
		"number": {"1", "cannot be read, as spec is no object"},
		"void":   {"null", ""},
		"object": {"{config: {a: 1}}", "is no text"},
		"more":   {"{config: '{}', more: [1]}", ""},
		"twice":  {"{Config: [1]}", ""},
	}
	for _, watched := range []bool{false, true} {
		s := kubetest.New(t)
		var r *rig
		if watched {
			r = start(t, s, nil).ready()
		}
		for name, c := range specs {
			s.Apply(odd(name, c.spec))
		}
		s.Apply(nads)
		if !watched {
			r = start(t, s, nil).ready()
		}
		r.until("all NADs", func() bool { return len(r.NADs()) == len(specs)+3 })
		for name, c := range specs {
			cached, _ := r.NAD("default", name)
			live, ok, err := r.LiveNAD(t.Context(), "default", name)
			if d := cmp.Diff(cached, live); d != "" || !ok || err != nil || cached.Broken != c.broken {
				t.Errorf("%s: %+v, %s, %v", name, cached, d, err)
			}
		}
		if n := s.Count("watch", "network-attachment-definitions"); n != 1 {
			t.Errorf("watched %d times", n)
		}
	}
}

// TestNoDefinition: without the CustomResourceDefinition nothing is synced, and it is
// said why; installed later, it is found.
func TestNoDefinition(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("a", "") + "---\n" + nads)
	s.Withhold("network-attachment-definitions", true)
	r := start(t, s, nil)
	const why = "the API server does not serve k8s.cni.cncf.io/v1 (is the CustomResourceDefinition installed?)"
	r.until("a fault", func() bool {
		return len(r.Pods()) == 1 && r.Behind() != nil && strings.Contains(r.Behind().Error(), why)
	})
	select {
	case <-r.Synced():
		t.Error("pods alone are synced")
	default:
	}
	if _, ok, err := r.LiveNAD(t.Context(), "default", "neta"); ok || err == nil || rest.NotFound(err) || errors.Is(err, ErrNotFound) {
		t.Errorf("live %v %v", ok, err)
	}
	s.Withhold("network-attachment-definitions", false)
	r.ready()
	if r.Behind() != nil || len(r.NADs()) != 3 {
		t.Errorf("behind %v, %d NADs", r.Behind(), len(r.NADs()))
	}
	if logs := r.logs.String(); strings.Count(logs, why) != 1 || !strings.Contains(logs, "following again") {
		t.Error(logs)
	}
}

// TestNoAnswerAtStart: Run ends at once also while nothing answers.
func TestNoAnswerAtStart(t *testing.T) {
	for name, f := range map[string]kubetest.Fault{"refused": {}, "hang": {Hang: true}, "away": {Status: 503}, "busy": {Status: 429, RetryAfter: 100}} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Inject(f)
			if name == "refused" {
				s.Stop()
			}
			r := start(t, s, nil)
			r.until("a try", func() bool { return r.Requests()["watch pods"] > 0 })
			if r.Behind() == nil {
				t.Error("nothing is behind")
			}
			begun := time.Now()
			r.stop()
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("the end took %v", took)
			}
		})
	}
}

// TestWatchWithoutAnswer: who takes the request for a watch and never answers keeps the
// agent from its lists no longer than from beginning anew.
func TestWatchWithoutAnswer(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("web", ""))
	s.Inject(kubetest.Fault{Verb: "watch", Hang: true})
	r := startWith(t, s, nil, func(c *Cluster) {
		for _, f := range c.follow {
			f.patience = 20 * time.Millisecond
		}
	})
	r.ready() // by a list, as nothing comes of streaming it
	r.until("another try", func() bool { return s.Count("watch", "pods") > 2 })
	if err := r.Behind(); err == nil || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("behind: %v", err)
	}
	s.Heal()
	s.Apply(pod("new", ""))
	r.until("the new pod", func() bool { _, ok := r.Pod("default", "new"); return ok })
}

// TestSilentStream: nor does who begins to answer a streamed list, and sends nothing of it.
func TestSilentStream(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("web", ""))
	s.Inject(kubetest.Fault{Verb: "watch", Silent: true})
	r := startWith(t, s, nil, func(c *Cluster) {
		for _, f := range c.follow {
			f.patience = 20 * time.Millisecond
		}
	})
	r.ready()
	if d := cmp.Diff([]string{"default/web"}, r.names()); d != "" || s.Count("list", "pods") != 1 {
		t.Errorf("%s, %d lists", d, s.Count("list", "pods"))
	}
	// A watch without changes is as silent, and no fault.
	r.until("following", func() bool { return s.Count("watch", "pods") == 2 && r.Behind() == nil })
}

func TestConfigFaults(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("kind: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"nothing":      {Config{}, []string{"nodeName: is missing", "kubeconfig: is missing, and the service account of a pod is not to be had"}},
		"no file":      {Config{NodeName: "n1", Kubeconfig: none}, []string{"kubeconfig: read " + none}},
		"a broken one": {Config{Kubeconfig: bad}, []string{"nodeName: is missing", "kubeconfig: read " + bad}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(c.cfg, slog.New(slog.DiscardHandler))
			for _, w := range c.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("error %v, want %q", err, w)
				}
			}
		})
	}
}

// TestLiveFaults: what an answer other than the object is told as.
func TestLiveFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault kubetest.Fault
		code  int
		text  string
	}{
		"none":      {kubetest.Fault{}, 404, "get pod default/web at URL: answer 404 Not Found"},
		"forbidden": {kubetest.Fault{Status: 403}, 403, "get pod default/web at URL: answer 403 Forbidden: told to answer so"},
		"away":      {kubetest.Fault{Status: 503}, 503, "answer 503 Service Unavailable"},
		"busy":      {kubetest.Fault{Status: 429, RetryAfter: 7}, 429, "answer 429 Too Many Requests"},
		"dropped":   {kubetest.Fault{Drop: true}, 0, "EOF"},
		"nonsense":  {kubetest.Fault{Body: "<html>"}, 0, "get pod default/web at URL: "},
		"hang":      {kubetest.Fault{Hang: true}, 0, "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			c.fault.Verb = "get"
			s.Inject(c.fault)
			r := start(t, s, nil).ready()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := r.LivePod(ctx, "default", "web")
			if _, typed := errors.AsType[*rest.Error](err); !typed || rest.Code(err) != c.code || !strings.Contains(err.Error(), strings.Replace(c.text, "URL", s.URL(), 1)) {
				t.Errorf("error %v", err)
			}
			if errors.Is(err, ErrNotFound) != (c.code == 404) || rest.NotFound(err) != (c.code == 404) {
				t.Errorf("error %v is not found", err)
			}
			if s.Count("get", "pods") > 1 && !c.fault.Drop { // net/http tries a reused connection again
				t.Errorf("%d requests", s.Count("get", "pods"))
			}
		})
	}
}

// TestAnotherAnswer: what is not the object that was asked for is none.
func TestAnotherAnswer(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":             `{}`,
		"no metadata":         `{"kind":"KIND","apiVersion":"API"}`,
		"empty metadata":      `{"kind":"KIND","apiVersion":"API","metadata":{}}`,
		"another name":        `{"kind":"KIND","apiVersion":"API","metadata":{"name":"b","namespace":"default","uid":"u"}}`,
		"another namespace":   `{"kind":"KIND","apiVersion":"API","metadata":{"name":"a","namespace":"other","uid":"u"}}`,
		"no UID":              `{"kind":"KIND","apiVersion":"API","metadata":{"name":"a","namespace":"default"}}`,
		"another kind":        `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"u"}}`,
		"a list":              `{"kind":"KINDList","apiVersion":"API","metadata":{},"items":[]}`,
		"a status":            `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`,
		"a status with names": `{"kind":"Status","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"u"},"status":"Success"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			r := start(t, s, nil).ready()
			ask := func(kind, api string, live func() error) {
				t.Helper()
				s.Inject(kubetest.Fault{Verb: "get", Body: strings.NewReplacer("KIND", kind, "API", api).Replace(body)})
				err := live()
				s.Heal()
				if _, typed := errors.AsType[*rest.Error](err); !typed || !errors.Is(err, rest.ErrGarbage) || Lasting(err) || errors.Is(err, ErrNotFound) {
					t.Errorf("%s: error %v", kind, err)
				}
			}
			ask("Pod", "v1", func() error { _, err := r.LivePod(t.Context(), "default", "a"); return err })
			ask("NetworkAttachmentDefinition", "k8s.cni.cncf.io/v1", func() error { _, _, err := r.LiveNAD(t.Context(), "default", "a"); return err })
		})
	}
}

func TestTokenIsRotated(t *testing.T) {
	s := kubetest.New(t, kubetest.WithTLS(), kubetest.WithToken("t1"))
	s.Apply(pod("a", ""))
	file := filepath.Join(t.TempDir(), "token")
	rotate := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		s.SetTokens(token)
	}
	rotate("t1")
	r := start(t, s, func(_, user map[string]any) { delete(user, "token"); user["tokenFile"] = file }).ready()
	rotate("t2")
	var err error
	r.until("the new token", func() bool { _, err = r.LivePod(t.Context(), "default", "a"); return err == nil })
	if n := s.Count("get", "pods"); n > 2 {
		t.Errorf("%d requests", n)
	}
	if text := fmt.Sprintf("%+v %s", r.Cluster, r.logs); strings.Contains(text, "t1") && strings.Contains(text, "Bearer") {
		t.Error("the token shows")
	}
}
