// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/vm/machine"
	"github.com/weftnet/weft/internal/vm/source"
)

// Reporter reports the machines of a node.
type Reporter struct {
	cfg    Config
	client rest.Interface
	params runtime.ParameterCodec
	dial   func(pod string) func(context.Context) (net.Conn, error) // to the libvirt of a pod, by its UID
	queue  workqueue.TypedRateLimitingInterface[string]

	mu       sync.Mutex
	store    cache.Store // nil before anything was listed
	machines map[string]*watched
	byPod    map[string]string // key by the pod's UID
	told     string            // the last fault that was logged
}

// watched is a machine that is watched. Its fields are the reporter's mutex'.
type watched struct {
	uid, pod string // UIDs
	stop     context.CancelFunc
	watcher  *source.Watcher
	snapshot source.Snapshot
	differs  bool
	writes   writes
}

// New makes a reporter. Nothing is asked yet.
func New(cfg Config) (*Reporter, error) {
	client, scheme, err := newClient(cfg.Conn)
	if err != nil {
		return nil, fmt.Errorf("make a client for virtual machines: %w", err)
	}
	processes := source.NewProcesses(cfg.Proc)
	return &Reporter{
		cfg: cfg, client: client, params: runtime.NewParameterCodec(scheme),
		dial: func(pod string) func(context.Context) (net.Conn, error) {
			return source.Launcher{Processes: processes, Pod: pod}.Dial
		},
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 5*time.Minute)),
		machines: map[string]*watched{}, byPod: map[string]string{},
	}, nil
}

func (r *Reporter) String() string { return "virtual machines" }

// workers merge and write; watching has goroutines of its own.
const workers = 4

// Run reports until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	var parts, machines sync.WaitGroup
	parts.Go(func() { r.follow(ctx) })
	for range workers {
		parts.Go(func() { r.work(ctx, &machines) })
	}
	<-ctx.Done()
	r.queue.ShutDown()
	parts.Wait()
	machines.Wait()
	return nil
}

func (r *Reporter) work(ctx context.Context, machines *sync.WaitGroup) {
	for {
		key, stopped := r.queue.Get()
		if stopped {
			return
		}
		if err := r.reconcile(ctx, key, machines); err != nil {
			r.log(ctx, "status of a virtual machine is not written", fmt.Errorf("%s: %w", key, err))
			r.queue.AddRateLimited(key)
		} else {
			r.queue.Forget(key)
		}
		r.queue.Done(key)
	}
}

// log says the same thing once.
func (r *Reporter) log(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	known := r.told == err.Error()
	r.told = err.Error()
	r.mu.Unlock()
	level := slog.LevelWarn
	if known {
		level = slog.LevelDebug
	}
	r.cfg.Log.Log(ctx, level, "report of virtual machines is behind", "what", what, "error", err)
}

// PodChanged says that something of a pod of this node has changed.
func (r *Reporter) PodChanged(uid string) {
	r.mu.Lock()
	key, ok := r.byPod[uid]
	r.mu.Unlock()
	if ok {
		r.queue.Add(key)
	}
}

// get is a machine's object as it is known; nil: there is none.
func (r *Reporter) get(key string) *v1.VirtualMachineInstance {
	r.mu.Lock()
	store := r.store
	r.mu.Unlock()
	if store == nil {
		return nil
	}
	obj, ok, err := store.GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	vmi, _ := obj.(*v1.VirtualMachineInstance)
	return vmi
}

// reconcile has the right watcher run for a machine, and its status written.
func (r *Reporter) reconcile(ctx context.Context, key string, machines *sync.WaitGroup) error {
	vmi := r.get(key)
	pod, ok := Pod{}, false
	if vmi != nil && !vmi.IsFinal() {
		pod, ok = r.launcher(vmi)
	}
	w := r.watch(ctx, key, vmi, pod, ok, machines)
	if w == nil {
		r.expect(key, vmi)
		return nil
	}
	return r.report(ctx, key, vmi, pod, w)
}

