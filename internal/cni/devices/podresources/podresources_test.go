// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const long = 30 * time.Second

// given1 are devices as people write them: resource to IDs.
type given1 = map[string][]string

// kubelet is the part of one that answers on the socket: its own bytes, on a real socket.
type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	t   testing.TB
	dir string
	end func()

	mu       sync.Mutex
	pods     map[string]*podresourcesv1.PodResources
	calls    []string
	getFails error // the answer of every Get; nil: it is served
	busy     int   // how many calls are still turned away
	huge     bool
	hold     chan struct{} // List answers once it is closed; nil: at once
	inside   int
	most     int
}

func newKubelet(t testing.TB) *kubelet {
	t.Helper()
	k := &kubelet{t: t, dir: t.TempDir(), pods: map[string]*podresourcesv1.PodResources{}}
	if err := os.Mkdir(filepath.Join(k.dir, "pod-resources"), 0o755); err != nil {
		t.Fatal(err)
	}
	k.serve()
	t.Cleanup(func() { k.end() })
	return k
}

// serve makes the socket as a kubelet does at its start: anew.
func (k *kubelet) serve() {
	k.t.Helper()
	if k.end != nil {
		k.end()
	}
	l, err := net.Listen("unix", Socket(k.dir))
	if err != nil {
		k.t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		k.mu.Lock()
		_, call, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
		k.calls = append(k.calls, call)
		k.busy--
		busy := k.busy >= 0
		k.mu.Unlock()
		if busy {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return handler(ctx, req)
	}))
	podresourcesv1.RegisterPodResourcesListerServer(s, k)
	var done sync.WaitGroup
	done.Go(func() { s.Serve(l) })
	k.end = func() { s.Stop(); done.Wait() }
}

// Get is what a kubelet does.
func (k *kubelet) Get(_ context.Context, req *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok := k.pods[req.GetPodNamespace()+"/"+req.GetPodName()]
	switch {
	case k.getFails != nil:
		return nil, k.getFails
	case !ok:
		return nil, fmt.Errorf("pod %s in namespace %s not found", req.GetPodName(), req.GetPodNamespace())
	}
	return &podresourcesv1.GetPodResourcesResponse{PodResources: p}, nil
}

// List is what a kubelet does.
func (k *kubelet) List(ctx context.Context, _ *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inside++
	k.most = max(k.most, k.inside)
	res := &podresourcesv1.ListPodResourcesResponse{}
	for _, p := range k.pods {
		res.PodResources = append(res.PodResources, p)
	}
	if k.huge {
		res.PodResources = append(res.PodResources, &podresourcesv1.PodResources{Name: strings.Repeat("x", maxAnswer)})
	}
	var late error
	if hold := k.hold; hold != nil {
		k.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done(): // here, which may be before it is at who asked
			late = ctx.Err()
		}
		k.mu.Lock()
	}
	k.inside--
	return res, late
}

// pod gives a pod devices: each container those of a line, "resource id id".
func (k *kubelet) pod(name string, containers ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &podresourcesv1.PodResources{Namespace: "default", Name: name}
	for i, c := range containers {
		words := strings.Fields(c)
		r := &podresourcesv1.ContainerResources{Name: fmt.Sprint("c", i)}
		for n, id := range words[1:] { // each on a NUMA node of its own
			r.Devices = append(r.Devices, &podresourcesv1.ContainerDevices{
				ResourceName: words[0], DeviceIds: []string{id},
				Topology: &podresourcesv1.TopologyInfo{Nodes: []*podresourcesv1.NUMANode{{ID: int64(n)}}},
			})
		}
		p.Containers = append(p.Containers, r)
	}
	k.pods["default/"+name] = p
}

// set changes how the kubelet answers, and forgets the calls so far.
func (k *kubelet) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = nil
	change()
}

// asked wants those calls since the last look.
func (k *kubelet) asked(want ...string) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.calls, want) {
		k.t.Errorf("calls %q, want %q", k.calls, want)
	}
	k.calls = nil
}

// checkpoint writes the file, of lines "uid resource id id".
func (k *kubelet) checkpoint(lines ...string) {
	k.t.Helper()
	var entries []string
	for _, l := range lines {
		w := strings.Fields(l)
		entries = append(entries, fmt.Sprintf(`{"PodUID":%q,"ContainerName":"c","ResourceName":%q,"DeviceIDs":{"0":["%s"]}}`, w[0], w[1], strings.Join(w[2:], `","`)))
	}
	k.write(`{"Data":{"PodDeviceEntries":[` + strings.Join(entries, ",") + `]},"Checksum":1}`)
}

