// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pod is a pod of the fake cluster.
type pod struct {
	uid        string
	annotation string
	terminal   bool
	deleting   bool
}

// cluster is an API server, a cache of it and the client's patch, with switches.
type cluster struct {
	notify func(planner.PodRef) // when the cache changes

	mu     sync.Mutex
	api    map[string]pod // by name
	cache  map[string]pod
	lags   bool                    // the cache gets nothing
	before func(name string)       // another writer, between reading and patching
	fault  func(name string) error // of a patch; nil = none
	lands  bool                    // a patch that fails has been made all the same
	slow   time.Duration           // a patch takes this long
	now    int                     // patches under way
	most   int                     // at once
	writes []string                // names of the pods
	asked  int                     // calls of Annotate
	told   []planner.Event
}

func newCluster() *cluster { return &cluster{api: map[string]pod{}, cache: map[string]pod{}} }

func (c *cluster) Status(ref planner.PodRef) (planner.PodRef, string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.cache[ref.Name]
	if !ok || p.terminal || p.uid != ref.UID && "static-"+p.uid != ref.UID {
		return planner.PodRef{}, "", false
	}
	ref.UID = p.uid
	return ref, p.annotation, true
}

func (c *cluster) Deleting(ref planner.PodRef) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cache[ref.Name].deleting
}

func (c *cluster) Annotate(ctx context.Context, ref planner.PodRef, _ string, value func(string) string) error {
	c.mu.Lock()
	c.asked++
	old, slow, before := c.cache[ref.Name].annotation, c.slow, c.before
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}()
	for {
		now := value(old)
		if now == old {
			return nil
		}
		if slow > 0 {
			select {
			case <-time.After(slow):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if before != nil {
			before(ref.Name)
		}
		again, err := c.patch(ref, old, now)
		if !again {
			return err
		}
		c.mu.Lock()
		old = c.api[ref.Name].annotation
		c.mu.Unlock()
	}
}

// patch is one JSON patch that tests UID and old value.
func (c *cluster) patch(ref planner.PodRef, old, now string) (again bool, err error) {
	c.mu.Lock()
	p, ok := c.api[ref.Name]
	fault := c.fault
	if !ok || p.uid != ref.UID {
		c.mu.Unlock()
		return false, fmt.Errorf("patch: %w", ErrGone)
	}
	if fault != nil {
		err = fault(ref.Name)
	}
	if err != nil && !c.lands {
		c.mu.Unlock()
		return false, err
	}
	if p.annotation != old {
		c.mu.Unlock()
		return true, nil
	}
	p.annotation = now
	c.api[ref.Name] = p
	c.writes = append(c.writes, ref.Name)
	c.mu.Unlock()
	c.deliver(ref.Name)
	return false, err
}

func (c *cluster) Tell(_ planner.PodRef, e planner.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, e)
}

// set changes a pod of the API server; f gets its present one.
func (c *cluster) set(name string, f func(*pod)) {
	c.mu.Lock()
	p := c.api[name]
	f(&p)
	c.api[name] = p
	c.mu.Unlock()
	c.deliver(name)
}

// pod makes a pod of the API server and of the cache.
func (c *cluster) pod(name string) { c.set(name, func(p *pod) { p.uid = "uid-" + name }) }

// known is the pod as the API server has it.
func (c *cluster) known(name string) (pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.api[name]
	return p, ok
}

func (c *cluster) remove(name string) {
	c.mu.Lock()
	delete(c.api, name)
	c.mu.Unlock()
	c.deliver(name)
}

// deliver brings a pod to the cache, unless that lags.
func (c *cluster) deliver(name string) {
	c.mu.Lock()
	if c.lags {
		c.mu.Unlock()
		return
	}
	p, ok := c.api[name]
	was := c.cache[name]
	if ok {
		c.cache[name] = p
	} else {
		delete(c.cache, name)
	}
	notify := c.notify
	c.mu.Unlock()
	if notify == nil {
		return
	}
	for _, uid := range slices.Compact([]string{was.uid, p.uid}) {
		if uid != "" {
			notify(planner.PodRef{Namespace: "default", Name: name, UID: uid})
		}
	}
}

// lag switches the cache's lag, and brings everything there when it ends.
func (c *cluster) lag(on bool) {
	c.mu.Lock()
	c.lags = on
	names := map[string]bool{}
	for name := range c.api {
		names[name] = true
	}
	for name := range c.cache {
		names[name] = true
	}
	c.mu.Unlock()
	if on {
		return
	}
	for name := range names {
		c.deliver(name)
	}
}

func (c *cluster) switchTo(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *cluster) annotation(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.api[name].annotation
}

