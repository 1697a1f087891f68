// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reconcile keeps the network-status of the node's pods what the records say it
// is, and answers the hands' reports on the way.
//
// It owns the entries of network-status that are of Weft's attachments, and the decision
// when to write: a pod's status is computed from the newest sandbox of the pod, compared
// with what the pod has, and patched only when it says something else. Nobody is told what
// changed; who knows that something did says which pod (Changed, Pod), and everything is
// looked at again now and then.
//
// Invariants:
//   - Nothing is written for a pod that is not cached, is another one of the name, or is
//     terminal, nor while its newest sandbox is half done; a sandbox of an earlier boot is gone.
//   - Entries of other writers are kept (internal/cni/planner/report). Those of the pod's
//     earlier sandboxes are no other writer's: they are remembered until they are out, and
//     are taken out soon when no sandbox is left. What of them is remembered outlives the
//     agent where there is a Memory.
//     A record that cannot be read may be of a sandbox that lives: its entries stay.
//   - One ADD is one write: what was written is remembered until the cache shows it or
//     something else, so that a cache that is behind causes no second write.
//   - One pod is in work at a time, several pods at once; a write that fails is tried again,
//     with growing pauses, and keeps no other pod from its status.
//   - What another writer takes away is put back at once a few times, then with pauses that
//     grow: two writers that want different things do not write as fast as they can.
//   - A report is answered with success when the status is right or after StatusTimeout: what
//     is left then stays in the queue. Only where nobody would repair it, because the record
//     cannot be seen, a write that fails fails the report.
//   - No lock is held over a read of a file or a request.
//
// It must not know what the API or an informer is (Pods), nor files (internal/cni/observe).
//
// Implements: architecture 1 (law 3), 4.2 (verb report) and 4.4; spec/cni.md rules 4 and 9.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/report"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/wake"
)

const (
	// workers is how many pods are written at once: a burst of ADDs waits for its writes.
	workers = 8
	// resyncEvery is how often every pod is looked at, whoever has told what.
	resyncEvery = 5 * time.Minute
	// readTimeout bounds reading one record, which waits for others to be read.
	readTimeout = 2 * time.Second
	// writeTimeout bounds one write, its retries after another writer's included.
	writeTimeout = 15 * time.Second
	// behindFor is how long a cache may show what was there before a write. After it the
	// cache is believed: another writer may have put that back.
	behindFor = 30 * time.Second
	// endsFor is how long after its last sandbox a pod may come to its end, or get another one: the
	// kubelet says that a pod has completed when its sandbox is gone. Its status is left alone then.
	endsFor = 30 * time.Second
	// freely is how often one and the same status is put back at once. Another writer that
	// does so as well would have the two of them write as fast as the API server can.
	freely = 4
	// forbiddenEvery is how often it is told that writing is not allowed.
	forbiddenEvery = time.Hour
)

// What Pods.Annotate's errors are to be told apart by. Any other is worth another try.
var (
	ErrGone      = errors.New("the pod is gone")          // it or its UID
	ErrForbidden = errors.New("writing is not permitted") // to the agent's account
)

// errContested is told of a pod whose status another writer keeps changing.
var errContested = errors.New("another writer keeps changing it, so it is put back with pauses")

// Pods is what is known of the node's pods, and the way to write to them. The methods may
// be called at the same time.
type Pods interface {
	// Status gives the network-status of a pod as the cache has it ("" = none), and the pod
	// as the API knows it: of a static pod the runtime has another UID. ok is false for a
	// pod that is not cached, is another one of that name, or has ended.
	Status(pod planner.PodRef) (known planner.PodRef, annotation string, ok bool)
	// Deleting says whether a pod is being deleted: it gets no other sandbox.
	Deleting(pod planner.PodRef) bool
	// Annotate is planner.Reporter's, with the errors above.
	Annotate(ctx context.Context, pod planner.PodRef, annotation string, value func(old string) string) error
	// Tell is planner.Reporter's.
	Tell(pod planner.PodRef, e planner.Event)
}

// Records is the view of the records: *observe.Observer.
type Records interface {
	ByPod(uid string) []*observe.Sandbox // the oldest first
	Sandboxes() []*observe.Sandbox
	Unreadable() []observe.Unreadable
	Refresh(ctx context.Context, key journal.Key) (*observe.Sandbox, error)
	Notify(f func(podUID string))
}