func (k *kubelet) write(checkpoint string) {
	k.t.Helper()
	dir := filepath.Join(k.dir, "device-plugins")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), []byte(checkpoint), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kubelet) source() *Source {
	return patient(New(Config{KubeletDir: k.dir, Log: slog.New(slog.DiscardHandler)}))
}

// patient is for a machine that is busy with other things.
func patient(s *Source) *Source {
	s.client.patience, s.client.callTime = long, long
	return s
}

// devicesOf asks for pod default/name.
func devicesOf(ctx context.Context, t testing.TB, s *Source, name, uid string) Answer {
	t.Helper()
	got, err := s.Devices(ctx, Pod{"default", name, uid})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func want(t testing.TB, s *Source, name, uid string, devices given1, from ...Method) {
	t.Helper()
	got := devicesOf(t.Context(), t, s, name, uid)
	if d := cmp.Diff(Answer{Devices: devices, From: from}, got); d != "" {
		t.Errorf("pod %s (-want +got):\n%s", name, d)
	}
}

// Devices of several containers and NUMA nodes are the pod's, sorted and each once.
func TestGet(t *testing.T) {
	k := newKubelet(t)
	k.pod("web", "ex.com/vf b a", "ex.com/gpu g", "ex.com/vf c a")
	k.pod("other", "ex.com/vf x")
	s := k.source()
	want(t, s, "web", "u1", given1{"ex.com/vf": {"a", "b", "c"}, "ex.com/gpu": {"g"}}, Get)
	k.asked("Get")
	k.checkpoint("u1 ex.com/vf a b c", "u1 ex.com/vf init", "u2 ex.com/vf x")
	want(t, s, "web", "u1", given1{"ex.com/vf": {"a", "b", "c", "init"}, "ex.com/gpu": {"g"}}, Get, Checkpoint)
	k.pod("bare")
	want(t, s, "bare", "u3", given1{}, Get, Checkpoint)
	k.asked("Get", "Get")
}

// A kubelet without Get is asked for it once; the next one, at the same place, again.
func TestGetNotServed(t *testing.T) {
	k := newKubelet(t)
	k.pod("web", "ex.com/vf a")
	k.set(func() { k.getFails = status.Error(codes.Unimplemented, "unknown method Get") })
	s := k.source()
	found := given1{"ex.com/vf": {"a"}}
	want(t, s, "web", "u1", found, List)
	k.asked("Get", "List")
	want(t, s, "web", "u1", found, List)
	k.asked("List")
	now := time.Now().Add(remembered + long)
	s.client.now = func() time.Time { now = now.Add(time.Millisecond); return now }
	want(t, s, "web", "u1", found, List)
	k.asked("Get", "List")
	k.set(func() { k.getFails = nil })
	want(t, s, "web", "u1", found, List)
	k.asked("List")
	k.serve()
	want(t, s, "web", "u1", found, Get)
	k.asked("Get")
}

// Get that is switched off is answered with the same code as a pod that is not known.
func TestGetSwitchedOff(t *testing.T) {
	k := newKubelet(t)
	s := k.source()
	want(t, s, "web", "u1", given1{}, List)
	k.asked("Get", "List")
	k.pod("web", "ex.com/vf a")
	want(t, s, "web", "u1", given1{"ex.com/vf": {"a"}}, Get)
	k.asked("Get")
	k.set(func() { k.getFails = fmt.Errorf("PodResources API Get method disabled") })
	for range 2 {
		want(t, s, "web", "u1", given1{"ex.com/vf": {"a"}}, List)
	}
	k.asked("Get", "List", "List")
}

// B33: a kubelet that is asked too often is asked again.
func TestExhausted(t *testing.T) {
	k := newKubelet(t)
	k.pod("web", "ex.com/vf a")
	var seen []string
	s := patient(New(Config{KubeletDir: k.dir, Log: slog.New(slog.DiscardHandler), Observe: func(m Method, o Outcome, _ time.Duration) {
		seen = append(seen, fmt.Sprint(m, " ", o))
	}}))
	k.set(func() { k.busy = 2 })
	want(t, s, "web", "u1", given1{"ex.com/vf": {"a"}}, Get)
	k.asked("Get", "Get", "Get")
	if d := cmp.Diff([]string{"checkpoint absent", "get exhausted", "get exhausted", "get done"}, seen); d != "" {
		t.Errorf("observed (-want +got):\n%s", d)
	}
	k.set(func() { k.getFails = status.Error(codes.Unimplemented, "") })
	want(t, s, "web", "u1", given1{"ex.com/vf": {"a"}}, List)
	k.set(func() { k.busy = 2 })
	want(t, s, "web", "u1", given1{"ex.com/vf": {"a"}}, List)
	k.asked("List", "List", "List")
}

// What never comes within the request's time, or is larger than any answer may be, is not waited
// for: the checkpoint's word is taken, and without one the request is to come again.
func TestNoAnswer(t *testing.T) {
	for name, breaks := range map[string]func(*kubelet){
		"too often": func(k *kubelet) { k.busy = 1 << 30 },
		"too large": func(k *kubelet) { k.getFails, k.huge = status.Error(codes.Unimplemented, ""), true },
		"hangs":     func(k *kubelet) { k.getFails, k.hold = status.Error(codes.Unimplemented, ""), make(chan struct{}) },
		"no name":   func(k *kubelet) { k.pods["default/web"].Containers[0].Devices[0].ResourceName = "" },
		"another": func(k *kubelet) {
			k.pods["default/web"] = &podresourcesv1.PodResources{Namespace: "default", Name: "other"}
		},
		"failure": func(k *kubelet) { k.getFails = status.Error(codes.Internal, "x") },
		"away":    func(k *kubelet) {}, // see below
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t)
			k.pod("web", "ex.com/vf a")
			k.set(func() { breaks(k) })
			if name == "away" {
				k.end()
				k.end = func() {}
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: Socket(k.dir)})
				if err != nil {
					t.Fatal(err)
				}
				l.SetUnlinkOnClose(false) // the file stays, and nobody listens
				l.Close()
			}
			s := k.source()
			ask := func() (Answer, error) {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				return s.Devices(ctx, Pod{"default", "web", "u1"})
			}
			_, err := ask()
			wantFault(t, err, "pod default/web", Socket(k.dir), "there is no checkpoint in "+k.dir)
			k.write("{")
			_, err = ask()
			wantFault(t, err, "pod default/web", Socket(k.dir), "kubelet_internal_checkpoint")
			k.checkpoint("u1 ex.com/vf b", "u2 ex.com/vf c")
			got, err := ask()
			if d := cmp.Diff(Answer{Devices: given1{"ex.com/vf": {"b"}}, From: []Method{Checkpoint}}, got); d != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
		})
	}
}