func (c *cluster) written() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.writes)
}

// records are sandboxes without files.
type records struct {
	mu     sync.Mutex
	all    map[journal.Key]*observe.Sandbox
	notify func(string)
	blind  error // Refresh says
	broken []observe.Unreadable
}

func newRecords() *records { return &records{all: map[journal.Key]*observe.Sandbox{}} }

func (r *records) Notify(f func(string)) { r.notify = f }

func (r *records) Sandboxes() []*observe.Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*observe.Sandbox
	for _, s := range r.all {
		all = append(all, s)
	}
	slices.SortFunc(all, observe.Older)
	return all
}

func (r *records) ByPod(uid string) []*observe.Sandbox {
	return slices.DeleteFunc(r.Sandboxes(), func(s *observe.Sandbox) bool { return s.PodUID != uid })
}

func (r *records) Refresh(_ context.Context, key journal.Key) (*observe.Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[key], r.blind
}

func (r *records) put(s *observe.Sandbox) {
	r.mu.Lock()
	r.all[s.Key] = s
	r.mu.Unlock()
	r.notify(s.PodUID)
}

func (r *records) Unreadable() []observe.Unreadable {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.broken)
}

// spoil makes a record unreadable.
func (r *records) spoil(s *observe.Sandbox) {
	r.mu.Lock()
	delete(r.all, s.Key)
	r.broken = append(r.broken, observe.Unreadable{Key: s.Key, Err: errors.New("torn")})
	r.mu.Unlock()
	r.notify(s.PodUID)
}

// lose takes away what is unreadable; nobody is told whose it was.
func (r *records) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = nil
}

func (r *records) drop(s *observe.Sandbox) {
	r.mu.Lock()
	delete(r.all, s.Key)
	r.mu.Unlock()
	r.notify(s.PodUID)
}

// sandbox is one whose attachments are made, and whose ADD is not over; the address tells it from others;
// more are networks beyond the usual two.
func sandbox(id, name, uid, address string, more ...string) *observe.Sandbox {
	s := &observe.Sandbox{
		Sandbox:      &record.Sandbox{Key: journal.Key(id + "-eth0")},
		PodNamespace: "default", PodName: name, PodUID: uid, Begun: time.Now(),
	}
	s.Body.Sandbox = plan.Sandbox{ContainerID: id, IfName: "eth0"}
	for i, network := range append([]string{"defnet", "default/neta"}, more...) {
		ifName := fmt.Sprint("eth", i)
		s.Attachments = append(s.Attachments, record.Attachment{
			Attachment: plan.Attachment{Network: network, IfName: ifName, Default: i == 0, Conf: netconf.Network{CNIVersion: "1.0.0"}},
			Attempted:  true, Done: true,
			Result: fmt.Appendf(nil, `{"cniVersion":"1.0.0","interfaces":[{"name":%q,"sandbox":"/n"}],"ips":[{"address":%q,"interface":0}]}`, ifName, address),
		})
	}
	return s
}

// finished is the same when its ADD is over.
func finished(s *observe.Sandbox) *observe.Sandbox {
	next := *s
	inner := *s.Sandbox
	inner.Finished = true
	next.Sandbox = &inner
	return &next
}

// undone is the same when undoing it was begun.
func undone(s *observe.Sandbox) *observe.Sandbox {
	next := *finished(s)
	next.Finished, next.Undoing = false, true
	return &next
}

// dead is the same after a reboot.
func dead(s *observe.Sandbox) *observe.Sandbox {
	next := *finished(s)
	next.Dead = true
	return &next
}

// statusOf is what network-status says of a sandbox.
func statusOf(s *observe.Sandbox, address string) []any {
	var all []any
	for _, a := range s.Attachments {
		e := map[string]any{"name": a.Network, "interface": a.IfName, "ips": []any{address}}
		if a.Default {
			e["default"] = true
		}
		all = append(all, e)
	}
	return all
}

func parsed(t testing.TB, annotation string) (all []any) {
	t.Helper()
	if err := json.Unmarshal([]byte(annotation), &all); err != nil {
		t.Errorf("annotation %q: %v", annotation, err)
	}
	return all
}

func reportOf(s *observe.Sandbox) wire.ReportRequest {
	req := wire.ReportRequest{Sandbox: s.Body.Sandbox, PodNamespace: s.PodNamespace, PodName: s.PodName, PodUID: s.PodUID}
	for _, a := range s.Attachments {
		req.Attachments = append(req.Attachments, wire.ReportAttachment{
			Network: a.Network, IfName: a.IfName, Default: a.Default, CNIVersion: "1.0.0", Result: a.Result,
		})
	}
	return req
}

var errAPI = errors.New("the API server is away")
