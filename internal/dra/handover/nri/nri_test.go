// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/handover/nri"
)

// hands note what is asked of them.
type hands struct {
	mu     sync.Mutex
	calls  []string
	errs   map[string]error         // by sandbox, of Attach
	blocks map[string]chan struct{} // by sandbox, of Attach
	nodes  []string
	noNode error
}

func (h *hands) Nodes(context.Context, string) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nodes, h.noNode
}

func (h *hands) note(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call)
}

func (h *hands) forgetProbes() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = slices.DeleteFunc(h.calls, func(c string) bool { return c == "detach probe" })
}

func (h *hands) seen() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.calls...)
}

func (h *hands) Attach(_ context.Context, s handover.Sandbox) ([]handover.Given, error) {
	h.mu.Lock()
	block, err := h.blocks[s.ID], h.errs[s.ID]
	h.mu.Unlock()
	if block != nil {
		<-block
	}
	call := "attach " + s.PodUID + " " + s.ID + " " + s.Namespace
	if s.Yields {
		call += " yields"
	}
	if s.Static {
		call += " static"
	}
	h.note(call)
	return nil, err
}

func (h *hands) Detach(_ context.Context, id string) error {
	h.note("detach " + id)
	return nil
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	t         *testing.T
	hands     *hands
	socket    string
	connected chan bool
	known     chan struct{} // closed at the first wait for calls
	once      sync.Once
	mu        sync.Mutex
	without   []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") //nolint:usetesting // a short path: that of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{
		t: t, socket: filepath.Join(dir, "nri.sock"), connected: make(chan bool, 100), known: make(chan struct{}),
		hands: &hands{errs: map[string]error{}, blocks: map[string]chan struct{}{}},
	}
	p := nri.New(nri.Config{
		Socket: r.socket, Name: "networkdriver.cilium.io", Hands: r.hands, Known: r.known,
		Without: func(ns, name, _ string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.without = append(r.without, ns+"/"+name+": "+err.Error())
		},
		Connected: func(is bool) { r.connected <- is },
		Limit:     300 * time.Millisecond, Pause: 5 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// runtime is a runtime of NRI's own, with these sandboxes; stop ends it.
func (r *rig) runtime(pods ...*api.PodSandbox) (rt *adaptation.Adaptation, stop func()) {
	r.t.Helper()
	rt, err := adaptation.New("test", "1", func(ctx context.Context, sync adaptation.SyncCB) error {
		_, err := sync(ctx, pods, nil)
		return err
	}, func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	},
		adaptation.WithSocketPath(r.socket+".runtime"), adaptation.WithPluginPath(r.t.TempDir()), adaptation.WithPluginConfigPath(r.t.TempDir()))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := rt.Start(); err != nil {
		r.t.Fatal(err)
	}
	stop = r.proxy()
	r.t.Cleanup(rt.Stop)
	r.t.Cleanup(stop)
	r.waitConnected(true)
	// The runtime calls a plugin only some time after it has synchronized with it.
	r.hands.forgetProbes()
	for probed := false; !probed; {
		if err := rt.StopPodSandbox(r.t.Context(), &api.StopPodSandboxRequest{Pod: pod("probe", "")}); err != nil {
			r.t.Fatal(err)
		}
		r.hands.mu.Lock()
		probed = slices.Contains(r.hands.calls, "detach probe")
		r.hands.mu.Unlock()
	}
	return rt, stop
}

// proxy makes the socket that the plugin knows, in front of the runtime's, which does not cut its
// connections when it stops as the end of its process would.
func (r *rig) proxy() (stop func()) {
	r.t.Helper()
	listener, err := net.Listen("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var works sync.WaitGroup
	works.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", r.socket+".runtime")
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			works.Go(func() { _, _ = io.Copy(out, in); out.Close() })
			works.Go(func() { _, _ = io.Copy(in, out); in.Close() })
		}
	})
	var once sync.Once
	return func() {
		once.Do(func() {
			listener.Close()
			mu.Lock()
			for _, c := range conns {
				c.Close()
			}
			mu.Unlock()
			works.Wait()
		})
	}
}

func (r *rig) waitConnected(want bool) {
	r.t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case is := <-r.connected:
			if is == want {
				return
			}
		case <-late:
			r.t.Fatalf("never connected: %t", want)
		}
	}
}

// until waits until the calls, but for those of probes, are exactly these.
func (r *rig) until(want ...string) {
	r.t.Helper()
	r.once.Do(func() { close(r.known) })
	for late := time.Now().Add(20 * time.Second); ; {
		got := slices.DeleteFunc(r.hands.seen(), func(c string) bool { return c == "detach probe" })
		if cmp.Equal(want, got) {
			return
		}
		if time.Now().After(late) {
			r.t.Fatalf("calls (-want +got):\n%s", cmp.Diff(want, got))
		}
		<-time.After(3 * time.Millisecond)
	}
}