func wantFault(t testing.TB, err error, words ...string) {
	t.Helper()
	all := fault.All(err)
	if len(all) != 1 || all[0].Code != fault.TryLater {
		t.Fatalf("want one fault of code 11: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(all[0].Error(), w) {
			t.Errorf("%q is not in %q", w, all[0].Error())
		}
	}
}

// A node without the socket has the checkpoint; one with neither has no devices.
func TestNoSocket(t *testing.T) {
	k := newKubelet(t)
	k.end() // which removes the socket
	k.end = func() {}
	s := k.source()
	want(t, s, "web", "u1", given1{})
	k.checkpoint("u1 ex.com/vf a")
	want(t, s, "web", "u1", given1{"ex.com/vf": {"a"}}, Checkpoint)
	k.write("{")
	_, err := s.Devices(t.Context(), Pod{"default", "web", "u1"})
	wantFault(t, err, "kubelet_internal_checkpoint")
}

// A checkpoint that cannot be read does not matter where the kubelet answers.
func TestBrokenCheckpoint(t *testing.T) {
	k := newKubelet(t)
	k.pod("web", "ex.com/vf a")
	k.write("{")
	want(t, k.source(), "web", "u1", given1{"ex.com/vf": {"a"}}, Get)
}

// One List at a time; of requests that come while it runs, one asks anew for all of them.
func TestOneList(t *testing.T) {
	const others = 8
	k := newKubelet(t)
	k.pod("late", "ex.com/vf late")
	hold := make(chan struct{})
	// Not remembered, as no answer of List has the first pod: so every request can be seen coming.
	k.set(func() { k.hold, k.getFails = hold, fmt.Errorf("unknown pod") })
	s := k.source()
	var all sync.WaitGroup
	all.Go(func() { devicesOf(t.Context(), t, s, "nobody", "u0") })
	k.wait("a List", func() bool { return k.inside == 1 })
	for range others {
		all.Go(func() {
			got, err := s.Devices(t.Context(), Pod{"default", "late", "u1"})
			if d := cmp.Diff(given1{"ex.com/vf": {"late"}}, got.Devices); d != "" || err != nil {
				t.Error(err, d)
			}
		})
	}
	k.wait("all requests", func() bool { return len(k.calls) == 1+1+others })
	close(hold)
	all.Wait()
	lists := 0
	for _, c := range k.calls {
		if c == "List" {
			lists++
		}
	}
	if lists != 2 || k.most != 1 {
		t.Errorf("%d Lists, %d at once, want 2 and 1", lists, k.most)
	}
}

