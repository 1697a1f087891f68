// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeconfig_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	clientrest "k8s.io/client-go/rest"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/kube/nodeconfig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const resource = v2alpha1.NodeConfigResource

// config is a configuration of a node with so many dummies.
func config(node string, generation, count int) string {
	return fmt.Sprintf(`
apiVersion: cilium.io/v2alpha1
kind: CiliumNetworkDriverNodeConfig
metadata: {name: %s, uid: uid-%s, generation: %d}
spec: {deviceManagerConfigs: {dummy: {enabled: true, count: %d}}, future: {a: 1}}
`, node, node, generation, count)
}

// follower is one that runs, and what it has told and said.
type follower struct {
	*nodeconfig.Follower
	t    *testing.T
	news chan string

	mu  sync.Mutex
	log bytes.Buffer
}

// Write takes the log.
func (f *follower) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(b)
}

func (f *follower) said(text string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Count(f.log.String(), text)
}

func start(t *testing.T, server *kubetest.Server) *follower {
	t.Helper()
	return startWith(t, server, 5*time.Second)
}

// startWith is start with so much patience for an answer.
func startWith(t *testing.T, server *kubetest.Server, answer time.Duration) *follower {
	t.Helper()
	f := &follower{t: t, news: make(chan string, 100)}
	var err error
	f.Follower, err = nodeconfig.New(nodeconfig.Config{
		Node: "n1", Conn: &clientrest.Config{Host: server.URL()}, Log: slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Changed: func(c *v2alpha1.CiliumNetworkDriverNodeConfig) {
			if c == nil {
				f.news <- "none"
				return
			}
			f.news <- fmt.Sprintf("%s of generation %d has %d", c.Name, c.Generation, c.Spec.DeviceManagerConfigs.Dummy.Count)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Hurry(answer)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return f
}

// next waits for news.
func (f *follower) next(want string) {
	f.t.Helper()
	select {
	case got := <-f.news:
		if got != want {
			f.t.Fatalf("told %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		f.t.Fatalf("not told %q; log:\n%s", want, f.log.String())
	}
}

// quiet says that there were no news that nobody has taken.
func (f *follower) quiet() {
	f.t.Helper()
	select {
	case got := <-f.news:
		f.t.Fatalf("told %q, want nothing", got)
	default:
	}
}

// until polls something that the server sees.
func until(t *testing.T, server *kubetest.Server, what string, ok func() bool) {
	t.Helper()
	end := time.After(20 * time.Second)
	for tick := time.NewTicker(2 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s: not within 20 s; requests: %+v", what, server.Requests())
		}
	}
}

func TestFollow(t *testing.T) {
	server := kubetest.New(t)
	server.Apply(config("n2", 1, 9))
	f := start(t, server)
	f.next("none")
	until(t, server, "a watch", func() bool { return server.Watches(resource) == 1 })
	server.Apply(config("n1", 1, 3))
	f.next("n1 of generation 1 has 3")
	server.Apply(config("n2", 2, 8))
	server.Apply(config("n1", 2, 5))
	f.next("n1 of generation 2 has 5")
	if got, known := f.Current(); !known || got.Name != "n1" || f.Behind() != nil {
		t.Errorf("current: %v, %v; behind: %v", got, known, f.Behind())
	}
	server.Delete(resource, "", "n1")
	f.next("none")
	server.EndWatches()
	server.Apply(config("n1", 1, 1))
	f.next("n1 of generation 1 has 1")
	server.Compact() // versions are too old: all is listed again
	server.Apply(config("n1", 2, 2))
	f.next("n1 of generation 2 has 2")
	f.quiet()
	if n := f.said("WARN"); n > 2 { // two watches were cut off at once
		t.Errorf("%d warnings:\n%s", n, f.log.String())
	}
}

// What is not of this node is passed over, also when a server does not select.
func TestOtherNodes(t *testing.T) {
	server := kubetest.New(t)
	server.Inject(kubetest.Fault{Verb: "list", Resource: resource, Times: 1, Body: `{"apiVersion":"cilium.io/v2alpha1","kind":"CiliumNetworkDriverNodeConfigList",
		"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"n2"},"spec":{}},{"metadata":{"name":"n1","generation":4},"spec":{"deviceManagerConfigs":{"dummy":{"count":7}}}}]}`})
	f := start(t, server)
	f.next("n1 of generation 4 has 7")
}

// A resource that is not served is waited for, quietly, and comes by itself; that it is gone means
// that there is no configuration.
func TestDefinitionComesAndGoes(t *testing.T) {
	server := kubetest.New(t)
	server.Apply(config("n1", 1, 3))
	server.Withhold(resource, true)
	f := start(t, server)
	f.next("none")
	until(t, server, "looks for it", func() bool { return server.Count("list", resource) > 5 })
	if f.Behind() != nil || f.said("waiting for the definition") != 1 || f.said("WARN") != 0 {
		t.Errorf("behind: %v; log:\n%s", f.Behind(), f.log.String())
	}
	server.Withhold(resource, false)
	f.next("n1 of generation 1 has 3")
	until(t, server, "a watch", func() bool { return server.Watches(resource) == 1 })
	server.Withhold(resource, true)
	server.EndWatches()
	f.next("none")
	f.quiet()
}

// One answer that the resource is not served, as of a server that is starting, takes nothing away.
func TestOneNotServedIsNotBelieved(t *testing.T) {
	server := kubetest.New(t)
	server.Apply(config("n1", 1, 3))
	f := start(t, server)
	f.next("n1 of generation 1 has 3")
	server.Inject(kubetest.Fault{Verb: "watch", Resource: resource, Times: 1, Status: 404, Plain: true})
	lists := server.Count("list", resource)
	server.EndWatches()
	until(t, server, "another list", func() bool { return server.Count("list", resource) > lists && server.Watches(resource) == 1 })
	f.quiet()
}

// While the API server is away, refuses or answers nothing, what was known counts.
func TestServerAway(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"refuses":           {Resource: resource, Status: 403},
		"is overloaded":     {Resource: resource, Status: 429, RetryAfter: 1},
		"breaks":            {Resource: resource, Status: 503},
		"answers nothing":   {Resource: resource, Hang: true},
		"drops connections": {Resource: resource, Drop: true},
		"answers garbage":   {Resource: resource, Body: "<html>"},
		"cuts answers off":  {Resource: resource, Verb: "list", Truncate: true},
		"does not watch":    {Resource: resource, Verb: "watch", Status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			server := kubetest.New(t)
			server.Apply(config("n1", 1, 3))
			f := startWith(t, server, 200*time.Millisecond)
			f.next("n1 of generation 1 has 3")
			until(t, server, "a watch", func() bool { return server.Watches(resource) == 1 })
			server.Inject(fault)
			server.Compact() // has it list again
			n := server.Count("", resource)
			until(t, server, "more tries", func() bool { return server.Count("", resource) > n+3 })
			f.quiet()
			server.Heal()
			server.Apply(config("n1", 2, 5))
			f.next("n1 of generation 2 has 5")
			until(t, server, "it to be well", func() bool { return f.Behind() == nil })
			if n := f.said("WARN"); n == 0 || n > 6 {
				t.Errorf("%d warnings:\n%s", n, f.log.String())
			}
		})
	}
	t.Run("is gone", func(t *testing.T) {
		server := kubetest.New(t)
		server.Apply(config("n1", 1, 3))
		f := start(t, server)
		f.next("n1 of generation 1 has 3")
		server.Stop()
		until(t, server, "a fault", func() bool { return f.Behind() != nil })
		server.Apply(config("n1", 2, 5))
		f.quiet()
		server.Start()
		f.next("n1 of generation 2 has 5")
	})
}

func TestNewNamesFaults(t *testing.T) {
	_, err := nodeconfig.New(nodeconfig.Config{})
	if err == nil {
		t.Fatal("nothing at all is accepted")
	}
	if d := cmp.Diff("node: is missing\nconn: is missing", err.Error()); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}
