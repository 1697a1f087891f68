// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"github.com/weftnet/weft/internal/kube/claims"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func clientset(t *testing.T, server *kubetest.Server) kubernetes.Interface {
	t.Helper()
	conn := &clientrest.Config{Host: server.URL(), QPS: -1, ContentConfig: clientrest.ContentConfig{ContentType: "application/json"}}
	http, err := clientrest.HTTPClientFor(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.CloseIdleConnections)
	api, err := kubernetes.NewForConfigAndClient(conn, http)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

const claim = `
kind: ResourceClaim
metadata: {name: c1, uid: uid-c1}
spec: {}
status: {reservedFor: [{resource: pods, name: p1, uid: uid-p1}]}
`

// ours adds an entry, unless it is there.
func ours(c *resourceapi.ResourceClaim) bool {
	for _, d := range c.Status.Devices {
		if d.Driver == "ours" {
			return false
		}
	}
	c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: "ours", Pool: "p", Device: "d"})
	return true
}

func drivers(t *testing.T, server *kubetest.Server) (names []string) {
	t.Helper()
	status, _ := server.Object("resourceclaims", "default", "c1")["status"].(map[string]any)
	devices, _ := status["devices"].([]any)
	for _, d := range devices {
		names = append(names, fmt.Sprint(d.(map[string]any)["driver"]))
	}
	return names
}

func TestWriteStatus(t *testing.T) { // T-31
	other := func(server *kubetest.Server) {
		server.Apply(strings.Replace(claim, "status: {", "status: {devices: [{driver: theirs, pool: p, device: e}], ", 1))
	}
	for name, c := range map[string]struct {
		fault   func(*kubetest.Server)
		writes  int
		drivers []string
		fails   func(error) bool
	}{
		"at once": {func(*kubetest.Server) {}, 1, []string{"ours"}, nil},
		"another writer is quicker": {func(s *kubetest.Server) {
			s.Inject(kubetest.Fault{Verb: "update", Times: 1, Before: func() { other(s) }})
		}, 2, []string{"theirs", "ours"}, nil},
		"the server is busy": {func(s *kubetest.Server) {
			s.Inject(kubetest.Fault{Verb: "update", Times: 2, Status: 500})
		}, 3, []string{"ours"}, nil},
		"the answer is lost": {func(s *kubetest.Server) {
			s.Inject(kubetest.Fault{Verb: "update", Times: 1, DropAfter: true})
		}, 1, []string{"ours"}, nil},
		"403":  {func(s *kubetest.Server) { s.Inject(kubetest.Fault{Verb: "update", Status: 403}) }, 1, nil, apierrors.IsForbidden},
		"422":  {func(s *kubetest.Server) { s.Inject(kubetest.Fault{Verb: "update", Status: 422}) }, 1, nil, apierrors.IsInvalid},
		"gone": {func(s *kubetest.Server) { s.Delete("resourceclaims", "default", "c1") }, 1, nil, apierrors.IsNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			server := kubetest.New(t)
			server.Apply(claim)
			client := claims.New(clientset(t, server), "n1")
			read, err := client.Claim(t.Context(), types.NamespacedName{Namespace: "default", Name: "c1"})
			if err != nil {
				t.Fatal(err)
			}
			c.fault(server)
			err = client.WriteStatus(t.Context(), read, ours)
			if (err != nil) != (c.fails != nil) || err != nil && (!c.fails(err) || !strings.Contains(err.Error(), "default/c1")) {
				t.Errorf("error: %v", err)
			}
			if diff := cmp.Diff(c.drivers, drivers(t, server)); diff != "" {
				t.Error(diff)
			}
			if n := server.Count("update", "resourceclaims"); n != c.writes {
				t.Errorf("%d writes, want %d", n, c.writes)
			}
		})
	}
}