func (k *kubelet) wait(what string, there func() bool) {
	k.t.Helper()
	for end := time.Now().Add(long); ; {
		k.mu.Lock()
		ok := there()
		k.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			k.t.Fatal("no ", what)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-k.t.Context().Done():
		}
	}
}

// An answer that is older than the request counts where the checkpoint says that it is about
// this very pod, for a short time.
func TestOlderAnswer(t *testing.T) {
	k := newKubelet(t)
	k.set(func() { k.getFails = status.Error(codes.Unimplemented, "") })
	k.pod("one", "ex.com/vf a")
	k.pod("two", "ex.com/vf b")
	k.checkpoint("u1 ex.com/vf a", "u2 ex.com/vf b")
	s := k.source()
	now := time.Now()
	s.client.now = func() time.Time { now = now.Add(time.Millisecond); return now }
	want(t, s, "one", "u1", given1{"ex.com/vf": {"a"}}, List, Checkpoint)
	want(t, s, "two", "u2", given1{"ex.com/vf": {"b"}}, List, Checkpoint)
	want(t, s, "one", "u1", given1{"ex.com/vf": {"a"}}, List, Checkpoint)
	k.asked("Get", "List")
	now = now.Add(kept)
	want(t, s, "one", "u1", given1{"ex.com/vf": {"a"}}, List, Checkpoint)
	k.asked("List")
	// A pod that the answer lacks, or has without devices.
	k.pod("three", "ex.com/vf c")
	want(t, s, "three", "u3", given1{"ex.com/vf": {"c"}}, List, Checkpoint)
	k.asked("List")
	k.pod("four")
	want(t, s, "four", "u4", given1{}, List, Checkpoint)
	want(t, s, "four", "u4", given1{}, List, Checkpoint)
	k.asked("List", "List")
}

// A pod that is made anew under its name never gets what the one before it had, whichever of
// the sources is behind.
func TestPredecessor(t *testing.T) {
	t.Run("an older List", func(t *testing.T) {
		k := newKubelet(t)
		k.set(func() { k.getFails = status.Error(codes.Unimplemented, "") })
		k.pod("db-0", "ex.com/vf a")
		k.checkpoint("old ex.com/vf a")
		s := k.source()
		now := time.Now()
		s.client.now = func() time.Time { now = now.Add(time.Millisecond); return now }
		want(t, s, "db-0", "old", given1{"ex.com/vf": {"a"}}, List, Checkpoint)
		k.pod("db-0", "ex.com/vf b")
		k.checkpoint("old ex.com/vf a", "new ex.com/vf b")
		want(t, s, "db-0", "new", given1{"ex.com/vf": {"b"}}, List, Checkpoint)
		k.asked("Get", "List", "List")
		k.pod("db-0", "ex.com/vf a") // the first one's device is free again and the third one's now
		k.checkpoint("third ex.com/vf a")
		want(t, s, "db-0", "third", given1{"ex.com/vf": {"a"}}, List, Checkpoint)
	})
	t.Run("a kubelet that is behind", func(t *testing.T) {
		k := newKubelet(t)
		k.pod("db-0", "ex.com/vf a b")
		k.checkpoint("old ex.com/vf a", "new ex.com/vf b")
		want(t, k.source(), "db-0", "new", given1{"ex.com/vf": {"b"}}, Get, Checkpoint)
		k.checkpoint("old ex.com/vf a b")
		want(t, k.source(), "db-0", "new", given1{}, Get, Checkpoint)
	})
}

func TestOrigin(t *testing.T) {
	for want, from := range map[string][]Method{
		"the kubelet's pod-resources socket (Get) and the kubelet's checkpoint":   {Get, Checkpoint},
		"the kubelet's pod-resources socket (List)":                               {List},
		"neither a pod-resources socket nor a checkpoint of the kubelet is there": nil,
	} {
		if got := (Answer{From: from}).Origin(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Whatever bytes a kubelet answers, the devices are tidy or there are none.
func FuzzGiven(f *testing.F) {
	for _, p := range []*podresourcesv1.PodResources{
		{Name: "web", Containers: []*podresourcesv1.ContainerResources{{Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "r", DeviceIds: []string{"b", "a", "a"}}}}}},
		{Containers: []*podresourcesv1.ContainerResources{{}, {Devices: []*podresourcesv1.ContainerDevices{{DeviceIds: []string{""}}}}}},
	} {
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &podresourcesv1.PodResources{}
		if proto.Unmarshal(b, p) != nil {
			return
		}
		found, err := given(p)
		if err != nil {
			return
		}
		for resource, ids := range devices.Merge(found) {
			if resource == "" || len(ids) == 0 || slices.Contains(ids, "") || !slices.Equal(ids, found[resource]) {
				t.Errorf("%q has %q", resource, found[resource])
			}
		}
	})
}