// Options are what the configuration says.
type Options struct {
	// StatusTimeout is what a report may wait for its write; 0 = it does not wait.
	StatusTimeout time.Duration
	// DeviceInfoDir is the conf's deviceInfoDir: the paths in records begin with it, and the
	// files must be found there; "" = the conf's default.
	DeviceInfoDir string
	Memory        *Memory // nil = the next agent knows nothing of what was before it
}

// Reconciler keeps network-status right.
type Reconciler struct {
	opts    Options
	records Records
	pods    Pods
	log     *slog.Logger
	queue   *queue
	changed wake.Signal // what is remembered did

	mu        sync.Mutex // guards what follows
	state     map[string]*state
	writes    map[string]uint64
	forbidden time.Time // when it was told last
}

// New gives a Reconciler that is told of every change of records. It writes nothing
// before Run.
func New(opts Options, records Records, pods Pods, log *slog.Logger) *Reconciler {
	opts.DeviceInfoDir = cmp.Or(opts.DeviceInfoDir, netconf.Defaults().DeviceInfoDir)
	r := &Reconciler{
		opts: opts, records: records, pods: pods, log: log, queue: newQueue(), changed: wake.New(),
		state: map[string]*state{}, writes: map[string]uint64{},
	}
	records.Notify(r.Changed)
	return r
}

// Run reconciles until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.queue.close)()
	var group sync.WaitGroup
	defer group.Wait()
	for range workers {
		group.Go(func() {
			for uid, ok := r.queue.next(); ok; uid, ok = r.queue.next() {
				r.queue.done(uid, r.work(ctx, uid))
			}
		})
	}
	if r.opts.Memory != nil {
		group.Go(func() { r.rememberAll(ctx) })
	}
	resync := time.NewTicker(resyncEvery)
	defer resync.Stop()
	for {
		r.resync()
		select {
		case <-ctx.Done():
			return nil
		case <-resync.C:
		}
	}
}

// Changed says that something about a pod changed that records know by this UID.
func (r *Reconciler) Changed(uid string) { r.queue.add(uid, false) }

// Pod says that a pod changed, appeared or went as the API knows it.
func (r *Reconciler) Pod(pod planner.PodRef) {
	if len(r.records.ByPod(pod.UID)) > 0 || r.keeps(pod.UID) {
		r.Changed(pod.UID)
		return
	}
	// No pod of the node's runtime, or a static one, whose records may have its other UID.
	for _, s := range r.records.Sandboxes() {
		if s.PodName == pod.Name && s.PodNamespace == pod.Namespace && s.PodUID != "" {
			r.Changed(s.PodUID)
		}
	}
}

// Lag says how many pods wait for their status to be looked at or written, and for how
// long the first of them does.
func (r *Reconciler) Lag() (pending int, oldest time.Duration) { return r.queue.lag() }

func (r *Reconciler) resync() {
	uids := map[string]bool{}
	for _, s := range r.records.Sandboxes() {
		if s.PodUID != "" {
			uids[s.PodUID] = true
		}
	}
	r.mu.Lock()
	for uid := range r.state { // of a pod without records, work clears it
		uids[uid] = true
	}
	r.mu.Unlock()
	for uid := range uids {
		r.Changed(uid)
	}
}

// work makes one pod's status right, or says when to try again.
func (r *Reconciler) work(ctx context.Context, uid string) verdict {
	all := r.records.ByPod(uid)
	s := newest(all)
	ref, gone := r.earlier(uid, s, all)
	if s != nil && !r.complete(s) {
		return verdict{} // a change of the record comes
	}
	pod, annotation, ok := r.pods.Status(ref)
	if s == nil {
		r.release(uid)
		if v, done := r.alone(uid, ok && len(gone) > 0 && !r.pods.Deleting(pod)); done {
			return v
		}
	}
	if !ok {
		return verdict{} // when it comes, it is a change of the pod
	}
	status, err := r.status(s, gone)
	if err != nil {
		return r.failed(ref, s, err)
	}
	shown, unseen := r.believed(uid, annotation)
	if status.In(shown) {
		r.settle(uid, s, unseen == 0)
		return verdict{recheck: unseen}
	}
	says := status.Merge("")
	if rest := r.rests(uid, says); rest > 0 {
		v := r.failed(ref, s, errContested)
		v.after = rest
		return v
	}
	if err := r.write(ctx, uid, pod, annotation, status, says); err != nil {
		if errors.Is(err, ErrGone) || ctx.Err() != nil {
			return verdict{} // the cache will say so; or the next agent will do it
		}
		return r.failed(ref, s, err)
	}
	r.settle(uid, s, false)
	return verdict{recheck: behindFor}
}