func pod(id, netns string) *api.PodSandbox {
	p := &api.PodSandbox{Id: id, Name: "pod", Namespace: "ns", Uid: "p1", Linux: &api.LinuxPodSandbox{}, Pid: 7}
	if netns != "" {
		p.Linux.Namespaces = []*api.LinuxNamespace{{Type: "pid"}, {Type: "network", Path: netns}}
	}
	return p
}

func TestLifeOfSandbox(t *testing.T) {
	r := newRig(t)
	rt, _ := r.runtime()
	p := pod("s1", "/run/netns/a")
	if err := rt.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: p}); err != nil {
		t.Fatal(err)
	}
	if err := rt.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: pod("s1", "")}); err != nil {
		t.Fatal(err)
	}
	if err := rt.RemovePodSandbox(t.Context(), &api.RemovePodSandboxRequest{Pod: pod("s1", "")}); err != nil {
		t.Fatal(err)
	}
	r.until("attach p1 s1 /run/netns/a", "detach s1", "detach s1")
}

// A static pod is told from others by what the kubelet says of its source.
func TestStatic(t *testing.T) {
	r := newRig(t)
	rt, _ := r.runtime()
	for _, source := range []string{"file", "api"} {
		p := pod(source, "/run/netns/a")
		p.Annotations = map[string]string{"kubernetes.io/config.source": source}
		if err := rt.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: p}); err != nil {
			t.Fatal(err)
		}
	}
	r.until("attach p1 file /run/netns/a static", "attach p1 api /run/netns/a")
}

// An error fails the sandbox, and says why.
func TestRefused(t *testing.T) {
	r := newRig(t)
	rt, _ := r.runtime()
	r.hands.errs["s1"] = errors.New(`podIfName "eth0" is taken`)
	err := rt.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: pod("s1", "/run/netns/a")})
	if err == nil || !strings.Contains(err.Error(), `give pod ns/pod its claimed devices: podIfName "eth0" is taken`) {
		t.Errorf("error is %v", err)
	}
}

// T-52: a kernel that blocks fails the sandbox in time; what comes of it later is undone; the plugin
// is still connected.
func TestLate(t *testing.T) {
	r := newRig(t)
	rt, _ := r.runtime()
	block := make(chan struct{})
	r.hands.blocks["s1"] = block
	err := rt.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: pod("s1", "/run/netns/a")})
	if err == nil || !strings.Contains(err.Error(), "it takes longer than 300ms") {
		t.Errorf("error is %v", err)
	}
	if err := rt.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: pod("s2", "/run/netns/b")}); err != nil {
		t.Error(err)
	}
	close(block)
	r.until("attach p1 s2 /run/netns/b", "attach p1 s1 /run/netns/a", "detach s1")
}

// A container that is refused for being late leaves the pod's others their devices.
func TestLateContainer(t *testing.T) {
	r := newRig(t)
	rt, _ := r.runtime()
	block := make(chan struct{})
	r.hands.blocks["s1"] = block
	_, err := rt.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod("s1", "/run/netns/a"), Container: &api.Container{Id: "c1", PodSandboxId: "s1"}})
	if err == nil || !strings.Contains(err.Error(), "it takes longer than 300ms") {
		t.Errorf("error is %v", err)
	}
	close(block)
	r.until("attach p1 s1 /run/netns/a")
	if err := rt.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: pod("s2", "/run/netns/b")}); err != nil {
		t.Error(err)
	}
	r.until("attach p1 s1 /run/netns/a", "attach p1 s2 /run/netns/b")
}

// Of two sandboxes of a pod the one that runs comes first, and the other takes nothing from it.
func TestSynchronizeTwo(t *testing.T) {
	r := newRig(t)
	old := pod("old", "/run/netns/a") // whose namespace is left
	old.Pid = 0
	r.hands.errs["old"] = handover.ErrElsewhere
	r.runtime(old, pod("new", "/run/netns/b"))
	r.until("attach p1 new /run/netns/b yields", "attach p1 old /run/netns/a yields")
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.without) > 0 {
		t.Errorf("pods without: %v", r.without)
	}
}