func TestWriteStatusWritesNothingNew(t *testing.T) {
	server := kubetest.New(t)
	client := claims.New(clientset(t, server), "n1")
	if err := client.WriteStatus(t.Context(), &resourceapi.ResourceClaim{}, func(*resourceapi.ResourceClaim) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if n := server.Count("", ""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A server that never answers ends no later than its caller's context.
func TestWriteStatusEnds(t *testing.T) {
	server := kubetest.New(t)
	server.Apply(claim)
	client := claims.New(clientset(t, server), "n1")
	read, err := client.Claim(t.Context(), types.NamespacedName{Namespace: "default", Name: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	server.Inject(kubetest.Fault{Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := client.WriteStatus(ctx, read, ours); err == nil {
		t.Error("no error")
	}
	server.Heal()
}

const pods = `
kind: Pod
metadata: {name: p1, uid: uid-p1}
spec: {nodeName: n1, resourceClaims: [{name: a, resourceClaimName: c1}, {name: b, resourceClaimTemplateName: t}]}
status: {resourceClaimStatuses: [{name: b, resourceClaimName: p1-b-x}, {name: c}]}
---
kind: Pod
metadata: {name: p2, uid: uid-p2}
spec: {nodeName: n1, resourceClaims: [{name: a, resourceClaimName: gone}]}
status: {phase: Succeeded}
---
kind: Pod
metadata: {name: p3, uid: uid-p3}
spec: {nodeName: n2, resourceClaims: [{name: a, resourceClaimName: c3}]}
---
kind: ResourceClaim
metadata: {name: p1-b-x, uid: uid-b}
---
kind: ResourceClaim
metadata: {name: c3, uid: uid-c3}
`

func TestOfNode(t *testing.T) { // T-54
	server := kubetest.New(t)
	server.Apply(claim)
	server.Apply(pods)
	client := claims.New(clientset(t, server), "n1")
	names := func(list []*resourceapi.ResourceClaim) (names []string) {
		for _, c := range list {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		return names
	}
	list, found, err := client.OfNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c1", "p1-b-x"}, names(list)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]types.UID{"uid-p1", "uid-p2"}, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Error(diff)
	}
	if found["uid-p2"].Status.Phase != corev1.PodSucceeded {
		t.Error("the phase of a pod is lost")
	}
	// One claim that cannot be read hides no other.
	server.Inject(kubetest.Fault{Verb: "get", Name: "c1", Status: 403})
	if list, found, err = client.OfNode(t.Context()); err == nil || len(list) != 1 || len(found) != 2 {
		t.Errorf("%v, %v, %v", list, found, err)
	}
	server.Inject(kubetest.Fault{Verb: "list", Status: 403})
	if _, found, err = client.OfNode(t.Context()); err == nil || found != nil {
		t.Errorf("%v, %v", found, err)
	}
}

func TestElsewhere(t *testing.T) {
	server := kubetest.New(t)
	for i, c := range []struct{ node, driver, pool, device, more string }{
		{"n1", "d", "sriov-pool", "dev0", ""},
		{"n1", "d", "n1/sriov-pool", "dev1", ""},
		{"n2", "d", "sriov-pool", "dev2", ""},
		{"n1", "other", "sriov-pool", "dev3", ""},
		{"n1", "d", "sriov-pool", "dev4", ", adminAccess: true"},
	} {
		server.Apply(fmt.Sprintf(`
kind: ResourceClaim
metadata: {name: c%d}
status:
  allocation:
    nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [%s]}]}]}
    devices: {results: [{request: r, driver: %s, pool: %s, device: %s%s}]}
`, i, c.node, c.driver, c.pool, c.device, c.more))
	}
	got, still, err := claims.New(clientset(t, server), "n1").Elsewhere(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"dev0": "sriov-pool"}, got); diff != "" {
		t.Error(diff)
	}
	lists := server.Count("list", "resourceclaims")
	if again, err := still(t.Context()); err != nil || !cmp.Equal(got, again) {
		t.Errorf("again: %v, %v", again, err)
	}
	server.Delete("resourceclaims", "default", "c0")
	if again, err := still(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("without the claim: %v, %v", again, err)
	}
	if server.Count("list", "resourceclaims") != lists || server.Count("get", "resourceclaims") != 2 {
		t.Error("claims were read that have no such device")
	}
}

// TestOthersClaimsAreNotKept: the claims of other nodes are looked at once, when it is asked for, and
// neither kept nor followed: an agent's memory does not grow with them.
func TestOthersClaimsAreNotKept(t *testing.T) {
	const others, size, most = 400, 8 << 10, 1 << 20
	server := kubetest.New(t)
	api := claims.New(clientset(t, server), "n1")
	ask := func() any {
		t.Helper()
		found, still, err := api.Elsewhere(t.Context(), "d")
		if err != nil {
			t.Fatal(err)
		}
		own, pods, err := api.OfNode(t.Context())
		if err != nil || len(own) != 0 || len(found) != 0 {
			t.Fatalf("%d claims, devices %v, %v", len(own), found, err)
		}
		return []any{found, still, own, pods}
	}
	ask() // what the connection takes
	for i := range others {
		server.Apply(fmt.Sprintf(`{"kind":"ResourceClaim","metadata":{"name":"c%d"},"status":{
			"allocation":{"nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]}]},
			"devices":{"results":[{"request":"r","driver":"d","pool":"p","device":"dev%d"}]}},
			"devices":[{"driver":"d","pool":"p","device":"dev%d","data":{"x":%q}}]}}`, i, i, i, strings.Repeat("x", size)))
	}
	before := heap()
	kept := ask()
	if grown := heap() - before; grown > most {
		t.Errorf("%d claims of another node, of %d bytes each, are %d bytes in memory afterwards", others, size, grown)
	}
	runtime.KeepAlive(kept)
	runtime.KeepAlive(server)
	if n := server.Count("watch", "resourceclaims"); n != 0 {
		t.Errorf("claims are followed %d times", n)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestEvents(t *testing.T) {
	server := kubetest.New(t)
	events := claims.NewEvents(clientset(t, server), "n1", slog.New(slog.DiscardHandler))
	about := corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: "default", Name: "c1", UID: "uid-c1"}
	for range 3 {
		events.Event(about, corev1.EventTypeWarning, "PrepareFailed", "first "+strings.Repeat("x", 2000))
	}
	events.Event(about, corev1.EventTypeWarning, "PrepareFailed", "second")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- events.Run(ctx) }()
	for deadline := time.Now().Add(20 * time.Second); len(server.Events("default")) < 2; {
		arrived := server.Arrived()
		if len(server.Events("default")) >= 2 {
			break
		}
		select {
		case <-arrived:
		case <-time.After(10 * time.Millisecond): // its code is noted after it arrived
		}
		if time.Now().After(deadline) {
			t.Fatal("no events")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	told := server.Events("default")
	if len(told) != 2 || told[0].Reason != "PrepareFailed" || told[0].UID != "uid-c1" || len(told[0].Message) != 1<<10 || told[1].Message != "second" {
		t.Errorf("events: %+v", told)
	}
}
