// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/weftnet/weft/internal/dra/kubelet"
	"github.com/weftnet/weft/internal/dra/kubelet/kubelettest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// plugin prepares nothing, and says so.
type plugin struct{ unprepared chan types.UID }

func (plugin) PrepareResourceClaims(context.Context, []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return nil, errors.New("nothing is prepared here")
}

func (p plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		p.unprepared <- c.UID
		results[c.UID] = nil
	}
	return results, nil
}

func (plugin) HandleError(context.Context, error, string) {}

func (plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

const driver, node = "test.example.com", "n1"

type rig struct {
	t        *testing.T
	dir      string
	client   *fake.Clientset
	plugin   plugin
	statuses chan kubelet.Status
	r        *kubelet.Registration
}

func start(t *testing.T, edit func(*kubelet.Config)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") //nolint:usetesting // a short path: that of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "plugins_registry"), 0o700); err != nil {
		t.Fatal(err)
	}
	rig := &rig{
		t: t, dir: dir, plugin: plugin{make(chan types.UID, 1)}, statuses: make(chan kubelet.Status, 1000),
		client: kubelettest.API(node),
	}
	cfg := kubelet.Config{
		Driver: driver, Node: node, Dir: dir, Client: rig.client, Plugin: rig.plugin,
		Interval: time.Millisecond, Timeout: time.Minute, MaxAttempts: 3, Slow: 10 * time.Millisecond, Check: 5 * time.Millisecond,
		Report: func(s kubelet.Status) { rig.statuses <- s },
	}
	if edit != nil {
		edit(&cfg)
	}
	rig.r = kubelet.New(cfg, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- rig.r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, socket := range rig.sockets() {
			if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", socket, err)
			}
		}
	})
	return rig
}

func (r *rig) sockets() []string {
	return []string{
		filepath.Join(r.dir, "plugins_registry", driver+"-reg.sock"),
		filepath.Join(r.dir, "plugins", driver, "dra.sock"),
	}
}

// dial connects to a socket as the kubelet does, and waits until somebody answers there.
func (r *rig) dial(path string) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

// register plays the kubelet that finds the registration socket.
func (r *rig) register(verdict *registerapi.RegistrationStatus) *registerapi.PluginInfo {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	client := registerapi.NewRegistrationClient(r.dial(r.sockets()[0]))
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := client.NotifyRegistrationStatus(ctx, verdict); (err == nil) != verdict.PluginRegistered {
		r.t.Fatalf("answer to %v is %v", verdict, err)
	}
	return info
}

// until takes statuses until one is as wanted.
func (r *rig) until(what string, want func(kubelet.Status) bool) kubelet.Status {
	r.t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case s := <-r.statuses:
			if want(s) {
				return s
			}
		case <-late:
			r.t.Fatalf("no status %s", what)
		}
	}
}

func registered(s kubelet.Status) bool { return s.Registered }

// slices waits until the API has the slices of these pools.
func (r *rig) slices(pools ...string) {
	r.t.Helper()
	late := time.Now().Add(30 * time.Second)
	for {
		list, err := r.client.ResourceV1().ResourceSlices().List(r.t.Context(), metav1.ListOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		var got []string
		for _, s := range list.Items {
			got = append(got, s.Spec.Pool.Name)
		}
		slices.Sort(got)
		if slices.Equal(got, pools) {
			return
		}
		if time.Now().After(late) {
			r.t.Fatalf("slices are of the pools %v, not %v", got, pools)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func pools(names ...string) resourceslice.DriverResources {
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	for _, name := range names {
		resources.Pools[name] = resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "d"}}}}}
	}
	return resources
}

// Nothing is published before the kubelet knows the driver; then it is, what comes later too, and
// calls of the kubelet arrive.
func TestRegistered(t *testing.T) {
	r := start(t, nil)
	if err := r.r.Publish(t.Context(), pools("n1/a")); err != nil {
		t.Fatal(err)
	}
	conn := r.dial(r.sockets()[1])
	client := drapb.NewDRAPluginClient(conn)
	if _, err := client.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "u", Name: "c", Namespace: "ns"}}}); err != nil {
		t.Fatal(err)
	}
	if uid := <-r.plugin.unprepared; uid != "u" {
		t.Errorf("unprepared %s", uid)
	}
	r.slices()
	info := r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
	if info.Name != driver || info.Endpoint != r.sockets()[1] || info.Type != registerapi.DRAPlugin {
		t.Errorf("plugin says that it is %v", info)
	}
	r.until("registered", registered)
	r.slices("n1/a")
	if err := r.r.Publish(t.Context(), pools("n1/a", "n1/b")); err != nil {
		t.Fatal(err)
	}
	r.slices("n1/a", "n1/b")
}

