// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelettest plays the kubelet for tests of the network driver: it registers drivers whose
// sockets appear, as the kubelet's plugin watcher does, and calls them through real gRPC sockets.
//
// It owns a kubelet directory of its own, and an API in memory for what drivers publish. It knows
// nothing of claims: callers say what is called.
//
// Implements: spec/dra.md 3.1 and 3.5, the kubelet's side.
package kubelettest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Kubelet is a running one.
type Kubelet struct {
	t   testing.TB
	dir string

	mu     sync.Mutex
	known  map[string]string      // driver: endpoint
	seen   map[string]os.FileInfo // registration socket: the one that was dealt with
	refuse string
}

const (
	look    = 2 * time.Millisecond
	patient = 30 * time.Second
)

// Start runs a kubelet until the test ends.
func Start(t testing.TB) *Kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") //nolint:usetesting // a short path: that of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	const mode = 0o700
	if err := os.Mkdir(filepath.Join(dir, "plugins_registry"), mode); err != nil {
		t.Fatal(err)
	}
	k := &Kubelet{t: t, dir: dir, known: map[string]string{}, seen: map[string]os.FileInfo{}}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { k.watch(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return k
}

// Dir is its directory.
func (k *Kubelet) Dir() string { return k.dir }

// Refuse has drivers that register from now on refused with a text; "" accepts them again.
func (k *Kubelet) Refuse(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = text
}

// Restart forgets everything and registers whatever is there, as a kubelet does when it starts.
func (k *Kubelet) Restart() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.known)
	clear(k.seen)
}

// Drivers are those that are registered and whose sockets are there, sorted.
func (k *Kubelet) Drivers() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.known {
		if _, err := os.Lstat(k.registry(name)); err == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// API is an API server in memory, with one node: what is created without a name gets one, as a server
// does it and the tracker of objects below does not.
func API(node string) *fake.Clientset {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "node-uid"}})
	var made atomic.Int64
	client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(clienttesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		if slice, ok := create.GetObject().(*resourceapi.ResourceSlice); ok && slice.Name == "" {
			slice.Name = fmt.Sprint(slice.GenerateName, made.Add(1))
		}
		return false, nil, nil
	})
	return client
}

const suffix = "-reg.sock"

func (k *Kubelet) registry(driver string) string {
	return filepath.Join(k.dir, "plugins_registry", driver+suffix)
}

func (k *Kubelet) watch(ctx context.Context) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		entries, _ := os.ReadDir(filepath.Join(k.dir, "plugins_registry"))
		for _, e := range entries {
			if driver, ok := strings.CutSuffix(e.Name(), suffix); ok {
				k.register(ctx, driver)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (k *Kubelet) register(ctx context.Context, driver string) {
	path := k.registry(driver)
	info, err := os.Lstat(path)
	if err != nil {
		return
	}
	k.mu.Lock()
	old, refuse := k.seen[path], k.refuse
	k.mu.Unlock()
	if old != nil && os.SameFile(old, info) && old.ModTime().Equal(info.ModTime()) {
		return
	}
	const limit = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := dial(path)
	if err != nil {
		return
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	plugin, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return // the next look tries again
	}
	status := &registerapi.RegistrationStatus{PluginRegistered: refuse == "", Error: refuse}
	_, err = client.NotifyRegistrationStatus(ctx, status)
	if err != nil && refuse == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[path] = info
	if refuse == "" {
		k.known[plugin.Name] = plugin.Endpoint
	}
}

func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
}

// WaitFor waits until exactly these drivers are registered.
func (k *Kubelet) WaitFor(drivers ...string) {
	k.t.Helper()
	slices.Sort(drivers)
	for late := time.Now().Add(patient); ; {
		got := k.Drivers()
		if slices.Equal(got, drivers) {
			return
		}
		if time.Now().After(late) {
			k.t.Fatalf("registered are %v, not %v", got, drivers)
		}
		<-time.After(look)
	}
}

// Prepare calls NodePrepareResources of a registered driver, with the kubelet's deadline in ctx.
func (k *Kubelet) Prepare(ctx context.Context, driver string, claims ...*drapb.Claim) (map[string]*drapb.NodePrepareResourceResponse, error) {
	var claimed map[string]*drapb.NodePrepareResourceResponse
	err := k.call(driver, func(c drapb.DRAPluginClient) error {
		answer, err := c.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
		claimed = answer.GetClaims()
		return err
	})
	return claimed, err
}

// Unprepare calls NodeUnprepareResources of a registered driver.
func (k *Kubelet) Unprepare(ctx context.Context, driver string, claims ...*drapb.Claim) (map[string]*drapb.NodeUnprepareResourceResponse, error) {
	var claimed map[string]*drapb.NodeUnprepareResourceResponse
	err := k.call(driver, func(c drapb.DRAPluginClient) error {
		answer, err := c.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
		claimed = answer.GetClaims()
		return err
	})
	return claimed, err
}

func (k *Kubelet) call(driver string, f func(drapb.DRAPluginClient) error) error {
	k.mu.Lock()
	endpoint := k.known[driver]
	k.mu.Unlock()
	conn, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(drapb.NewDRAPluginClient(conn))
}