// write patches the annotation, and remembers what the cache is to show.
func (r *Reconciler) write(ctx context.Context, uid string, pod planner.PodRef, cached string, status *report.Status, says string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var old, wrote string
	err := r.pods.Annotate(ctx, pod, plan.StatusAnnotation, func(now string) string {
		old, wrote = now, status.Merge(now)
		return wrote
	})
	switch {
	case errors.Is(err, ErrGone):
		r.count(outcomeGone)
	case errors.Is(err, ErrForbidden):
		r.count(outcomeForbidden)
	case err != nil:
		r.count(outcomeFailed)
	case old == wrote:
		r.count(outcomeUnchanged)
	default:
		r.count(outcomeWritten)
	}
	if err == nil {
		r.remember(uid, cached, old, wrote, says)
	}
	return err
}

// alone decides about a pod that has no sandbox: done = it has no entries of ours, or keeps them for now.
func (r *Reconciler) alone(uid string, lives bool) (v verdict, done bool) {
	if !lives {
		r.forget(uid)
		return verdict{}, true
	}
	left := r.mayEnd(uid)
	return verdict{recheck: left}, left > 0
}

// failed tells a fault, once for a pod as long as it lasts, and has the pod tried again.
func (r *Reconciler) failed(pod planner.PodRef, s *observe.Sandbox, err error) verdict {
	if r.isNews(pod.UID, err) {
		r.log.Warn("network-status is not right, tried again",
			"pod", pod.Namespace+"/"+pod.Name, "container_id", containerOf(s), "error", err)
	}
	var asked time.Duration
	if after, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok {
		asked = after.RetryAfter()
	}
	return verdict{failed: true, after: asked}
}

// newest is the sandbox that a pod's status is about, of those of this boot.
func newest(all []*observe.Sandbox) *observe.Sandbox {
	for _, s := range slices.Backward(all) {
		if !s.Dead {
			return s
		}
	}
	return nil
}

func refOf(s *observe.Sandbox) planner.PodRef {
	return planner.PodRef{Namespace: s.PodNamespace, Name: s.PodName, UID: s.PodUID}
}

// containerOf is the sandbox's name at the runtime, "" = there is none.
func containerOf(s *observe.Sandbox) string {
	if s == nil {
		return ""
	}
	return s.Body.Sandbox.ContainerID
}

// status computes what a sandbox's record says, where earlier ones had such entries; nil = there
// is no sandbox. It reads the device-info files.
func (r *Reconciler) status(s *observe.Sandbox, gone []report.Name) (*report.Status, error) {
	if s == nil {
		return report.Withdrawn(gone), nil
	}
	conf := &netconf.Conf{DeviceInfoDir: r.opts.DeviceInfoDir}
	made := make([]wire.ReportAttachment, 0, len(s.Attachments))
	var former []wire.ReportAttachment
	for _, f := range s.Body.Former {
		former = append(former, wire.ReportAttachment{Network: f.Network, IfName: f.IfName})
	}
	for i := range s.Attachments {
		a := &s.Attachments[i]
		if !a.Present(s.Body.Plugged) {
			former = append(former, wire.ReportAttachment{Network: a.Network, IfName: a.IfName})
			continue
		}
		info, err := devices.ReadInfo(conf, a.Attachment)
		if err != nil {
			return nil, fmt.Errorf("network %s, interface %s: %w", a.Network, a.IfName, err)
		}
		made = append(made, wire.ReportAttachment{
			Network: a.Network, IfName: a.IfName, Default: a.Default, CNIVersion: a.Conf.CNIVersion,
			Result: a.Result, DeviceInfo: info,
		})
	}
	status, err := report.StatusOf(made, former...)
	if err != nil {
		return nil, err
	}
	return status.Without(gone), nil
}