// T-58: a kubelet that starts again deletes the slices and registers the driver once more.
func TestKubeletRestart(t *testing.T) {
	r := start(t, nil)
	if err := r.r.Publish(t.Context(), pools("n1/a")); err != nil {
		t.Fatal(err)
	}
	r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
	r.slices("n1/a")
	if err := r.client.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := r.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if err := r.client.ResourceV1().ResourceSlices().Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
	r.slices("n1/a")
}

// T-58: attempts that time out are repeated; after the last one the driver is degraded and goes on.
func TestAttempts(t *testing.T) {
	r := start(t, func(c *kubelet.Config) { c.Timeout = 10 * time.Millisecond })
	r.until("of a second attempt", func(s kubelet.Status) bool { return s.Attempts == 2 && !s.Degraded && s.Err != nil })
	r.until("degraded", func(s kubelet.Status) bool { return s.Degraded && s.Attempts == 3 })
	s := r.until("of further attempts", func(s kubelet.Status) bool { return s.Degraded && s.Attempts > 4 })
	if s.Err == nil {
		t.Error("degraded without an error")
	}
}

func TestRegisteredLate(t *testing.T) {
	r := start(t, func(c *kubelet.Config) { c.Timeout = 200 * time.Millisecond })
	r.until("degraded", func(s kubelet.Status) bool { return s.Degraded })
	for ok := false; !ok; {
		ok = func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := registerapi.NewRegistrationClient(r.dial(r.sockets()[0])).
				NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
			return err == nil
		}()
	}
	r.until("registered", registered)
}

func TestRefused(t *testing.T) {
	r := start(t, nil)
	r.register(&registerapi.RegistrationStatus{Error: "a driver of that name is there"})
	s := r.until("refused", func(s kubelet.Status) bool { return s.Err != nil })
	if want := "kubelet refuses the driver: a driver of that name is there"; s.Err.Error() != want {
		t.Errorf("error is %q, not %q", s.Err, want)
	}
	r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
	r.until("registered", registered)
}

// A socket that is taken away, or was left by another process, is made anew.
func TestSocketTakenAway(t *testing.T) {
	r := start(t, nil)
	r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
	r.until("registered", registered)
	for i, socket := range r.sockets() {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		if s := r.until("of a lost socket", func(s kubelet.Status) bool { return s.Err != nil }); i == 0 && s.Degraded {
			t.Error("degraded at once")
		}
		r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
		r.until("registered", registered)
	}
}

// The kubelet's folder comes when the kubelet does.
func TestNoRegistry(t *testing.T) {
	moved := ""
	r := start(t, func(c *kubelet.Config) {
		moved = filepath.Join(c.Dir, "plugins_registry")
		if err := os.Remove(moved); err != nil {
			t.Fatal(err)
		}
	})
	r.until("degraded", func(s kubelet.Status) bool { return s.Degraded && errors.Is(s.Err, os.ErrNotExist) })
	if err := os.Mkdir(moved, 0o700); err != nil {
		t.Fatal(err)
	}
	r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
	r.until("registered", registered)
}

// While the API server answers nothing the publisher waits for it, the kubelet can still call, and
// the registration ends when it is told to.
func TestEndWithoutServer(t *testing.T) {
	r := start(t, func(c *kubelet.Config) {
		c.Client.(*fake.Clientset).PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("nobody answers")
		})
	})
	if err := r.r.Publish(t.Context(), pools("n1/a")); err != nil {
		t.Fatal(err)
	}
	r.register(&registerapi.RegistrationStatus{PluginRegistered: true})
	r.until("registered", registered)
	client := drapb.NewDRAPluginClient(r.dial(r.sockets()[1]))
	if _, err := client.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "u", Name: "c", Namespace: "ns"}}}); err != nil {
		t.Fatal(err)
	}
	<-r.plugin.unprepared
}