// T-51: sandboxes that run get what they lack, stopped ones lose what they have, a pod without its
// device is told of; also after the runtime was away.
func TestSynchronize(t *testing.T) {
	r := newRig(t)
	r.hands.errs["s2"] = errors.New("no such device")
	stopped := pod("s3", "")
	stopped.Pid = 0
	pods := []*api.PodSandbox{pod("s1", "/run/netns/a"), pod("s2", "/run/netns/b"), stopped}
	rt, stop := r.runtime(pods...)
	if seen := r.hands.seen(); slices.ContainsFunc(seen, func(c string) bool { return c != "detach probe" }) {
		t.Errorf("before it is known what was prepared: %v", seen)
	}
	all := []string{"attach p1 s1 /run/netns/a yields", "attach p1 s2 /run/netns/b yields", "detach s3"}
	r.until(all...)
	stop()
	rt.Stop()
	r.waitConnected(false)
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	r.runtime(pods...)
	r.until(append(all, all...)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff([]string{"ns/pod: no such device", "ns/pod: no such device"}, r.without); diff != "" {
		t.Errorf("pods without (-want +got):\n%s", diff)
	}
}

// A sandbox that ends while it is looked at, or whose claims are being freed since its pod has ended, is given
// nothing, and not told to run without its devices; nor is one of a list that the runtime has replaced.
func TestSynchronizeMeetsTheEnd(t *testing.T) {
	r := newRig(t)
	freed := func() error { return fmt.Errorf("claim ns/c is being freed: %w", device.ErrFreed) }
	gone := errors.New("network namespace: no such file")
	r.hands.errs["freed"], r.hands.errs["ended"], r.hands.errs["ends"], r.hands.errs["old"] = freed(), gone, gone, gone
	ends, first := make(chan struct{}), make(chan struct{})
	r.hands.blocks["ends"], r.hands.blocks["first"] = ends, first
	endsNow, firstNow := sync.OnceFunc(func() { close(ends) }), sync.OnceFunc(func() { close(first) })
	t.Cleanup(endsNow)
	t.Cleanup(firstNow)
	rt, stop := r.runtime(pod("freed", "/run/netns/a"), pod("ends", "/run/netns/b"), pod("ended", "/run/netns/c"), pod("first", "/run/netns/d"), pod("old", "/run/netns/e"))
	// Before it is known what was prepared.
	if err := rt.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: pod("ended", "/run/netns/c")}); err != nil {
		t.Fatal(err)
	}
	r.until("detach ended", "attach p1 freed /run/netns/a yields")
	if err := rt.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: pod("ends", "/run/netns/b")}); err != nil {
		t.Fatal(err)
	}
	endsNow()
	// What its Attach did after the hook is undone.
	seen := []string{"detach ended", "attach p1 freed /run/netns/a yields", "detach ends", "attach p1 ends /run/netns/b yields", "detach ends"}
	r.until(seen...)
	stop()
	rt.Stop()
	r.waitConnected(false)
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	r.runtime(pod("new", "/run/netns/f"))
	seen = append(seen, "attach p1 new /run/netns/f yields")
	r.until(seen...)
	firstNow()
	r.until(append(seen, "attach p1 first /run/netns/d yields")...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.without) > 0 {
		t.Errorf("pods without: %v", r.without)
	}
}

// A device that has no link is given as files, to every container of the pod; what is none is refused.
func TestNodes(t *testing.T) {
	r := newRig(t)
	rt, _ := r.runtime()
	create := func() (*api.CreateContainerResponse, error) {
		return rt.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod("s1", "/run/netns/a"), Container: &api.Container{Id: "c1", PodSandboxId: "s1"}})
	}
	if got, err := create(); err != nil || len(got.GetAdjust().GetLinux().GetDevices()) != 0 {
		t.Errorf("without files: %v, %v", got, err)
	}
	r.hands.nodes = []string{"/dev/null"}
	got, err := create()
	if err != nil {
		t.Fatal(err)
	}
	devices := got.GetAdjust().GetLinux().GetDevices()
	if len(devices) != 1 || devices[0].Path != "/dev/null" || devices[0].Type != "c" || devices[0].Major != 1 || devices[0].Minor != 3 {
		t.Errorf("devices are %v", devices)
	}
	for _, path := range []string{"/etc/passwd", "/dev/vfio/none"} {
		r.hands.nodes = []string{path}
		if _, err := create(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s is given: %v", path, err)
		}
	}
	r.hands.nodes, r.hands.noNode = nil, errors.New("not known yet")
	if _, err := create(); err == nil || !strings.Contains(err.Error(), "not known yet") {
		t.Errorf("error is %v", err)
	}
}

// A pod whose RunPodSandbox the runtime skipped gets its devices with its first container, or fails.
func TestFirstContainer(t *testing.T) {
	r := newRig(t)
	rt, _ := r.runtime()
	r.hands.errs["s1"] = errors.New("no such device")
	_, err := rt.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: pod("s1", "/run/netns/a"), Container: &api.Container{Id: "c1", PodSandboxId: "s1"}})
	if err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("error is %v", err)
	}
}