// expect has a machine looked at again when its pod becomes known: an agent that starts may hear of the
// pods after the machines.
func (r *Reporter) expect(key string, vmi *v1.VirtualMachineInstance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byPod, func(_, of string) bool { return of == key })
	if vmi == nil || vmi.IsFinal() {
		return
	}
	for uid, node := range vmi.Status.ActivePods {
		if node == r.cfg.Node {
			r.byPod[string(uid)] = key
		}
	}
	r.queue.AddAfter(key, absent) // where it came between the look and this
}

// launcher is the pod of this node and the machine's namespace that the machine runs in: of several, as
// after a migration to and fro, the one that still runs. Who may write a machine's status names the pods,
// and is to be shown no others' machines.
func (r *Reporter) launcher(vmi *v1.VirtualMachineInstance) (Pod, bool) {
	var found []Pod
	for uid, node := range vmi.Status.ActivePods {
		if node != r.cfg.Node {
			continue
		}
		if p, ok := r.cfg.Pods(string(uid)); ok && !p.Ended && p.Namespace == vmi.Namespace {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return Pod{}, false
	}
	return slices.MinFunc(found, func(a, b Pod) int {
		if a.Ending != b.Ending {
			if b.Ending {
				return -1
			}
			return 1
		}
		return strings.Compare(a.UID, b.UID)
	}), true
}

// watch makes the watcher of a machine what it should be. Nil: there is none.
func (r *Reporter) watch(ctx context.Context, key string, vmi *v1.VirtualMachineInstance, pod Pod, run bool, machines *sync.WaitGroup) *watched {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.machines[key]
	if w != nil && run && w.uid == string(vmi.UID) && w.pod == pod.UID {
		return w
	}
	if w != nil {
		w.stop()
		delete(r.machines, key)
		delete(r.byPod, w.pod)
	}
	if !run {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	n := &watched{uid: string(vmi.UID), pod: pod.UID, stop: cancel, writes: newWrites()}
	n.watcher = source.NewWatcher(source.Config{
		Dial: r.dial(pod.UID), URIs: uris(), Domain: domainOf(vmi),
		Changed: func(s source.Snapshot) {
			r.mu.Lock()
			n.snapshot = s
			r.mu.Unlock()
			r.queue.Add(key)
		},
		Times: r.cfg.Times, Log: r.cfg.Log,
	})
	r.machines[key], r.byPod[pod.UID] = n, key
	machines.Go(func() {
		_ = n.watcher.Run(ctx) // it ends with ctx, and with nothing else
	})
	return n
}

// uris: launchers run as a user, older ones as root.
func uris() []string { return []string{"qemu:///session", "qemu:///system"} }

// domainOf is the name that KubeVirt gives a domain.
func domainOf(vmi *v1.VirtualMachineInstance) string { return vmi.Namespace + "_" + vmi.Name }

// VMIs are the node's machines, by namespace and name.
func (r *Reporter) VMIs() []machine.Machine {
	r.mu.Lock()
	store := r.store
	r.mu.Unlock()
	if store == nil {
		return nil
	}
	keys := store.ListKeys()
	slices.Sort(keys)
	all := make([]machine.Machine, 0, len(keys))
	for _, key := range keys {
		if vmi := r.get(key); vmi != nil {
			all = append(all, r.shown(key, vmi))
		}
	}
	return all
}

func (r *Reporter) shown(key string, vmi *v1.VirtualMachineInstance) machine.Machine {
	id := machine.Machine{Namespace: vmi.Namespace, Name: vmi.Name, UID: string(vmi.UID)}
	r.mu.Lock()
	var s source.Snapshot
	if w := r.machines[key]; w != nil {
		s, id.Written = asMigrating(vmi, w.snapshot), w.writes.at
	}
	r.mu.Unlock()
	pod, ok := r.launcher(vmi)
	if ok {
		id.Pod = pod.Name
	}
	m, _ := machine.Compute(id, r.input(vmi, pod), s)
	switch {
	case s.Domain == nil && s.Err == nil && !ok:
		m.Fault = "no pod of the machine runs on this node, as far as the API server said"
	case s.Domain == nil && s.Err == nil:
		m.Fault = "libvirt was not asked yet"
	}
	if s.Domain == nil {
		m.Differs = []string{}
	}
	return m
}

// Differing counts the machines whose status is not what it should be, and all.
func (r *Reporter) Differing() (differ, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.machines {
		if w.differs {
			differ++
		}
	}
	return differ, len(r.machines)
}
